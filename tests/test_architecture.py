"""docs/architecture.md against the import contract and against a trace of a run."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from validation import trace_adapt
from validation.trace_adapt import Trace, heights, layers, road, steps, traces, upward

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Trace]]:
    before = sys.modules.keys() - {"toy", "mynet"}
    yield traces()
    for name in {"toy", "mynet"} - before:
        sys.modules.pop(name, None)


def test_layers_of_the_page_are_those_of_the_contract() -> None:
    section = PAGE.split("## Layers")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [re.findall(r"`(\w+)`", row) for row in rows] == layers()


def test_layers_cover_the_package() -> None:
    package = ROOT / "src" / "r2no"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__init__", "__pycache__", "py"} == set(heights())


def test_what_the_page_says_to_change_is_there() -> None:
    """Files by the end of their path; names of code by their definition."""
    section = PAGE.split("## Where to put what")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w./]+)`", section))
    files = [
        f"/{path.relative_to(ROOT)}"
        for part in ("src", "tests")
        for path in (ROOT / part).rglob("*.*")
    ]
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    paths = {name for name in named if name.endswith((".py", ".json"))}
    others = named - paths - set(heights())
    words = {name.rpartition(".")[2] for name in others if re.search("[A-Z_]", name)}
    assert len(paths) > 15
    assert len(words) > 15
    assert {path for path in paths if not any(file.endswith(f"/{path}") for file in files)} == set()
    defined = r"^ *(?:def|class) {0}\b|^ *{0}\b[^=\n]*="
    missing = {word for word in words if not re.search(defined.format(word), code, re.MULTILINE)}
    assert missing == set()


def test_steps_of_the_page_are_in_the_trace_in_this_order(found: dict[str, Trace]) -> None:
    shown = re.findall(r"^runs > ([\w.]+)$", PAGE, flags=re.MULTILINE)
    taken = iter([f"{call.module}.{call.function}" for call, _ in steps(found["adapt"])])
    assert len(shown) > 8
    assert all(step in taken for step in shown)  # each after the one before


def test_calls_lead_upwards_only_into_what_was_handed_down(found: dict[str, Trace]) -> None:
    """The parts that take a callable, a protocol or a validator; the page names them."""
    callers = {caller.split(".")[0] for caller, _ in upward(found["adapt"])}
    handed = {"scoring", "training", "data", "storage", "checks", "ranks", "devices"}
    assert callers <= handed


def test_the_way_of_a_window_goes_from_its_file_to_that_of_its_forecast(
    found: dict[str, Trace],
) -> None:
    way = road(found["predict"])
    assert way[:2] == ["adaptation.predict", "data.window"]
    assert way[-1] == "data.forecast_writer"
    places = [way.index(name) for name in ("operators.wrapped", "repair_loop.module")]
    assert places == sorted(places)
    assert "ensemble.compose" in way


def test_a_trace_tells_parts_apart_and_forgets_what_it_has_left() -> None:
    from r2no.spectral import FourierCells

    trace = Trace()
    with trace.recording():
        FourierCells.polar((4, 6), radial=2, angular=2)
    assert {call.part for call in trace.calls} <= set(heights())
    assert trace.calls[0].module == "spectral.cells"
    assert list(trace.left)[-1] == "spectral"
    assert trace_adapt.entries(trace)["spectral"] >= 1
