"""How long the two unit costs take on this machine: one module evaluation, one training step."""

from typing import NamedTuple

import torch

from r2no import devices
from r2no.adaptation import AdaptSettings
from r2no.adaptation.costs import Step, rollout_seconds, timed
from r2no.data.normalise import Normaliser
from r2no.data.window import collate
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.sources import build_network


class Speeds(NamedTuple):
    """Seconds per window: an evaluation of the module, an objective with its gradient."""

    evaluation: float
    training: float


def calibrate_repair(windows: RealPDEBench, settings: AdaptSettings) -> Speeds:
    """Time the repair module on one window of a system, the target in place of the source's."""
    fields, window = windows.fields, collate([windows[0]])
    normalisers = (
        Normaliser.identity(len(fields.history_channels)),
        Normaliser.identity(len(fields.channels)),
    )
    step = Step(lambda: window, window.target, normalisers, settings, fields)
    _, training = timed(step)
    place = devices.of_sums(devices.choose(settings.device))
    there = window.to(place)
    rollout = rollout_seconds(step.loops(), there, there.target)
    return Speeds(rollout / settings.repair.steps, training)


def calibrate_backbone(
    windows: RealPDEBench, backbone: str, *, small: bool, device: str | torch.device = "auto"
) -> float:
    """Seconds per window of a backbone's forecast with its gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        device = devices.choose(device)
        network = build_network(backbone, windows, small=small).to(device)
        history = torch.stack([windows[0].history] * 2).to(device)
        return timed(lambda: network(history).square().mean().backward())[1] / 2
