"""Score an artifact of an adaptation of one's own on a split of its data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from r2no import devices
from r2no.adaptation import load, score_readouts
from r2no.adaptation.model import AdaptedModel, versions
from r2no.adaptation.stored import read_manifest
from r2no.data.window import Windows
from r2no.errors import ConfigError
from r2no.progress import SILENT, Reporter
from r2no.runs.config import OwnConfig
from r2no.runs.task import open_measurements, open_source, split
from r2no.settings import changed
from r2no.training import Persistence


def evaluate_own(
    folder: Path,
    *,
    name: str = "test",
    trust_source: bool = False,
    device: str = "auto",
    batch_size: int | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Scores of persistence, source and model on a split of the data the artifact was made from.

    ``batch_size`` is that of the artifact's settings unless it is given. The data are read anew; a
    fingerprint other than the artifact's is reported, not refused.

    Raises:
        ConfigError: for another name, or an artifact that ``r2no adapt`` did not make, since only
            that keeps the config.
    """
    if name not in ("train", "fit", "test"):
        raise ConfigError(f"`split` must be train, fit or test, but got {name!r}.")
    provenance = read_manifest(folder)["provenance"]
    if "config" not in provenance:
        raise ConfigError(
            f"`{folder}` keeps no config of `r2no adapt`, so its data are not known. Score it in "
            "Python, with `r2no.load(...).evaluate(windows)`."
        )
    config = OwnConfig(**provenance["config"])
    measurements = open_measurements(config.data)
    splits = split(config.data, measurements)
    source = None
    if config.source.kind == "forecasts":
        source = open_source(config, splits)
    model = load(folder, source, trust_source=trust_source, device=device)
    if batch_size is not None:
        model = replace(model, settings=changed(model.settings, batch_size=batch_size))
    reporter.say(f"Computing on {devices.describe(model.device)}.")
    windows: Windows = getattr(splits, name)
    return {
        "scores": score_split(model, windows, reporter=reporter),
        "split": name,
        "windows": len(windows),
        "measured": [windows.fields.channels[c] for c in windows.fields.measured],
        "same_data": splits.fit.fingerprint == provenance["fit"],
        "device": devices.describe(model.device),
        "versions": versions(),
    }


def score_split(
    model: AdaptedModel, windows: Windows, *, reporter: Reporter = SILENT
) -> dict[str, dict[str, float]]:
    """All metrics of persistence, source and model."""
    fields = windows.fields
    persistence = Persistence(fields.horizon_frames, len(fields.channels))
    scores, _ = score_readouts(
        model,
        windows,
        {"r2no": model.ensemble},
        operators={"persistence": persistence},
        reporter=reporter,
    )
    return scores
