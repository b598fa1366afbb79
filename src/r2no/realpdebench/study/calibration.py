"""How long the two unit costs take on this machine: one module evaluation, one training step."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from r2no.adaptation import AdaptSettings
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.sources import build_network
from r2no.repair_loop import RepairUNet

_REPEATS = 2


class Speeds(NamedTuple):
    """Seconds per window: an evaluation of the module, an objective with its gradient."""

    evaluation: float
    training: float


def calibrate_repair(windows: RealPDEBench, settings: AdaptSettings) -> Speeds:
    """Time the repair module on one window of a system."""
    fields, repair = windows.fields, settings.repair
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = RepairUNet(
            fields.history_frames * len(fields.history_channels),
            fields.horizon_frames * len(fields.channels),
            repair.width,
            repair.depth,
            padding=repair.padding,
        )
    window = windows[0]
    history, target = window.history[None], window.target[None]
    fast, objective = module.folded(), repair.objective()

    def evaluate() -> None:
        with torch.no_grad():
            fast(history, target)

    def train() -> None:
        loss = objective(module, history, target, target, measured=fields.measured)
        loss.total.backward()

    return Speeds(_seconds(evaluate), _seconds(train, repeats=1))


def calibrate_backbone(windows: RealPDEBench, backbone: str, *, small: bool) -> float:
    """Seconds per window of a backbone's forecast with its gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(backbone, windows, small=small)
        history = torch.stack([windows[0].history] * 2)
        return _seconds(lambda: network(history).square().mean().backward(), repeats=1) / 2


def _seconds(action: Callable[[], None], repeats: int = _REPEATS) -> float:
    """Least time of a few, after one call to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
