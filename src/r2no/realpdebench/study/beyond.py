"""Beyond the paper: the default of :func:`r2no.adapt` on a pair, beside the published fit.

The modules are those of the paper's pass, found in its work folder; one pass over the fit split and
one over the test split come on top. Nothing of the paper's result changes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2no import storage
from r2no.adaptation import adapt, readouts
from r2no.adaptation.named_readouts import further_forecasts, roll_out
from r2no.data.window import Windows
from r2no.progress import Reporter
from r2no.realpdebench.protocol.evaluation import Protocol
from r2no.realpdebench.protocol.sources import Source
from r2no.realpdebench.study.config import Pair
from r2no.scoring import Metrics, score
from r2no.training import Persistence

FORMAT = "r2no.beyond/1"


def beyond_file(result: Path) -> Path:
    """Beside the paper's result of a pair."""
    return result.with_name(f"{result.stem}.beyond.json")


def is_beyond_done(result: Path, key: str) -> bool:
    """Whether the rows of a pair are there and belong to this key."""
    path = beyond_file(result)
    return path.is_file() and storage.read_json(path).get("key") == key


def run_beyond(
    place: Pair,
    key: str,
    source: Source,
    windows: Mapping[str, Windows],
    protocol: Protocol,
    reporter: Reporter,
) -> None:
    """Fit and score a pair with all columns that cost nothing, and write the rows."""
    model = adapt(
        source.operator,
        windows["train"],
        windows["val"],
        settings=place.config.beyond_adapt(),
        normalisers=source.normalisers,
        folder=place.folder(key) / "work",
        reporter=reporter,
    )
    fields, members = model.fields, len(model.loops.modules)
    names = {f"r2no_m{members}": "beyond", "r2no_m1": "beyond_m1", "r2no_m0": "beyond_m0"}
    found = readouts(model)
    chosen = {new: found[old] for old, new in names.items() if old in found}
    others = {"persistence": Persistence(fields.horizon_frames, len(fields.channels))}
    metrics = Metrics(fields.measured, scored=protocol.scored)
    score(
        roll_out(model, {**chosen, **further_forecasts(model)}, others),
        windows["test"],
        [metrics],
        batch_size=model.settings.batch_size,
        title="beyond the paper on test",
        reporter=reporter,
    )
    content: dict[str, Any] = {"verdict": str(model.verdict), "readouts": metrics.compute()}
    storage.write_json(beyond_file(place.result), {"format": FORMAT, "key": key, **content})


def with_beyond(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """A pair's result with the rows of the file beside it, where there is one of the same key."""
    if not is_beyond_done(path, content["key"]):
        return content
    more = storage.read_json(beyond_file(path))["readouts"]
    return content | {"readouts": {**more, **content["readouts"]}}
