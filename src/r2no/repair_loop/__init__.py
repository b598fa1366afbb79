"""The repair loop: the shared U-Net, its iteration and its training objective (M3, M4)."""

from r2no.repair_loop.module import RepairModule, RepairUNet, repair, repair_steps
from r2no.repair_loop.objective import (
    LossTerms,
    RepairObjective,
    completed_target,
    spectral_weight,
)

__all__ = [
    "LossTerms",
    "RepairModule",
    "RepairObjective",
    "RepairUNet",
    "completed_target",
    "repair",
    "repair_steps",
    "spectral_weight",
]
