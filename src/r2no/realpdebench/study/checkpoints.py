"""Checkpoints of a pair: released ones where given, else trained once and kept by content."""

from pathlib import Path

from r2no import ranks, storage
from r2no.backbones.formats import read_checkpoint
from r2no.errors import ConfigError
from r2no.locks import sole_run
from r2no.progress import Reporter
from r2no.realpdebench.protocol.config import TrainConfig
from r2no.realpdebench.protocol.inputs import open_windows
from r2no.realpdebench.protocol.run import CHECKPOINT, run_training
from r2no.realpdebench.study.config import BenchConfig
from r2no.realpdebench.study.studies import BACKBONES, SourceName
from r2no.realpdebench.study.values import published
from r2no.realpdebench.systems import spellings
from r2no.runs.finish import SUMMARY

PARADIGM: dict[SourceName, str] = {"pretrained": "numerical", "finetune": "finetune"}
#: Released files that do not work, by the paper.
_BROKEN: tuple[tuple[str, SourceName], ...] = (("cno", "finetune"),)


def released(config: BenchConfig, system: str, backbone: str, source: SourceName) -> Path | None:
    """The released checkpoint of a pair, if it was given.

    Raises:
        ConfigError: for a file that the paper says does not work, unless it is accepted.
    """
    if config.checkpoints is None:
        return None
    for name in spellings(backbone):
        for ending in ("safetensors", "pth"):
            path = config.checkpoints / system / name / f"{PARADIGM[source]}.{ending}"
            if path.is_file():
                if (backbone, source) in _BROKEN and not (config.accept or _own(path)):
                    raise _refusal(path, system, backbone)
                return path
    return None


def _own(path: Path) -> bool:
    """Whether r2no wrote this checkpoint."""
    return path.suffix == ".safetensors" and bool(read_checkpoint(path).context)


def _refusal(path: Path, system: str, backbone: str) -> ConfigError:
    printed = published("main").get((backbone, system), "finetuned", "rmse")
    return ConfigError(
        f"`{path}` is a released file of which the paper says that it does not work: its authors "
        f"finetuned {BACKBONES[backbone]} themselves (RMSE {printed:.5f} on {system}). Remove it "
        "to have the network finetuned here, put a checkpoint of `r2no bench train` in its place, "
        "or use it all the same with `--accept`; `r2no bench compare` then sets its RMSE beside "
        "the printed one."
    )


def check_sources(config: BenchConfig) -> None:
    """Refuse unusable checkpoints before any work is done."""
    for system, backbone in config.units():
        for source in config.sources_of(backbone):
            released(config, system, backbone, source)


def source_config(
    config: BenchConfig, system: str, backbone: str, source: SourceName, start: Path | None
) -> TrainConfig:
    """The training that makes a checkpoint; its folder's name is a hash of all it depends on."""
    train = config.train(system, backbone, paradigm=PARADIGM[source], source=start)
    kind = "numerical" if source == "pretrained" else "real"
    key = storage.fingerprint(
        train.model_dump(mode="json", exclude={"data", "out", "source", "cache"}),
        None if start is None else storage.file_sha256(start),
        open_windows(train, system, kind, "train").fingerprint,
        open_windows(train, system, "real", "val").fingerprint,
    )
    folder = f"{system}-{backbone}-{PARADIGM[source]}-{key[:12]}"
    return train.model_copy(update={"out": config.out / "sources" / folder})


def finished(train: TrainConfig) -> bool:
    """Whether the checkpoint of a training is there, as it was written."""
    summary, checkpoint = train.folder / SUMMARY, train.folder / CHECKPOINT
    if not (summary.is_file() and checkpoint.is_file()):
        return False
    expected = storage.read_json(summary)["files"][CHECKPOINT]
    return bool(storage.file_sha256(checkpoint) == expected)


def obtain_source(
    config: BenchConfig, system: str, backbone: str, source: SourceName, reporter: Reporter
) -> Path:
    """The checkpoint a pair starts from; trains what is missing, and goes on where it stopped."""
    path = released(config, system, backbone, source)
    if path is not None:
        return path
    start = None
    if source == "finetune":
        start = obtain_source(config, system, backbone, "pretrained", reporter)
    train = source_config(config, system, backbone, source, start)
    with sole_run(train.folder / SUMMARY):
        if not ranks.agreed(finished(train)):
            train.check()
            run_training(train, reporter=reporter)
    return train.folder / CHECKPOINT
