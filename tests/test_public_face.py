"""What people meet first: modules under their own names, and objects that say what they are."""

import html
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

import r2no
from r2no import backbones, ensemble, operators, realpdebench, report, runs, training, wake
from r2no.adaptation import read_stored
from r2no.data import ArrayWindows, Normaliser, Window
from r2no.metrics import Accumulator, BandScores, MetricBatches, Target
from r2no.progress import Reporter
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.study.run import Outcome
from r2no.realpdebench.study.sheets import Sheet
from r2no.realpdebench.study.tables import study_sheet
from r2no.repair_loop import LossTerms, RepairObjective
from tests.support import adapted
from tests.support.adapting import own_operator

GOLDEN = Path(__file__).parent / "golden"
LONGEST = 700


def public_modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(r2no.__path__, "r2no.")]
    return ["r2no", *(name for name in names if not any(p[0] == "_" for p in name.split(".")))]


def test_no_public_module_is_hidden_by_another_thing_of_its_name() -> None:
    for name in public_modules():
        importlib.import_module(name)
    for name in public_modules()[1:]:
        parent, _, leaf = name.rpartition(".")
        found = getattr(importlib.import_module(parent), leaf)
        assert isinstance(found, ModuleType), name


def public_classes() -> set[type]:
    """Classes that a package lists, but for settings, which show their values, and protocols."""
    found = set()
    for name in public_modules():
        module = importlib.import_module(name)
        for item in getattr(module, "__all__", ()) if hasattr(module, "__path__") else ():
            thing = getattr(module, item)
            if inspect.isclass(thing) and not issubclass(thing, (BaseModel, BaseException)):
                found.add(thing)
    shown = {kind for kind in found if not getattr(kind, "_is_protocol", False)}
    return shown | {Reporter, Protocol, Outcome, Sheet}


def parts(thing: Any) -> Iterator[Any]:
    """A thing and what it holds, as deep as its attributes go."""
    yield thing
    if not isinstance(thing, (torch.nn.Module, ModuleType, type)):
        for value in vars(thing).values() if hasattr(thing, "__dict__") else ():
            if type(value).__module__.startswith("r2no"):
                yield from parts(value)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """At least one object of every public class, of realistic sizes."""
    folder = tmp_path_factory.mktemp("things")
    model, windows = adapted.model(), adapted.split(range(2))
    np.save(folder / "u.npy", np.random.default_rng(0).random((3, 30, 8, 12, 2), "f4"))
    measured = r2no.data.open(folder / "u.npy", axes=("trajectory", "time", "y", "x", "channel"))
    made = [
        *_of_the_ensemble(model),
        *_of_the_benchmark(folder),
        *(model, read_stored(GOLDEN / "artifacts" / "v1"), measured, measured.split(4, 4)),
        *(windows, windows[0], Accumulator(2), MetricBatches(2, 8), own_operator(), Reporter()),
        Target(torch.zeros(2, 4, 8, 12, 2), measured=2),
        operators.Forecasts(windows, [np.zeros((40, 8, 12, 2), "f4")] * 2),
        *(operators.Layout.parse("B T C H W", 2), training.SourceCache(folder / "cache")),
        operators.wrap(torch.nn.Identity(), "B (T C) H W", windows.fields),
        *(training.Persistence(4, 2), training.TrainResult(0.1, 3, 9, [{"loss": 1.0}] * 9)),
        *(r2no.RepairUNet(8, 8, width=4, depth=2), RepairObjective()),
        training.Problem(torch.nn.Identity(), lambda batch: (batch, {}), lambda: 0.0, 9, "key"),
        LossTerms(*(torch.tensor(1.0) for _ in range(4))),
        *(report.Curve("a", [0.5] * 50, [0.5] * 50), report.Labels("x", "y")),
        *(adapted.evaluation(), report.collect(model), report.ScoringWatch(model, windows)),
        *(
            runs.Finding("ok", "data", "fine"),
            runs.Task(measured, measured.split(4, 4), own_operator(), {}),
        ),
        *_of_the_wake(windows),
        *(BandScores((0.5, 0.9)), model.predict(windows[0].history, coverage=(0.5, 0.9))),
    ]
    return [part for thing in made for part in parts(thing)]


def _of_the_ensemble(model: Any) -> list[Any]:
    fitted, field = model.ensemble, torch.zeros(3, 2, 8, 12, 2, dtype=torch.float64)
    columns = ensemble.Columns(1, (1,))
    kept = {"measured": (0, 1)}
    sums = ensemble.GramAccumulator(columns, fitted.cells, exponents=(1.0,), **kept)
    errors = model.fit_errors
    return [
        *(fitted, errors, fitted.verdict, ensemble.SpectralEnsemble.of(fitted), sums),
        ensemble.SpectralEnsemble(fitted.cells),
        ensemble.ColumnSpectra(field, field, columns, fitted.cells, **kept),
        *(model.cost_curve()[0], model.learning_curve(repeats=1)[0], ensemble.retention(fitted)),
        model.contributions()[0],
        fitted.compose(torch.zeros(1, 4, 8, 12, 2)),
        ensemble.FitBatch(field, field[None, None], field),
        ensemble.halves(adapted.split(range(4)).origins, horizon=4),
    ]


