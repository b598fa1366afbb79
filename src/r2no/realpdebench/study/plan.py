"""Before starting: what a study takes and what is cached.

Per pair, in evaluations, minutes as timed on this machine, disk and memory; or per job of a
cluster, in GPU hours and disk, by arithmetic alone. Nothing is trained.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from r2no import devices
from r2no.adaptation import AdaptSettings
from r2no.adaptation.costs import (
    Step,
    columns,
    forecast_bytes,
    rollout_seconds,
    sums_bytes,
    timed,
    training_work,
)
from r2no.adaptation.stored import is_artifact
from r2no.data.normalise import Normaliser
from r2no.data.window import Fields, collate
from r2no.realpdebench.protocol.inputs import build_network
from r2no.realpdebench.protocol.run import CHECKPOINT
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.pair import check_sources, finished, released, source_config
from r2no.realpdebench.study.run import Job, jobs_of, noted, prepare_data
from r2no.realpdebench.study.sheets import Sheet, cells
from r2no.realpdebench.study.studies import BACKBONES, SYSTEM_NAMES, SourceName
from r2no.runs.finish import ARTIFACT

_TITLES = ("Backbone", "System", "Source", "checkpoint", "adaptation", "scores")
_TRAINING = 3  # a step with its gradient, in evaluations
_HALVES = 2  # groups of windows that a published fit keeps sums of
_NUMBERS = ("evaluations", "minutes", "disk MB")


@dataclass(frozen=True)
class PairPlan:
    """What one pair still needs; ``updates`` are of backbones, each of ``batch`` windows."""

    pair: Pair
    states: tuple[str, str, str]
    updates: int
    batch: int
    trained: int
    rolled: int
    disk: float


def plan_sheet(config: BenchConfig, *, jobs: int = 1, calibrate: bool = True) -> Sheet:
    """A row per pair and the totals; nothing is trained.

    Args:
        config: The study.
        jobs: Processes, among which the time is shared out.
        calibrate: Time one module evaluation and one training step per system on this machine.
    """
    check_sources(config)
    prepare_data(config)
    timer = _Timer(config) if calibrate else None
    rows, seconds, evaluations, disk = [], 0.0, 0, 0.0
    plans = [pair_plan(pair) for pair in config.pairs()]
    for plan in plans:
        pair = plan.pair
        cost = timer.seconds(plan) if timer else math.nan
        count = plan.trained * config.adapt().repair.steps + plan.rolled
        names = BACKBONES[pair.backbone], SYSTEM_NAMES[pair.system], pair.source
        minutes = f"{cost / 60:.1f}" if timer else "-"
        rows.append(cells(*names, *plan.states, count, minutes, f"{plan.disk / 2**20:.1f}"))
        seconds, evaluations, disk = seconds + cost, evaluations + count, disk + plan.disk
    done = sum(plan.states[2] == "cached" for plan in plans)
    notes = [
        f"{len(plans)} results, {done} cached; {evaluations:,} evaluations of the module to do.",
        f"Disk: {disk / 2**30:.2f} GB. Memory of a fit: {_memory(config) / 2**30:.2f} GB.",
    ]
    if timer:
        notes.append(
            f"Time: about {seconds / 3600 / jobs:.1f} h with {jobs} job(s) of the threads it was "
            "measured with, on this machine's CPU."
        )
    title = f"Plan, spectral norm {config.norm}"
    return Sheet(title, tuple(("", t) for t in (*_TITLES, *_NUMBERS)), tuple(rows), tuple(notes))


def pair_plan(pair: Pair) -> PairPlan:
    """What one pair still needs."""
    settings = pair.config.adapt()
    windows = pair.config.windows(pair.system)
    sizes = {split: len(one) for split, one in windows.items()}
    checkpoint, updates, batch, path = _checkpoint_state(pair)
    adaptation = scores = "to do"
    if path is not None:
        key = pair.key(path, windows)
        if is_artifact(pair.folder(key) / ARTIFACT):
            adaptation = "cached"
        scores = "cached" if pair.is_done(key) else "to do"
    todo = adaptation != "cached" and scores != "cached"
    trained, validated = _training(settings, sizes["train"], sizes["val"]) if todo else (0, 0)
    steps = settings.members * settings.repair.steps
    rolled = validated * settings.repair.steps
    rolled += steps * sizes["val"] * todo
    if scores != "cached":  # and the first member once more on the fit split, for its errors
        rolled += steps * sizes["test"] + settings.repair.steps * sizes["val"]
    disk = _disk(settings, windows["val"].fields, sizes) if todo else 0.0
    return PairPlan(pair, (checkpoint, adaptation, scores), updates, batch, trained, rolled, disk)


def _checkpoint_state(pair: Pair) -> tuple[str, int, int, Path | None]:
    """State, updates and batch of the trainings that are missing, and the file if it is there."""
    chain: tuple[SourceName, ...] = ("pretrained",)
    if pair.source == "finetune":
        chain = ("pretrained", "finetune")
    start: Path | None = None
    missing, batch = 0, 1
    given = released(pair)
    if given is not None:
        return "released", 0, 1, given
    for source in chain:
        one = pair.starting_from(source)
        path = released(one)
        if path is None and not missing:
            train = source_config(one, start)
            path = train.folder / CHECKPOINT if finished(train) else None
        if path is None:
            row = one.published()
            missing, batch = missing + row.updates, row.batch_size
        start = path
    return ("to train", missing, batch, None) if missing else ("cached", 0, batch, start)


def _training(settings: AdaptSettings, train: int, fit: int) -> tuple[int, int]:
    """Windows that all members train on, and windows they are validated on."""
    work = training_work(settings.repair.train, train)
    return settings.members * work.batch * work.updates, settings.members * work.validations * fit


def _disk(settings: AdaptSettings, fields: Fields, sizes: dict[str, int]) -> float:
    """Bytes of h_0 on train and fit, and of the sums."""
    kept = forecast_bytes(fields, sizes["train"] + sizes["val"])
    return kept + sums_bytes(settings, fields, groups=_HALVES) / 2


def _memory(config: BenchConfig) -> int:
    """Bytes of the sums, one derived copy of them, and the spectra of one batch of a fit."""
    settings, largest = config.adapt(), 0
    for system in config.systems:
        fields = config.windows(system)["val"].fields
        points = math.prod(fields.grid) * fields.horizon_frames * len(fields.measured)
        spectra = 4 * settings.batch_size * points * columns(settings, fields, groups=_HALVES)
        largest = max(largest, 2 * sums_bytes(settings, fields, groups=_HALVES) + spectra)
    return largest


class _Timer:
    """Seconds of plans on this machine, each unit cost measured once."""

    def __init__(self, config: BenchConfig) -> None:
        self._config, self._settings = config, config.adapt()
        self._repair, self._backbone = cache(self._time_repair), cache(self._time_backbone)

    def _time_repair(self, system: str) -> tuple[float, float]:
        """Seconds per window: an evaluation of the module, an objective with its gradient.

        Of one window, the target in place of the source's forecast.
        """
        windows = self._config.windows(system)["val"]
        fields, window = windows.fields, collate([windows[0]])
        normalisers = (
            Normaliser.identity(len(fields.history_channels)),
            Normaliser.identity(len(fields.channels)),
        )
        step = Step(lambda: window, window.target, normalisers, self._settings, fields)
        _, training = timed(step)
        there = window.to(devices.of_sums(devices.choose(self._settings.device)))
        rollout = rollout_seconds(step.loops(), there, there.target)
        return rollout / self._settings.repair.steps, training

    def _time_backbone(self, system: str, backbone: str) -> float:
        """Seconds per window of a backbone's forecast with its gradient."""
        windows = self._config.windows(system)["val"]
        device = devices.choose(self._config.device)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            small = self._config.preset == "mini"
            network = build_network(backbone, windows, small=small).to(device)
            history = torch.stack([windows[0].history] * 2).to(device)
            return timed(lambda: network(history).square().mean().backward())[1] / 2

    def seconds(self, plan: PairPlan) -> float:
        """What one pair takes, from the unit costs."""
        evaluation, training = self._repair(plan.pair.system)
        total = plan.trained * training + plan.rolled * evaluation
        if plan.updates:
            each = self._backbone(plan.pair.system, plan.pair.backbone)
            total += plan.updates * plan.batch * each
        return total


