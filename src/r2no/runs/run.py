"""A config as a run: open, adapt, save, score, report; score its artifact again; its folder.

A run resumes what it finds in its folder, if that is of the same data, source and repair modules.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2no import backbones, devices, operators, storage
from r2no._repr import brief_repr
from r2no._types import Operator
from r2no.adaptation import AdaptedModel, adapt, load, score_readouts
from r2no.adaptation.stored import read_manifest
from r2no.backbones.formats import read_checkpoint
from r2no.checks import changed, choice
from r2no.data import Measurements
from r2no.data import open as open_data
from r2no.data.splits import Splits
from r2no.data.window import Windows
from r2no.errors import ConfigError, FileDamagedError, FingerprintError, StorageError
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.runs.config import DataConfig, OwnConfig, SourceConfig
from r2no.runs.finish import ARTIFACT, SUMMARY, computed_on, finish, summarise
from r2no.training import Persistence, PhysicalOperator, load_operator

_BEGUN = "config.json"  # notes what the work in the folder is of


@dataclass(frozen=True, eq=False)
class Task:
    """What an adaptation works on."""

    measurements: Measurements
    splits: Splits
    source: Operator
    also: dict[str, Operator]

    __repr__ = brief_repr


def open_task(config: OwnConfig) -> Task:
    """Open everything a config names."""
    measurements = open_measurements(config.data)
    splits = split(config.data, measurements)
    also = {name: open_source(config, splits, other) for name, other in config.also.items()}
    return Task(measurements, splits, open_source(config, splits), also)


def open_measurements(config: DataConfig) -> Measurements:
    """Open the measurements that a config names, all or some recordings of them."""
    data = open_data(
        config.path,
        variables=config.variables,
        dims=config.dims,
        mask=config.mask,
        conditioning=config.conditioning,
        axes=config.axes,
        units=config.units,
        spacing=config.spacing,
        time_step=config.time_step,
        allow_sparse=config.allow_sparse,
    )
    return data if config.trajectories is None else data.subset(config.trajectories)


def split(config: DataConfig, measurements: Measurements) -> Splits:
    """Cut the measurements into train, fit and test, as the config says."""
    return measurements.split(
        config.history,
        config.horizon,
        stride=config.stride,
        measured=config.measured,
        **config.split.model_dump(),
    )


def open_source(
    config: OwnConfig, splits: Splits, described: SourceConfig | None = None
) -> Operator:
    """The config's source, or another operator it describes, in r2no's convention."""
    source = described or config.source
    if source.kind == "forecasts":
        return _forecasts(source, config.data, splits)
    if source.kind == "backbone":
        return _backbone(source)
    if source.kind == "exported":
        assert source.exported is not None
        network = operators.from_exported(source.exported, trust=source.trust)
    else:
        assert source.python is not None
        network = operators.from_python(source.python, source.checkpoint, **source.kwargs)
    if source.layout is None:
        operators.check_finite(network)
        return network
    return operators.wrap(
        network,
        source.layout,
        splits.fit.fields,
        one_step=source.one_step,
        frames=source.frames,
        normaliser=None if source.normaliser is None else source.normaliser.pair(),
        conditioning=source.conditioning,
    )


def _forecasts(source: SourceConfig, data: DataConfig, splits: Splits) -> Operator:
    """Stored forecasts for the windows of the splits; dimensions are named as in the data."""
    assert source.forecasts is not None
    whole = splits.whole
    if data.trajectories is not None:  # recordings that were left out have forecasts too
        whole = whole.numbered(data.trajectories)
    return operators.Forecasts.open(
        source.forecasts,
        whole,
        variables=source.variables,
        dims=source.dims,
        axes=source.axes,
        like=data.dims,
        allow_sparse=data.allow_sparse,
    )


def _backbone(source: SourceConfig) -> Operator:
    """From r2no's own file, which brings config and statistics, or from weights with both given."""
    name, path = source.backbone, source.checkpoint
    assert name is not None
    assert path is not None
    if not path.is_file():
        raise ConfigError(f"There is no checkpoint `{path}`.")
    stored = read_checkpoint(path).context.get("backbone")
    if stored is not None:
        if stored != name:
            raise ConfigError(f"`backbone` is {name}, but `{path}` is of {stored}.")
        return load_operator(path)[0]
    if not source.kwargs or source.normaliser is None:
        raise ConfigError(
            f"`{path}` holds weights alone. Give the network's config as `kwargs` and its "
            "`normaliser`."
        )
    network = backbones.build(name, config=source.kwargs)
    backbones.load_checkpoint(network, path)
    return PhysicalOperator(network, *source.normaliser.pair()).eval()


def run_own_adaptation(
    config: OwnConfig, *, reporter: Reporter = SILENT, command: str = ""
) -> Path:
    """Train on the train split, fit on the fit split, score on the test split.

    Returns the folder of the artifact, which brings its source where that is possible. Beside it
    are ``run.json`` (scores of persistence, source and model, the verdict and the config) and
    ``report.html``, which names ``command`` as its origin. A run that was stopped goes on; a second
    one into the same folder waits for the first.
    """
    devices.choose(config.adapt.device)  # one that is not there is refused before any work
    check_place(config.out)
    with sole_run(config.out):
        return _run(config, reporter, command)


