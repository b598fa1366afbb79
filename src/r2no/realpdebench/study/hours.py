"""Jobs of a study with their GPU hours and disk, by arithmetic: nothing is trained or timed."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from r2no.adaptation.costs import forecast_bytes, training_work
from r2no.data.window import Fields
from r2no.realpdebench.protocol.sources import build_network
from r2no.realpdebench.study.checkpoints import check_sources
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.graph import Job, jobs_of, noted
from r2no.realpdebench.study.run import prepare_data

_TRAINING = 3  # a step with its gradient, in evaluations


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
        system, backbone, _ = job.pair
        fields, sizes = self._sizes(system)
        settings = self._config.adapt()
        if job.stage == "source":
            row = self._config.train(system, backbone, paradigm="numerical").resolved()
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
        fields, sizes = self._sizes(job.pair[0])
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
