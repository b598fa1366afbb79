"""The demo: the whole method on the built-in wake, from simulation to a table and figures."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from r2no import backbones, devices, storage
from r2no._types import PathLike
from r2no.adaptation import (
    AdaptedModel,
    AdaptSettings,
    EnsembleSettings,
    RepairSettings,
    adapt,
    readouts,
)
from r2no.checks import changed
from r2no.data.normalise import fit_normalisers
from r2no.ensemble import DepthErrors, FittedEnsemble
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.report import plot_depth_bands, plot_fields, plot_retention
from r2no.runs.finish import Finished, computed_on, finish
from r2no.training import PhysicalOperator, TrainSettings, train_operator
from r2no.wake.dataset import WakeData, make_wake
from r2no.wake.runs import WakeSettings

_SLOW = ("unet", "transolver")  # seconds per update on one core, even when small


@dataclass(frozen=True)
class DemoSettings:
    """What a demo run depends on."""

    seed: int = 0
    members: int = 3
    quick: bool = False
    backbone: str = "fno"

    def tag(self) -> str:
        """Name of the work folder: other settings, other folder."""
        steps = (self.pretrain(), self.finetune(), self.adapt())
        dumped = [step.model_dump(mode="json") for step in steps]
        return storage.fingerprint(asdict(self), asdict(self.wake()), dumped)[:12]

    def wake(self) -> WakeSettings:
        """The wake in a smaller view than its default, so that two cores need minutes only."""
        full = WakeSettings.quick(self.seed) if self.quick else WakeSettings(self.seed)
        return replace(full, grid=(24, 48))

    def pretrain(self) -> TrainSettings:
        """Pretraining on the simulated wake."""
        return self._backbone(updates=40 if self.quick else 240, lr=4e-3)

    def finetune(self) -> TrainSettings:
        """Finetuning on the stand-in for measurements."""
        return self._backbone(updates=30 if self.quick else 140, lr=2e-3)

    def _backbone(self, *, updates: int, lr: float) -> TrainSettings:
        return TrainSettings(
            epochs=None,
            updates=updates // 2 if self.backbone in _SLOW else updates,
            batch_size=4,
            lr=lr,
            final_lr=0.0,
            weight_decay=0.0,
            schedule="cosine_update",
            validations=5,
            seed=self.seed,
        )

    def adapt(self) -> AdaptSettings:
        """Repair modules sized for two cores; cells shrink as the fit split demands."""
        train = TrainSettings(
            epochs=None,
            updates=24 if self.quick else 200,
            batch_size=4,
            lr=2e-3,
            schedule="cosine_update",
            validations=3,
        )
        repair = RepairSettings(width=8, depth=3, train=train)
        return AdaptSettings(
            members=self.members,
            seed=42 + 100 * self.seed,
            jobs=max(1, self.members),
            repair=repair,
            ensemble=EnsembleSettings(radial=128, angular=16),
        )


def run_demo(
    out: PathLike,
    settings: DemoSettings | None = None,
    *,
    device: str | torch.device = "auto",
    reporter: Reporter = SILENT,
    command: str = "",
) -> dict[str, Any]:
    """Run every step that is not done yet and return the results, also in ``out/results.json``.

    The page ``out/report.html`` shows them; ``command`` is what it names as its origin.

    Steps keep their work under ``out``; a run that was killed goes on where it stopped and ends
    with the same numbers. A second run into ``out`` waits for the first.
    """
    out = Path(out)
    settings = settings or DemoSettings()
    with sole_run(out / "results.json"):
        place = devices.choose(device)
        wake, pretrained, finetuned, work = prepare(out, settings, reporter, place)
        adapted = partial(
            adapt,
            finetuned,
            wake.real_train,
            wake.real_fit,
            normalisers=finetuned.normalisers,
            folder=work,
            device=place,
            reporter=reporter,
        )
        model = adapted(settings=settings.adapt(), also={"pretrained": pretrained})
        published = _published(adapted, settings.adapt())
        found = finish(
            model,
            {"train": wake.real_train, "fit": wake.real_fit, "test": wake.real_test},
            out / "wake.r2no",
            more_readouts=published,
            title="Wake demo (measurements are a simulated stand-in)",
            command=command,
            reporter=reporter,
        )
        _figures(out, model, found)
        results = _results(settings, wake, model, {**readouts(model), **published}, found)
        storage.write_json(out / "results.json", results)
        return results


def _published(
    adapted: Callable[..., AdaptedModel], settings: AdaptSettings
) -> dict[str, FittedEnsemble]:
    """The paper's rows: all depths, no free columns, the published cells; one more pass to fit.

    The repair modules are those of the adapted model, from the same folder of work.
    """
    if not settings.members:
        return {}
    cells = changed(settings.ensemble, cells="published")
    paper = adapted(settings=changed(settings, ensemble=cells))
    return {"global": readouts(paper)["global"], "r2no_published": paper.ensemble}


def prepare(
    out: Path, settings: DemoSettings, reporter: Reporter, device: torch.device = devices.CPU
) -> tuple[WakeData, PhysicalOperator, PhysicalOperator, Path]:
    """The wake, the pretrained and the finetuned operator, and the folder of the work."""
    backbones.config_class(settings.backbone)  # a misspelt name is refused before the long work
    work = out / "work" / settings.tag()
    wake = _wake(settings, out / "work", reporter)
    return wake, *_operators(settings, wake, work, reporter, device), work


def _wake(settings: DemoSettings, folder: Path, reporter: Reporter) -> WakeData:
    with reporter.step("simulating the wake", 1.0) as step:
        done = 0.0

        def show(frames: int, total: int) -> None:
            nonlocal done
            step.advance(frames / total - done)
            done = frames / total

        return make_wake(settings.seed, cache=folder, progress=show, settings=settings.wake())


def _operators(
    settings: DemoSettings, wake: WakeData, work: Path, reporter: Reporter, device: torch.device
) -> tuple[PhysicalOperator, PhysicalOperator]:
    """The backbone pretrained on the simulation, and its copy finetuned on the stand-in."""
    fields = wake.numerical_train.fields
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        config = backbones.small_config(
            settings.backbone,
            shape_in=fields.history_shape,
            shape_out=fields.target_shape,
        )
        network = backbones.build(settings.backbone, config=config)
    pretrained = PhysicalOperator(network, *fit_normalisers(wake.numerical_train)).to(device)
    train_operator(
        pretrained,
        wake.numerical_train,
        wake.numerical_val,
        settings.pretrain(),
        folder=work / "pretrain",
        title=f"pretraining {settings.backbone} on the simulation",
        reporter=reporter,
    )
    finetuned = copy.deepcopy(pretrained)
    train_operator(
        finetuned,
        wake.real_train,
        wake.real_fit,
        settings.finetune(),
        folder=work / "finetune",
        title=f"finetuning {settings.backbone} on the stand-in",
        reporter=reporter,
    )
    return pretrained.eval(), finetuned.eval()


def _results(
    settings: DemoSettings,
    wake: WakeData,
    model: AdaptedModel,
    chosen: dict[str, FittedEnsemble],
    found: Finished,
) -> dict[str, Any]:
    """Everything the demo writes to ``results.json``."""
    ensembles = {
        name: {
            "radial": ensemble.cells.radial,
            "angular": ensemble.cells.angular,
            "occupied_cells": int(ensemble.cells.occupied.sum()),
            "columns": ensemble.columns.number,
            "lead_groups": ensemble.plan.lead_groups,
            "ridge": ensemble.ridge,
            "nested": None if ensemble.nested is None else ensemble.nested.decisions(),
            "verdict": None if ensemble.nested is None else asdict(ensemble.nested.verdict),
            "held_out_error": ensemble.held_out_score,
        }
        for name, ensemble in chosen.items()
        if ensemble.sums is not None
    }
    return {
        "readouts": found.scores,
        "seed": settings.seed,
        "settings": asdict(settings),
        "data": "built-in wake; `real` is a simulated stand-in for measurement, not measured data",
        "windows": {
            "train": len(wake.real_train),
            "fit": len(wake.real_fit),
            "test": len(wake.real_test),
        },
        **_by_depth(model, found.errors),
        "ensembles": ensembles,
        "contributions": found.contributions,
        **computed_on(model.device),
    }


def _by_depth(model: AdaptedModel, errors: DepthErrors) -> dict[str, Any]:
    """What the depths of the first member do; nothing without members."""
    if not model.loops.modules:
        return {"best_depth": None, "depth_composition_gap": None, "depth_change_by_band": []}
    return {
        "best_depth": model.fit_errors.best_depth(),
        "depth_composition_gap": errors.gap(),
        "depth_change_by_band": errors.change()[0].tolist(),
    }


def _figures(out: Path, model: AdaptedModel, found: Finished) -> None:
    """Fields of one window, errors by band and depth (with members), and the retention map."""
    titles = {"target": "target", "source": "finetuned", "irno": "IRNO", "r2no": "R2NO"}
    fields = found.watch.fields
    shown = {title: fields[role] for role, title in titles.items() if role in fields}
    last = model.fields.horizon_frames - 1
    frames = [0, last // 2, last]
    names = [model.fields.channels[channel] for channel in model.fields.measured]
    plot_fields(shown, out / "fields.png", channel=0, frames=frames, channel_name=names[0])
    if model.loops.modules:
        plot_depth_bands(found.errors, out / "depth_by_band.png", title="test split of the wake")
    plot_retention(model.ensemble, out / "retention.png", channel_names=names)