def plan_jobs(config: BenchConfig, *, tflops: float) -> dict[str, Any]:
    """Jobs with states, hours of a GPU that sustains ``tflops``, and GB; and what is left of both.

    Counted are products and convolutions of networks and repair modules; transforms are not.
    """
    check_sources(config)
    prepare_data(config)
    counter = _Counter(config)
    jobs = []
    for job in jobs_of(config):
        hours = counter.operations(job) / (tflops * 1e12 * 3600)
        state = "done" if noted(config, job).get("state") == "done" else "to do"
        row = {"name": job.name, "stage": job.stage, "after": list(job.after), "state": state}
        jobs.append({**row, "gpu_hours": hours, "disk_gb": counter.disk(job) / 1e9})
    left = [job for job in jobs if job["state"] != "done"]
    return {
        "norm": config.norm,
        "tflops": tflops,
        "jobs": jobs,
        "gpu_hours": sum(job["gpu_hours"] for job in left),
        "disk_gb": sum(job["disk_gb"] for job in left),
    }


class _Counter:
    """Operations and bytes of jobs; networks are run once each, without values."""

    def __init__(self, config: BenchConfig) -> None:
        self._config = config
        self._sizes = cache(self._sized)
        self._network, self._module = cache(self._of_network), cache(self._of_module)

    def _sized(self, system: str) -> tuple[Fields, dict[str, int]]:
        windows = self._config.windows(system)
        return windows["val"].fields, {split: len(one) for split, one in windows.items()}

    def operations(self, job: Job) -> float:
        """Floating point operations of a job."""
        if job.pair is None:
            return 0.0
        system, backbone = job.pair.system, job.pair.backbone
        fields, sizes = self._sizes(system)
        settings = self._config.adapt()
        if job.stage == "source":
            row = job.pair.published()
            return _TRAINING * row.updates * row.batch_size * self._network(system, backbone)
        if job.stage == "h0":
            return (sizes["train"] + sizes["val"]) * self._network(system, backbone)
        loop = settings.repair.steps * self._module(fields)
        if job.stage == "member":
            work = training_work(settings.repair.train, sizes["train"])
            trained = _TRAINING * work.updates * work.batch
            return (trained + work.validations * sizes["val"]) * loop
        rolled = settings.members * (sizes["val"] + sizes["test"]) + sizes["val"]
        return rolled * loop + sizes["test"] * self._network(system, backbone)

    def disk(self, job: Job) -> float:
        """Bytes of the forecasts that a job keeps, which are nearly all."""
        if job.stage != "h0" or job.pair is None:
            return 0.0
        fields, sizes = self._sizes(job.pair.system)
        return float(forecast_bytes(fields, sizes["train"] + sizes["val"]))

    def _of_network(self, system: str, backbone: str) -> float:
        windows = self._config.windows(system)["val"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = build_network(backbone, windows, small=self._config.preset == "mini")
        return _counted(network, windows[0].history[None])

    def _of_module(self, fields: Fields) -> float:
        module = self._config.adapt().module_for(fields)
        seen = torch.zeros(1, *fields.history_shape)
        return _counted(module, seen, torch.zeros(1, *fields.target_shape))


def _counted(network: nn.Module, *inputs: torch.Tensor) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(*inputs)
    return float(counter.get_total_flops())
