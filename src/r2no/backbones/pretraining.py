"""DPOT's public pre-training weights, as far as they fit a network of another shape."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from r2no._repr import brief_repr
from r2no._types import PathLike
from r2no.backbones.formats import read_checkpoint
from r2no.errors import CheckpointMismatchError
from r2no.storage import file_sha256
from r2no.torch_files import check_finite

_PREFIX = "dpot_model."


@dataclass(frozen=True)
class PretrainingRecord:
    """How much of a network came from a pre-training file."""

    path: str
    sha256: str
    loaded: tuple[str, ...]
    kept: tuple[str, ...]  # keys of the network that the file does not fit; fresh weights stay
    share: float  # of the network's values, from 0 to 1

    __repr__ = brief_repr


def import_dpot_pretraining(net: nn.Module, path: PathLike) -> PretrainingRecord:
    """Fill a DPOT network with those weights of ``model_S.pth`` whose name, shape and type agree.

    The file is that of ``hzk17/DPOT`` on Hugging Face. About half of a 20-frame network fits,
    since the sum over time was trained for 10 frames, and nearly all of a 10-frame one. Training
    settings in the file are dropped unread; any other object in it is refused, and none is run.

    Raises:
        CheckpointMismatchError: if nothing fits.
        FileDamagedError: if the file is damaged or asks for code.
        NonFiniteError: if a weight that fits is NaN or infinite.
    """
    stored = {_own_name(key): value for key, value in read_checkpoint(path).weights.items()}
    own = net.state_dict()
    fitting = {
        key: stored[key]
        for key, value in own.items()
        if key in stored and (stored[key].shape, stored[key].dtype) == (value.shape, value.dtype)
    }
    if not fitting:
        raise CheckpointMismatchError(
            f"No weight in `{path}` fits the network by name, shape and type. "
            'Build the network with `build("dpot_s", ...)`, and check that the file is DPOT-S.'
        )
    check_finite(fitting, f"`{path}`")
    net.load_state_dict(fitting, strict=False)
    return PretrainingRecord(
        path=str(path),
        sha256=file_sha256(path),
        loaded=tuple(fitting),
        kept=tuple(key for key in own if key not in fitting),
        share=_values(fitting) / _values(own),
    )


def _own_name(key: str) -> str:
    """The name of a weight here: one prefix of distributed training off, that of DPOT on."""
    return _PREFIX + key.removeprefix("module.").removeprefix(_PREFIX)


def _values(weights: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in weights.values())
