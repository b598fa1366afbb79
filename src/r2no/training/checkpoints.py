"""An operator as one file: weights, network config, normalisers and history; or the benchmark's.

r2no's own file rebuilds the operator without anything else. The benchmark's dictionary holds the
weights and the history of training, but neither config nor statistics.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2no import backbones
from r2no._types import PathLike
from r2no.backbones.formats import (
    Checkpoint,
    read_checkpoint,
    write_benchmark,
    write_safetensors,
)
from r2no.data.normalise import Normaliser
from r2no.errors import ConfigError, FileDamagedError
from r2no.training.engine import TrainResult
from r2no.training.operator import PhysicalOperator

#: The benchmark's name of each validation score, and ours.
_SCORES = {
    "normalized_mse": "normalised_mse",
    "rmse": "rmse",
    "mae": "mae",
    "rel_l2_error": "rel_l2",
    "r2": "r2",
    "ke_error": "ke_error",
    "f_error": "frmse",
    **{f"{band}_f_error": f"frmse_{band}" for band in ("low", "mid", "high")},
    **{f"rel_{band}_f_error": f"rel_frmse_{band}" for band in ("low", "mid", "high")},
    "freq_error": "freq_error",
}


def save_operator(
    operator: PhysicalOperator,
    path: PathLike,
    *,
    backbone: str,
    history: Mapping[str, Any] | None = None,
    **context: Any,
) -> Path:
    """Write an operator whose network came from ``backbones.build``.

    Args:
        operator: The network with its normalisers.
        path: ``.safetensors`` for r2no's format, ``.pth`` for the benchmark's dictionary.
        backbone: Registry name of the network.
        history: Of training, see :func:`benchmark_history`.
        context: JSON-able notes that go into r2no's format, such as the system.
    """
    path = Path(path)
    weights = operator.network.state_dict()
    if path.suffix in (".pth", ".pt"):
        write_benchmark(Checkpoint(path, "benchmark", weights, history or {}), path)
        return path
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"`path` must end in .safetensors or .pth, but got `{path}`: the suffix chooses the "
            "format."
        )
    found: dict[str, Any] = {
        "backbone": backbone,
        "config": operator.network.config.model_dump(mode="json"),  # type: ignore[operator, union-attr]
        "normalisers": {
            "history": plain_normaliser(operator.history_normaliser),
            "target": plain_normaliser(operator.target_normaliser),
        },
        **context,
    }
    write_safetensors(Checkpoint(path, "safetensors", weights, history or {}, (), found), path)
    return path


def load_operator(path: PathLike) -> tuple[PhysicalOperator, dict[str, Any]]:
    """Rebuild the operator of a file in r2no's format; returns it and the file's notes.

    Raises:
        ConfigError: if the file holds weights only, such as the benchmark's.
        FileDamagedError: if it is damaged.
    """
    context = dict(read_checkpoint(path).context)
    if not context:
        raise ConfigError(
            f"`{path}` holds weights without a network config and statistics. Build the network, "
            "fill it with `backbones.load_checkpoint` and wrap it in `PhysicalOperator`."
        )
    try:
        normalisers = [
            normaliser_from_plain(context["normalisers"][side]) for side in ("history", "target")
        ]
        network = backbones.build(context["backbone"], config=context["config"])
    except (KeyError, TypeError) as error:
        raise FileDamagedError(f"The context of `{path}` lacks {error}. Write it again.") from error
    backbones.load_checkpoint(network, path)
    return PhysicalOperator(network, *normalisers).eval(), context


def benchmark_history(result: TrainResult) -> dict[str, Any]:
    """What the benchmark stores beside the weights, up to the update they are from."""
    rows = [row for row in result.log if row["update"] <= result.best_update]
    scores: dict[str, list[float | Tensor]] = {
        theirs: [_entry(theirs, float(row[ours])) for row in rows]
        for theirs, ours in _SCORES.items()
    }
    return {
        "train_losses": result.losses[: result.best_update],
        "val_losses": scores,
        "iteration": result.best_update,
        "best_iteration": result.best_update,
        "best_val_loss": torch.tensor(result.best_score),
    }


def plain_normaliser(normaliser: Normaliser) -> dict[str, list[float]]:
    """A normaliser as JSON."""
    return {"shift": normaliser.shift.tolist(), "scale": normaliser.scale.tolist()}


def normaliser_from_plain(content: Mapping[str, list[float]]) -> Normaliser:
    """Inverse of :func:`plain_normaliser`."""
    return Normaliser(torch.tensor(content["shift"]), torch.tensor(content["scale"]))


def _entry(name: str, value: float) -> float | Tensor:
    """Scores are 0-dimensional tensors there, the normalised loss is a number."""
    return value if name == "normalized_mse" else torch.tensor(value)