def _run(config: OwnConfig, reporter: Reporter, command: str) -> Path:
    """Open, adapt, save, score and report, in a folder that nobody else writes."""
    check_begun(config)
    if replaced := replaces(config):
        reporter.say(replaced)
    task = open_task(config)
    reporter.say(task.measurements.describe())
    splits = task.splits
    reporter.say(f"Splits: {splits.describe()}.")
    dumped = config.model_dump(mode="json")
    storage.write_json(config.out / _BEGUN, dumped)

    def named(model: AdaptedModel) -> AdaptedModel:
        return replace(model, provenance={**model.provenance, "config": dumped})

    model = adapt(
        task.source,
        splits.train,
        splits.fit,
        also=task.also,
        settings=config.settings,
        folder=config.out / "work",
        improved=lambda better: named(better).save(config.out / ARTIFACT),
        reporter=reporter,
    )
    model = named(model)
    parts = {"train": splits.train, "fit": splits.fit, "test": splits.test}
    found = finish(model, parts, config.out / ARTIFACT, command=command, reporter=reporter)
    summarise(dumped, model, found)
    return found.artifact


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
    choice("split", name, ("train", "fit", "test"))
    provenance = read_manifest(folder)["provenance"]
    if "config" not in provenance:
        raise ConfigError(
            f"`{folder}` keeps no config of `r2no adapt`, so its data are not known. Score it in "
            "Python, with `r2no.load(...).evaluate(windows)`."
        )
    config = OwnConfig(**provenance["config"])
    measurements = open_measurements(config.data)
    splits = split(config.data, measurements)
    source = None  # the artifact brings everything but stored forecasts
    if config.source.kind == "forecasts":
        source = open_source(config, splits)
    stored = {name: one for name, one in config.also.items() if one.kind == "forecasts"}
    also = {name: open_source(config, splits, one) for name, one in stored.items()}
    model = load(folder, source, also=also, trust_source=trust_source, device=device)
    if batch_size is not None:
        model = replace(model, settings=changed(model.settings, batch_size=batch_size))
    reporter.say(f"Computing on {devices.describe(model.device)}.")
    windows: Windows = getattr(splits, name)
    scores, _ = score_readouts(
        model,
        windows,
        {"r2no": model.ensemble},
        operators={"persistence": Persistence.of(windows.fields)},
        reporter=reporter,
    )
    return {
        "scores": scores,
        "split": name,
        "windows": len(windows),
        "measured": [windows.fields.channels[c] for c in windows.fields.measured],
        "same_data": splits.fit.fingerprint == provenance["fit"],
        **computed_on(model.device),
    }


def check_place(out: Path) -> None:
    """Refuse a folder that cannot be made or written.

    Raises:
        StorageError: if a file is in the way, or there is no permission.
    """
    place = next(one for one in (out, *out.absolute().parents) if os.path.lexists(one))
    if not place.is_dir():
        raise StorageError(
            f"`out` is `{out}`, but `{place}` is a file, not a folder. Choose another `out`."
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(
            f"`out` is `{out}`, but you may not write in `{place}`. Choose another `out`."
        )


def check_begun(config: OwnConfig) -> None:
    """Refuse a folder with the work of other data, another source or other repair modules.

    Raises:
        FingerprintError: naming what differs.
    """
    before, now = _stored(config.out), config.model_dump(mode="json")
    if before is None or not (config.out / "work").is_dir():
        return
    different = [
        f"`{name}` was {old!r} and is {new!r}"
        for part in ("data", "source", "adapt.repair")
        for name, old, new in _differences(part, _under(before, part), _under(now, part))
    ]
    if different:
        raise FingerprintError(
            f"`{config.out}` holds the work of another config: {'; '.join(different[:3])}. Choose "
            f"another `out`, or remove `{config.out / 'work'}` to begin anew."
        )


def replaces(config: OwnConfig) -> str | None:
    """What to say if an artifact of other settings lies in the folder."""
    before, now = _stored(config.out), config.model_dump(mode="json")
    if before is None or not (config.out / ARTIFACT).exists():
        return None
    different = [name for name, _, _ in _differences("adapt", before.get("adapt"), now["adapt"])]
    if not different:
        return None
    return (
        f"`{config.out / ARTIFACT}` was made with other settings ({', '.join(different[:3])}) and "
        "will be replaced. Set `out` to another folder to keep it."
    )


def _stored(out: Path) -> dict[str, Any] | None:
    """The config that the folder was begun with."""
    for name, key in ((_BEGUN, None), (SUMMARY, "config")):
        if not (out / name).is_file():
            continue
        try:
            content = storage.read_json(out / name)
        except FileDamagedError:
            continue
        found = content if key is None or not isinstance(content, dict) else content.get(key)
        if isinstance(found, dict):
            return found
    return None


def _under(content: Any, path: str) -> Any:
    for part in path.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _differences(name: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Keys that both have with other values; a key that only one knows is of another version."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key in old
            if key in new
            for found in _differences(f"{name}.{key}", old[key], new[key])
        ]
    return [] if old == new else [(name, old, new)]
