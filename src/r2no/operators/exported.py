"""from_exported(): programs of ``torch.export`` as networks."""

from pathlib import Path

import torch
from torch import Tensor, nn

from r2no import storage
from r2no._repr import first_line
from r2no._types import PathLike
from r2no.errors import ConfigError, FileDamagedError
from r2no.operators.factory import RECIPE


class ExportedNetwork(nn.Module):
    """An exported program; it was traced in one mode, so ``train`` and ``eval`` do nothing."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, values: Tensor) -> Tensor:
        """What the program answers."""
        answer: Tensor = self.program(values)
        return answer

    def train(self, mode: bool = True) -> "ExportedNetwork":
        """Nothing: the program has no modes."""
        del mode
        return self


def from_exported(path: PathLike, *, trust: bool = False) -> nn.Module:
    """Open a program written by ``torch.export.save`` (``.pt2``).

    ``torch.export.load`` unpickles parts of the file (weights and constants that are marked so,
    and example inputs, where it falls back to ``weights_only=False``), and evaluates the
    expressions of its shapes. So a file from a stranger can run any code, and it is opened only
    with ``trust=True``. Weights in safetensors with :func:`from_python` need no such trust.

    Raises:
        ConfigError: without ``trust=True``, or if there is no such file.
        FileDamagedError: if it is not an exported program.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no exported program `{path}`.")
    if not trust:
        raise ConfigError(
            f"Opening `{path}` can run code that is in it, since PyTorch unpickles parts of "
            "exported programs. If you made the file or trust who did, pass `trust=True` "
            "(`trust: true` in a config)."
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # the reader raises whatever the archive's parts make it
        reason = first_line(error)
        raise FileDamagedError(
            f"`{path}` is not an exported program, or damaged: {reason}. Write it again with "
            "`torch.export.save`."
        ) from error
    network = ExportedNetwork(program.module())
    sha256 = storage.file_sha256(path)
    setattr(network, RECIPE, {"kind": "exported", "path": str(path), "sha256": sha256})
    return network