def _of_the_benchmark(folder: Path) -> list[Any]:
    realpdebench.write_tiny(folder / "tiny", ["fsi"], layouts=["arrow"])
    windows = realpdebench.RealPDEBench(folder / "tiny", "fsi", "real", "test")
    torch.save({"model_state_dict": own_operator().network.state_dict()}, folder / "a.pth")
    one = Normaliser(torch.zeros(3), torch.ones(3))
    statistics = realpdebench.fit_statistics(windows)
    return [
        *(windows, windows.system, realpdebench.audit(folder / "tiny", ["fsi"]), statistics),
        realpdebench.draw_splits(windows.system, "real", windows.names, seed=0),
        *(realpdebench.Normalisers(one, one), Protocol(), Outcome("a", "done")),
        *(study_sheet("main", None), backbones.describe(folder / "a.pth")),
        backbones.PretrainingRecord("a.pth", "sha", ("a",) * 99, ("b",) * 99, 0.5),
    ]


def _of_the_wake(windows: ArrayWindows) -> list[Any]:
    domain, settings = wake.Domain(8, 12), wake.WakeSettings(seed=0)
    data = wake.WakeData(*[windows] * 5, {"real": (80.0,) * 50}, 0.1, settings)
    flow = wake.LatticeFlow(domain, torch.full((3,), 0.01))
    return [domain, settings, data, flow, wake.Shedding(0.2, 5, 0.1)]


def test_every_public_class_says_what_it_is(things: list[Any]) -> None:
    public = public_classes()
    assert {kind.__name__ for kind in public - {type(thing) for thing in things}} == set()
    for thing in (thing for thing in things if type(thing) in public):
        text = repr(thing)
        assert text.startswith(f"{type(thing).__name__}("), text
        assert "tensor(" not in text, text
        assert "array(" not in text, text
        assert " object at 0x" not in text, text
        assert "\n" not in text, text
        assert len(text) <= LONGEST, (len(text), text)


def test_sizes_units_and_verdict_are_said(things: list[Any]) -> None:
    by_name = {type(thing).__name__: repr(thing) for thing in reversed(things)}
    model = by_name["AdaptedModel"]
    assert "4 -> 4 frames of u [m/s]" in model
    assert str(adapted.model().verdict) in model
    assert "cells (8 x 4, corner)" in by_name["FourierCells"]
    assert "occupied, on 8 x 12" in by_name["FourierCells"]
    assert "3 recording(s) of 30 frames" in by_name["Measurements"]
    assert "float64 (" in by_name["GramSums"]
    assert "parameters" in by_name["RepairUNet"]
    assert repr(r2no.RepairUNet(60, 60)).endswith("8,672,028 parameters)")


def test_window_is_short_however_large() -> None:
    text = repr(Window(torch.zeros(20, 64, 128, 3), torch.zeros(20, 64, 128, 3)))
    assert (
        text
        == "Window(history=float32 (20, 64, 128, 3), target=float32 (20, 64, 128, 3), mask=None)"
    )


def test_notebooks_show_tables_with_everything_escaped(things: list[Any]) -> None:
    shown = {type(thing): thing._repr_html_() for thing in things if hasattr(thing, "_repr_html_")}
    assert {kind.__name__ for kind in shown} >= {"AdaptedModel", "Measurements", "Splits"}
    assert all(text.startswith("<table>") and text.endswith("</table>") for text in shown.values())
    text = adapted.model()._repr_html_()
    assert adapted.HOSTILE not in text
    assert html.escape(adapted.HOSTILE) in text
    assert html.escape("<b>") in text
    assert str(adapted.model().verdict) in html.unescape(text)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["adapt", "--help"], ["--version"]])
def test_what_computes_nothing_does_not_wait_for_pytorch(arguments: list[str]) -> None:
    program = (
        "import sys, r2no\n"
        "if sys.argv[1:]:\n"
        "    from r2no.cli.main import app\n"
        "    app(standalone_mode=False)\n"
        "assert not {'torch', 'xarray'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()


def test_the_package_has_what_it_lists_and_no_more() -> None:
    for name in r2no.__all__:
        assert getattr(r2no, name) is not None
    assert set(r2no.__all__) <= set(dir(r2no))
    packages = {module.name for module in pkgutil.iter_modules(r2no.__path__) if module.ispkg}
    assert packages - {"cli"} <= set(dir(r2no))
    with pytest.raises(AttributeError, match="adpat"):
        r2no.adpat  # noqa: B018
