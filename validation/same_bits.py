"""Two checkouts, the same work: are all numbers the same, bit for bit?

    python -m validation.same_bits BEFORE AFTER [--out FOLDER] [--only demo bench ...]

Runs in each checkout, on one thread: the quick demo, two pairs of the mini study, the tour (fit,
own.yaml, its scores and the doctor's findings), the paper's fit of the tour's data (`preset: paper`
where there is one, else its settings), and the benchmark's train, adapt and evaluate on tiny data.
Then compares every number of their JSON files and every tensor they wrote. Times, versions, memory,
paths, hashes that name code or settings, and how an artifact brings its source are left out; the
source's row was called `finetuned` once. What was run is kept by commit and uncommitted change: a
second call only runs what is new. Exits with 1 and names the differences if there are any. About
two minutes for each checkout.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

SYSTEMS = ("cylinder", "combustion")
#: Keys whose values are of a machine, a place or a version of the code.
CIRCUMSTANCE = re.compile(
    r"versions|seconds|peak_memory|readouts_over_rollout|key|settings|config|sha256|files|format"
    r"|^created|^work$|identity|command|fingerprint"
)
#: Findings of the doctor that are measured anew each time.
MEASURED = ("time", "memory", "disk", "out")
RENAMED = {"finetuned": "source"}
#: The state of the generator that all members of one process share; no training draws from it.
SHARED = "random"
PAPER = """\
data: {{path: piv.nc, history: 4, horizon: 4, stride: 4}}
source: {{python: "mynet:Forecaster", checkpoint: weights.pt, layout: B (T C) H W}}
adapt:
  members: 2
  repair: {{width: 4, depth: 2, steps: 4, train: {{epochs: 3, lr: 3.0e-3}}}}
  ensemble: {{{cells}radial: 8, angular: 4}}
out: runs/paper
"""


class Checkout:
    """A checkout, and the folder its work goes to."""

    def __init__(self, tree: Path, out: Path) -> None:
        self.tree, self.out = tree.resolve(), out.resolve()
        git = [
            ["git", "-C", self.tree, *what] for what in (["rev-parse", "HEAD"], ["diff", "HEAD"])
        ]
        head, changes = (subprocess.run(it, capture_output=True, check=True).stdout for it in git)
        self.state = f"{head.decode().strip()} {hashlib.sha256(changes).hexdigest()}"

    def run(self, job: str, script: Callable[["Checkout", Path], None]) -> Path:
        """Do a job once for each state of the checkout."""
        folder = self.out / job
        done = folder / "done"
        if not done.is_file() or done.read_text() != self.state:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            print(f"{self.tree}: {job}", flush=True)
            script(self, folder)
            done.write_text(self.state)
        return folder

    def python(self, *arguments: str, cwd: Path, kept: str | None = None) -> str:
        """Run Python with the package of this checkout; ``kept`` is a file for what it prints."""
        path = os.pathsep.join([str(self.tree / "src"), str(cwd)])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.tree}: {' '.join(arguments)}\n{done.stderr[-3000:]}")
        if kept is not None:
            (cwd / kept).write_text(done.stdout)
        return done.stdout

    def r2no(self, *arguments: str, cwd: Path, kept: str | None = None) -> str:
        """Run the command."""
        return self.python("-m", "r2no", *arguments, cwd=cwd, kept=kept)

    def door(self, cwd: Path, command: str) -> tuple[str, ...]:
        """Where a command of the benchmark stands in this checkout."""
        if command in self.r2no("bench", "--help", cwd=cwd).split():
            return ("bench", command)
        return ("data", command) if command == "tiny" else (command,)


def demo(checkout: Checkout, folder: Path) -> None:
    checkout.r2no("demo", "--quick", "--seed", "0", "--out", "demo", cwd=folder)


def bench(checkout: Checkout, folder: Path) -> None:
    systems = [word for system in SYSTEMS for word in ("--system", system)]
    options = ("--backbone", "fno", "--source", "finetune", "--out", "bench")
    checkout.r2no("bench", "run", "--preset", "mini", *systems, *options, cwd=folder)


def tour(checkout: Checkout, folder: Path) -> None:
    """The page's own lines: its first Python block and its YAML file."""
    page = (checkout.tree / "docs/tour.md").read_text()
    _toy_files(checkout, folder)
    (folder / "lines.py").write_text(_block(page, "python"))
    (folder / "own.yaml").write_text(_block(page, "yaml"))
    checkout.python("lines.py", cwd=folder)
    checkout.r2no("adapt", "own.yaml", cwd=folder)
    checkout.r2no("doctor", "own.yaml", "--json", cwd=folder, kept="doctor.json")
    scores = ("evaluate", "runs/piv/model.r2no", "--trust-source", "--output", "scores.json")
    checkout.r2no(*scores, cwd=folder)


def paper(checkout: Checkout, folder: Path) -> None:
    """The published columns and cells on the data of the tour, with small modules."""
    _toy_files(checkout, folder)
    sources = (path.read_text() for path in checkout.tree.glob("src/**/config.py"))
    known = any('preset: Literal["auto", "paper"]' in text for text in sources)
    chosen, cells = ("preset: paper\n", "") if known else ("", "cells: published, ")
    (folder / "paper.yaml").write_text(chosen + PAPER.format(cells=cells))
    checkout.r2no("adapt", "paper.yaml", cwd=folder)
    scores = ("evaluate", "runs/paper/model.r2no", "--trust-source", "--output", "scores.json")
    checkout.r2no(*scores, cwd=folder)


def _toy_files(checkout: Checkout, folder: Path) -> None:
    """A file of measurements and a network of one's own, as the tour makes them."""
    for example in (checkout.tree / "docs/examples").glob("*.py"):
        (folder / example.name).write_text(example.read_text())
    checkout.python("toy.py", cwd=folder)


