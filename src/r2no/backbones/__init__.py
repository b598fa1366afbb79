"""Six pretrained operators, written so that RealPDEBench's released weights load strictly.

Every network maps (batch, time, height, width, channel) to the same layout in normalised units.
:func:`build` makes one of :func:`names`, :func:`load_checkpoint` fills it.
"""

from r2no.backbones.base import (
    build,
    config_class,
    names,
    published_config,
    small_config,
    systems,
)
from r2no.backbones.checkpoints import (
    CheckpointDescription,
    CheckpointRecord,
    PretrainingRecord,
    convert,
    describe,
    identify,
    import_dpot_pretraining,
    load_checkpoint,
)

__all__ = [
    "CheckpointDescription",
    "CheckpointRecord",
    "PretrainingRecord",
    "build",
    "config_class",
    "convert",
    "describe",
    "identify",
    "import_dpot_pretraining",
    "load_checkpoint",
    "names",
    "published_config",
    "small_config",
    "systems",
]
