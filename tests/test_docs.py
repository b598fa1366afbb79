import re
from pathlib import Path

import torch

import r2no

ROOT = Path(__file__).parent.parent


def test_cited_labels_exist_in_the_method_page():
    page = (ROOT / "docs" / "method.md").read_text()
    defined = set(re.findall(r"^## \((M\d+)\)", page, flags=re.MULTILINE))
    cited = set()
    for path in Path(r2no.__file__).parent.rglob("*.py"):
        for first, last in re.findall(r"\bM(\d{1,2})(?:-M(\d{1,2}))?\b", path.read_text()):
            cited |= {f"M{n}" for n in range(int(first), int(last or first) + 1)}
    assert defined == {f"M{n}" for n in range(1, 13)}
    assert cited <= defined
    assert len(cited) == 12


def test_public_names_exist():
    assert all(hasattr(r2no, name) for name in r2no.__all__)


def test_readme_snippets_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert (tmp_path / "wave.r2no" / "manifest.json").exists()
