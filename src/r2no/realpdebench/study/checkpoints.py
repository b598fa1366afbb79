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
from r2no.realpdebench.study.config import BenchConfig, Pair
from r2no.realpdebench.study.studies import BACKBONES, SourceName
from r2no.realpdebench.study.values import published
from r2no.realpdebench.systems import spellings
from r2no.runs.finish import SUMMARY

PARADIGM: dict[SourceName, str] = {"pretrained": "numerical", "finetune": "finetune"}
#: Released files that do not work, by the paper.
_BROKEN: tuple[tuple[str, SourceName], ...] = (("cno", "finetune"),)


def released(place: Pair) -> Path | None:
    """The released checkpoint of a pair, if it was given.

    Raises:
        ConfigError: for a file that the paper says does not work, unless it is accepted.
    """
    folder = place.config.checkpoints
    if folder is None:
        return None
    for name in spellings(place.backbone):
        for ending in ("safetensors", "pth"):
            path = folder / place.system / name / f"{PARADIGM[place.source]}.{ending}"
            if path.is_file():
                broken = (place.backbone, place.source) in _BROKEN
                if broken and not (place.config.accept or _own(path)):
                    raise _refusal(path, place)
                return path
    return None


def _own(path: Path) -> bool:
    """Whether r2no wrote this checkpoint."""
    return path.suffix == ".safetensors" and bool(read_checkpoint(path).context)


def _refusal(path: Path, place: Pair) -> ConfigError:
    printed = published("main").get((place.backbone, place.system), "finetuned", "rmse")
    return ConfigError(
        f"`{path}` is a released file of which the paper says that it does not work: its authors "
        f"finetuned {BACKBONES[place.backbone]} themselves (RMSE {printed:.5f} on {place.system}). "
        "Remove it to have the network finetuned here, put a checkpoint of `r2no bench train` in "
        "its place, or use it all the same with `--accept`; `r2no bench compare` then sets its "
        "RMSE beside the printed one."
    )


def check_sources(config: BenchConfig) -> None:
    """Refuse unusable checkpoints before any work is done."""
    for place in config.pairs():
        released(place)


def source_config(place: Pair, start: Path | None) -> TrainConfig:
    """The training that makes a checkpoint; its folder's name is a hash of all it depends on."""
    system, paradigm = place.system, PARADIGM[place.source]
    train = place.config.train(system, place.backbone, paradigm=paradigm, source=start)
    kind = "numerical" if place.source == "pretrained" else "real"
    key = storage.fingerprint(
        train.model_dump(mode="json", exclude={"data", "out", "source", "cache"}),
        None if start is None else storage.file_sha256(start),
        open_windows(train, system, kind, "train").fingerprint,
        open_windows(train, system, "real", "val").fingerprint,
    )
    folder = f"{system}-{place.backbone}-{paradigm}-{key[:12]}"
    return train.model_copy(update={"out": place.config.out / "sources" / folder})


def finished(train: TrainConfig) -> bool:
    """Whether the checkpoint of a training is there, as it was written."""
    summary, checkpoint = train.folder / SUMMARY, train.folder / CHECKPOINT
    if not (summary.is_file() and checkpoint.is_file()):
        return False
    expected = storage.read_json(summary)["files"][CHECKPOINT]
    return bool(storage.file_sha256(checkpoint) == expected)


def obtain_source(place: Pair, reporter: Reporter) -> Path:
    """The checkpoint a pair starts from; trains what is missing, and goes on where it stopped."""
    path = released(place)
    if path is not None:
        return path
    start = None
    if place.source == "finetune":
        start = obtain_source(place.starting_from("pretrained"), reporter)
    train = source_config(place, start)
    with sole_run(train.folder / SUMMARY):
        if not ranks.agreed(finished(train)):
            train.check()
            run_training(train, reporter=reporter)
    return train.folder / CHECKPOINT
