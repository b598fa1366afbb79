"""Call the Python interface with odd shapes, types and values.

    python -m validation.attacks.api [--thin 1]

Each call must end in a named error or in a finite result. Calls that a signature would
refuse for any function (wrong number of arguments) are not counted. ``--thin N`` tries every Nth.
"""

import argparse
import itertools
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from validation.attacks.common import (
    FRAMES,
    GRID,
    SETTINGS,
    Tally,
    history,
    run_script,
    toy_model,
    toy_source,
    windows,
)

import r2no
from r2no.adaptation import AdaptedModel, EnsembleSettings, RepairSettings
from r2no.data import ArrayWindows
from r2no.metrics import Accumulator, evaluate
from r2no.training import TrainSettings

Trial = tuple[str, Callable[[], Any]]
SECONDS = 20  # per call
NAN = float("nan")
THINGS: dict[str, Any] = {
    "None": None, "text": "x", "bytes": b"x", "number": 3.5, "bool": True, "list": [], "dict": {},
    "object": object(), "function": len, "minus one": -1, "zero": 0, "NaN": NAN,
}  # fmt: skip


class Endless(Exception):
    """A call did not end."""


def _stop(*_: object) -> None:
    raise Endless


def sound(value: Any) -> bool:
    """Whether a result holds no NaN or infinity."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, (np.ndarray, xr.DataArray)):
        return bool(np.isfinite(np.asarray(value)).all())
    if isinstance(value, dict):
        return all(map(sound, value.values()))
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return True


def arrays(good: torch.Tensor) -> dict[str, Any]:
    """A tensor in other types, shapes and with other values."""
    broken = good.clone()
    broken[..., 0, 0] = NAN
    endless = good.clone()
    endless[..., 0, 0] = float("inf")
    return {
        "as it is": good, "numpy": good.numpy(), "float64": good.double(), "float16": good.half(),
        "int": good.int(), "bool": good.bool(), "complex": good.to(torch.complex64),
        "nested list": good.tolist(), "object array": good.numpy().astype(object),
        "text array": np.full(good.shape, "x"), "NaN": broken,
        "all NaN": torch.full_like(good, NAN), "infinite": endless, "1e30": good * 1e30,
        "1e-30": good * 1e-30, "no batch": good[0], "empty batch": good[:0],
        "an axis more": good[None], "flat": good.flatten(), "scalar": good.flatten()[0],
        "turned": good.transpose(1, 2), "channel first": good.movedim(-1, 1),
        "cut": good[..., :-1], "cut in space": good[..., :-1, :], "cut in time": good[:, 1:],
        "zero width": good[..., :0, :], "no channel": good[..., :0],
        "xarray": xr.DataArray(good.numpy()), "masked": np.ma.masked_less(good.numpy(), 0),
        "not contiguous": good.flip(1).mT.contiguous().mT, "expanded": good[:1].expand_as(good),
        "with gradient": good.clone().requires_grad_(), "big endian": good.numpy().astype(">f4"),
    }  # fmt: skip


def of_predict(model: AdaptedModel) -> Iterator[Trial]:
    """The history; and other methods of a model."""
    for name, value in {**arrays(history()), **THINGS}.items():
        yield f"predict({name})", partial(model.predict, value)
    for name, value in THINGS.items():
        yield f"derive({name})", partial(model.ensemble.derive, members=value)
        yield f"truncate({name})", partial(model.truncate, value)
        yield f"evaluate({name})", partial(model.evaluate, value)
        yield f"merge({name})", partial(model.merge, value)


def of_settings() -> Iterator[Trial]:
    """Settings of all kinds."""
    for kind, names in (
        (r2no.AdaptSettings, ("members", "seed", "batch_size", "jobs", "budget", "repair", "x")),
        (RepairSettings, ("width", "steps", "step_size", "padding", "norm")),
        (EnsembleSettings, ("cells", "radial", "ridge", "ridge_grid", "target", "extent")),
        (TrainSettings, ("epochs", "lr", "batch_size", "schedule")),
    ):  # fmt: skip
        for name, (thing, value) in itertools.product(names, THINGS.items()):
            yield f"{kind.__name__}({name}={thing})", partial(kind, **{name: value})


def of_adapt() -> Iterator[Trial]:
    """Arguments of adapt that are looked at before the work."""
    source, train, fit = toy_source(), windows(range(2)), windows(range(10, 14))
    adapt = partial(r2no.adapt, settings=SETTINGS)
    for name, value in THINGS.items():
        yield f"adapt(source={name})", partial(adapt, value, train, fit)
        yield f"adapt(train={name})", partial(adapt, source, value, fit)
        yield f"adapt(fit={name})", partial(adapt, source, train, value)
        for argument in ("members", "cells", "target", "budget", "settings", "normalisers"):
            if value is None or (argument, name) in {("members", "bool"), ("budget", "bool")}:
                continue  # as if it were not given; a run of its own
            options = {"settings": SETTINGS, argument: value}
            yield f"adapt({argument}={name})", partial(r2no.adapt, source, train, fit, **options)
    answers: dict[str, Callable[[torch.Tensor], Any]] = {
        "tuple": lambda h: (h,), "None": lambda h: None, "numpy": lambda h: h.numpy(),
        "cut": lambda h: h[:, 1:], "NaN": lambda h: h * NAN, "text": lambda h: "x",
        "random": torch.rand_like, "int": lambda h: h.int(),
        "complex": lambda h: h.to(torch.complex64),
    }  # fmt: skip
    for name, answer in answers.items():
        yield f"adapt(a source that answers {name})", partial(adapt, answer, train, fit)


def of_windows() -> Iterator[Trial]:
    """ArrayWindows and data.open."""
    good = torch.rand(30, 8, 12, 2, generator=torch.Generator().manual_seed(0))
    for name, value in {**arrays(good), **THINGS}.items():
        yield f"ArrayWindows([{name}])", lambda v=value: first(ArrayWindows([v], 4, 4))
        yield f"ArrayWindows({name})", lambda v=value: first(ArrayWindows(v, 4, 4))
        yield f"open({name})", lambda v=value: r2no.data.open(v).describe()
        yield f"open(u: {name})", lambda v=value: r2no.data.open({"u": v}).describe()
    for argument in (
        "history", "horizon", "stride", "channels", "measured", "conditioning", "mask", "units",
        "spacing", "time_step", "dtype",
    ):  # fmt: skip
        for name, value in THINGS.items():
            options = {"history": 4, "horizon": 4, argument: value}
            yield (
                f"ArrayWindows({argument}={name})",
                lambda o=options: first(ArrayWindows([good], **o)),
            )
    for argument in ("variables", "dims", "mask", "conditioning", "axes", "spacing", "time_step"):
        for name, value in THINGS.items():
            make = partial(r2no.data.open, good.numpy(), **{argument: value})
            yield f"open({argument}={name})", lambda m=make: m().describe()
    uneven = {"u": np.zeros((5, 4, 4)), "v": np.zeros((5, 3, 4))}
    yield "open(two grids)", lambda: r2no.data.open(uneven).describe()
    yield "select([])", lambda: r2no.data.open(good.numpy()).select([])
    yield "channels twice", lambda: ArrayWindows([good], 4, 4, channels=("u", "u"))
    yield "subset([])", lambda: ArrayWindows([good], 4, 4).subset([])


def first(made: ArrayWindows) -> torch.Tensor:
    """The history of the first window."""
    return made[0].history


def of_mathematics() -> Iterator[Trial]:
    """Cells, ensembles, repair modules and metrics."""
    for name, value in THINGS.items():
        yield f"polar({name})", partial(r2no.FourierCells.polar, value)
        yield f"polar(grid of {name})", partial(r2no.FourierCells.polar, (8, value))
        yield f"bands({name})", partial(r2no.FourierCells.bands, GRID, num_bands=value)
        for argument in ("radial", "angular", "extent"):
            yield (
                f"polar({argument}={name})",
                partial(r2no.FourierCells.polar, GRID, **{argument: value}),
            )
    cells = r2no.FourierCells.polar(GRID, radial=4, angular=4)
    source = torch.rand(6, FRAMES, *GRID, 2, generator=torch.Generator().manual_seed(1))
    iterates = source.expand(1, 2, *source.shape) + 0.1
    fitted = r2no.SpectralEnsemble(cells, ridge=1e-3, measured=(0, 1)).fit(
        [(source, iterates, source + 0.2)]
    )
    for name, value in {**arrays(source), **THINGS}.items():
        ensemble = partial(r2no.SpectralEnsemble, cells, ridge=1e-3, measured=(0, 1))
        yield (
            f"fit(source={name})",
            lambda e=ensemble, v=value: e().fit([(v, iterates, source)]).weights_,
        )
        yield (
            f"fit(target={name})",
            lambda e=ensemble, v=value: e().fit([(source, iterates, v)]).weights_,
        )
        if name not in ("all NaN", "infinite"):  # these are passed on, as documented
            yield f"predict of an ensemble({name})", partial(fitted.predict, value, iterates)
            yield f"repair({name})", lambda v=value: repaired(v, source)
        yield f"metrics({name})", lambda v=value: scores(v, source)
    for name, value in THINGS.items():
        for argument in ("ridge", "measured", "weight_exponent", "depths", "lead_groups"):
            options = {"ridge": 1e-3, "measured": (0, 1), argument: value}
            yield (
                f"SpectralEnsemble({argument}={name})",
                lambda o=options: (
                    r2no.SpectralEnsemble(cells, **o)
                    .fit([(source, iterates, source + 0.2)])
                    .weights_
                ),
            )
        yield f"SpectralEnsemble({name})", lambda v=value: r2no.SpectralEnsemble(v).fit([])
        yield f"fit({name})", lambda v=value: r2no.SpectralEnsemble(cells).fit(v).weights_
        yield f"merge({name})", partial(fitted.merge, value)
        yield f"derive(members={name})", partial(fitted.derive, members=value)
        yield f"RepairUNet({name})", partial(r2no.RepairUNet, value, 8, 4, 2)
        yield f"RepairUNet(width={name})", partial(r2no.RepairUNet, 8, 8, value, 2)
        yield f"RepairUNet(depth={name})", partial(r2no.RepairUNet, 8, 8, 4, value)
        yield f"Accumulator({name})", partial(Accumulator, measured=value)
        yield f"evaluate({name})", partial(evaluate, value, source, measured=2)


def repaired(history: Any, estimate: torch.Tensor) -> torch.Tensor:
    """A step of a fresh repair module."""
    module = r2no.RepairUNet(8, 8, 4, 2).eval()
    return r2no.repair(module, history, estimate, steps=1, step_size=0.1).detach()


def scores(prediction: Any, target: torch.Tensor) -> float:
    """A score of one batch; bands that this grid does not have are NaN."""
    metrics = Accumulator(measured=(0, 1))
    metrics.update(prediction, target)
    return metrics.compute()["rmse"]


def of_files(model: AdaptedModel, work: Path) -> Iterator[Trial]:
    """Save, load and export."""
    (work / "file").write_text("x")
    artifact = model.save(work / "a.r2no")
    for name, value in {
        **THINGS,
        "a file": work / "file",
        "below a file": work / "file" / "x",
    }.items():
        if isinstance(value, (str, bytes)):
            value = str(work / "odd") if isinstance(value, str) else value
        yield f"save({name})", lambda v=value: model.save(v)
        yield f"load({name})", lambda v=value: r2no.load(v)
        yield f"export({name})", lambda v=value: model.export(v)
        yield f"load(source={name})", lambda v=value: r2no.load(artifact, v).predict(history())
        yield f"SpectralEnsemble.load({name})", lambda v=value: r2no.SpectralEnsemble.load(v)


def attack(options: argparse.Namespace) -> list[Tally]:
    """One row per part of the interface."""
    model = toy_model()
    tallies = []
    signal.signal(signal.SIGALRM, _stop)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, trials in (
            ("predict and others of a model", of_predict(model)),
            ("settings", of_settings()),
            ("adapt", of_adapt()),
            ("windows and open", of_windows()),
            ("cells, ensemble, repair, metrics", of_mathematics()),
            ("save, load, export", of_files(model, Path(folder))),
        ):
            tally = Tally(f"Python API, odd arguments: {name}")
            for detail, action in itertools.islice(trials, 0, None, options.thin):
                signal.alarm(SECONDS)
                with tally.trial(detail):
                    tally.add("right" if sound(action()) else "wrong", detail)
                signal.alarm(0)
            tallies.append(tally)
    return tallies


if __name__ == "__main__":
    run_script(attack, thin=1)
