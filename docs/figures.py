"""Figures and the example report of the site, from toy data in seconds; called by conf.py."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import road
import torch
import toy
from mynet import Forecaster

import r2no
from r2no.data.gaps import fill_gaps
from r2no.report import plot_depth_bands, plot_fields, plot_retention, write_report
from r2no.training import Persistence

#: What `make` leaves behind, as the pages name it.
FIGURES = ("retention.png", "fields.png", "depth.png", "layers.png")
REPORT = "example-report.html"


def make(build: Path) -> None:
    """Write the figures into ``build/figures`` and the report into ``build/extra``, once."""
    shown, extra = build / "figures", build / "extra"
    wanted = [*(shown / name for name in FIGURES), extra / REPORT]
    if all(path.exists() for path in wanted):
        return
    for folder in (shown, extra):
        folder.mkdir(parents=True, exist_ok=True)
    with _one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toy.main(build)
        model, splits = _adapted(build)
        window = splits.test[0]
        history = window.history[None]
        fields = {
            "measured": fill_gaps(window.target, window.mask),
            "source": model.source(history)[0],
            "r2no": model.predict(history)[0],
        }
        plot_retention(model.ensemble, shown / "retention.png", channel_names=("u", "v"))
        plot_fields(fields, shown / "fields.png", channel=0, frames=(0, 3), channel_name="u, m/s")
        road.draw(shown / "layers.png")
        plot_depth_bands(model.fit_errors, shown / "depth.png", title="toy data, fit split")
        persistence = {"persistence": Persistence(4, 2)}
        write_report(
            model, extra / REPORT, splits.test, operators=persistence, title="Toy waves (example)"
        )


def _adapted(folder: Path) -> tuple[r2no.AdaptedModel, r2no.data.Splits]:
    splits = r2no.data.open(folder / "piv.nc").split(history=4, horizon=4, stride=4)
    network = Forecaster()
    network.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    source = r2no.operators.wrap(network, "B (T C) H W", splits.fit.fields)
    settings = r2no.AdaptSettings(
        members=2,
        repair={"width": 8, "depth": 2, "steps": 6, "train": {"epochs": 8, "lr": 3e-3}},
        ensemble={"radial": 8, "angular": 8},
    )
    return r2no.adapt(source, splits.train, splits.fit, settings=settings), splits


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