def benchmark(checkout: Checkout, folder: Path) -> None:
    """Tiny data of a system, a checkpoint, its adaptation, and both scored in several ways."""
    door = {name: checkout.door(folder, name) for name in ("tiny", "train", "adapt", "evaluate")}
    tiny = ("data", "--system", "cylinder", "--layout", "arrow", "--frames", "130")
    checkout.r2no(*door["tiny"], *tiny, cwd=folder)
    which = ("--system", "cylinder", "--backbone", "fno", "--data", "data")
    short = ("--small", "--updates", "6", "--batch-size", "4")
    checkout.r2no(*door["train"], *which, *short, "--out", "train", cwd=folder)
    checkpoint = ("--source", "train/checkpoint.safetensors")
    small = ("--width", "4", "--depth", "2", "--steps", "3", "--members", "2", "--radial", "16")
    checkout.r2no(*door["adapt"], *which, *short, *checkpoint, *small, "--out", "adapt", cwd=folder)
    ways = {
        "clean": (),
        "benchmark": ("--compat", "benchmark", "--autoregressive", "5"),
        "rolled": ("--autoregressive", "2"),
    }
    for name, options in ways.items():
        for model in ("adapt/model.r2no", "train/checkpoint.safetensors"):
            output = f"{name}-{model.split('/')[0]}.json"
            command = (*door["evaluate"], model, "--data", "data", *options, "--output", output)
            checkout.r2no(*command, cwd=folder)


def _block(page: str, language: str) -> str:
    return page.split(f"```{language}\n", 1)[1].split("```", 1)[0]


JOBS = {"demo": demo, "bench": bench, "tour": tour, "paper": paper, "benchmark": benchmark}
#: What is compared of each job.
SUBJECTS = {
    "demo": ("demo/results.json", "demo/wake.r2no", "demo/work/*/*/*.safetensors"),
    "bench": ("bench/results", "bench/adapt/*/model.r2no", "bench/sources"),
    "paper": ("runs/paper/model.r2no", "runs/paper/run.json", "scores.json"),
    "tour": ("piv.r2no", "runs/piv", "scores.json", "doctor.json"),
    "benchmark": ("train", "adapt", "*.json"),
}


def files(folder: Path, subjects: tuple[str, ...]) -> dict[str, Path]:
    """JSON files and tensors by name; a hash in a folder's name does not count."""
    found = [path for subject in subjects for path in folder.glob(subject)]
    inside = [path for place in found for path in ([place] if place.is_file() else _under(place))]
    kinds = (".json", ".safetensors", ".jsonl")
    chosen = sorted(path for path in set(inside) if path.suffix in kinds)
    return {re.sub(r"[0-9a-f]{12,}", "#", str(p.relative_to(folder))): p for p in chosen}


def _under(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def numbers(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word of a JSON file, by its place, but for circumstances."""
    if isinstance(content, dict):
        if content.get("check") in MEASURED:
            return
        for key, value in content.items():
            if not (CIRCUMSTANCE.search(key) or (key == "source" and _identifies(value))):
                yield from numbers(value, f"{name}/{RENAMED.get(key, key)}")
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from numbers(value, f"{name}/{place}")
    else:
        yield name, RENAMED.get(content, content) if isinstance(content, str) else content


def _identifies(value: Any) -> bool:
    """Whether this says which source it is and how to get it, and is none of its scores."""
    return isinstance(value, str) or (isinstance(value, dict) and "included" in value)


def content(path: Path) -> dict[str, Any]:
    """What of a file is compared, by its place in it."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as handle:
            names = [name for name in handle.keys() if name != SHARED]  # noqa: SIM118
            return {name: handle.get_tensor(name) for name in names}
    text = path.read_text()
    rows = text.splitlines() if path.suffix == ".jsonl" else [text]
    return dict(numbers([json.loads(row) for row in rows]))


def same(first: Any, second: Any) -> bool:
    """Equal to the last bit; NaN is NaN."""
    if isinstance(first, torch.Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and first.numpy().tobytes() == second.numpy().tobytes()
    return repr(first) == repr(second)


def differences(before: Path, after: Path, subjects: tuple[str, ...]) -> Iterator[str]:
    """What differs or is gone in the second of two folders; what is new there is only said."""
    old, new = files(before, subjects), files(after, subjects)
    yield from (f"only before: {name}" for name in sorted(old.keys() - new.keys()))
    print(*(f"new: {name}" for name in sorted(new.keys() - old.keys())), sep="\n")
    compared = 0
    for name in sorted(old.keys() & new.keys()):
        mine, theirs = content(old[name]), content(new[name])
        yield from (f"{name}: only before: {key}" for key in mine.keys() - theirs.keys())
        if added := theirs.keys() - mine.keys():
            print(f"new: {len(added)} values of {name}, such as {min(added)}")
        for key in mine.keys() & theirs.keys():
            compared += 1
            if not same(mine[key], theirs[key]):
                yield f"{name}: {key}: {_brief(mine[key])} -> {_brief(theirs[key])}"
    print(f"{after.name}: {len(old.keys() & new.keys())} files, {compared} values compared")


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.double().norm():.17g}"
    return repr(value)[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/same-bits"))
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS))
    arguments = parser.parse_args()
    sides = [
        Checkout(tree, arguments.out / name)
        for name, tree in (("before", arguments.before), ("after", arguments.after))
    ]
    found = []
    for job in arguments.only:
        before, after = (side.run(job, JOBS[job]) for side in sides)
        found += [f"{job}: {line}" for line in differences(before, after, SUBJECTS[job])]
    print(*found or ["Every number and every tensor is the same."], sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
