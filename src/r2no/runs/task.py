"""A config opened: measurements, splits and source."""

from dataclasses import dataclass

from r2no import backbones, operators
from r2no._repr import brief_repr
from r2no._types import Operator
from r2no.backbones.formats import read_checkpoint
from r2no.data import Measurements
from r2no.data import open as open_data
from r2no.data.splits import Splits
from r2no.data.window import Fields
from r2no.errors import ConfigError
from r2no.runs.config import DataConfig, OwnConfig, SourceConfig
from r2no.training import PhysicalOperator, load_operator


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
    path = config.path if isinstance(config.path, str) else list(config.path)
    data = open_data(
        path,
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
    source, data, fields = described or config.source, config.data, splits.fit.fields
    if source.kind == "forecasts":
        return _forecasts(source, data, splits)
    if source.kind == "backbone":
        return _backbone(source, fields)
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
        fields,
        one_step=source.one_step,
        frames=source.frames,
        normaliser=None if source.normaliser is None else source.normaliser.pair(),
        conditioning=source.conditioning,
    )


def _forecasts(source: SourceConfig, data: DataConfig, splits: Splits) -> Operator:
    """Stored forecasts for the windows of the splits; dimensions are named as in the data."""
    assert source.forecasts is not None
    paths = source.forecasts if isinstance(source.forecasts, str) else list(source.forecasts)
    whole = splits.whole
    if data.trajectories is not None:  # recordings that were left out have forecasts too
        whole = whole.numbered(data.trajectories)
    return operators.Forecasts.open(
        paths,
        whole,
        variables=source.variables,
        dims=source.dims,
        axes=source.axes,
        like=data.dims,
        allow_sparse=data.allow_sparse,
    )


def _backbone(source: SourceConfig, fields: Fields) -> Operator:
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
