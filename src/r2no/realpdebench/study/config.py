"""The declared study: which pairs, from which sources, with which choices; two presets."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, field_validator

from r2no import storage
from r2no._types import Extent
from r2no.adaptation import AdaptSettings, EnsembleSettings, RepairSettings
from r2no.checks import changed, choice, valid
from r2no.devices import Precision
from r2no.errors import ConfigError
from r2no.progress import Reporter
from r2no.realpdebench.protocol.config import BenchmarkConfig, Preset, TrainConfig, option
from r2no.realpdebench.protocol.dataset import RealPDEBench
from r2no.realpdebench.protocol.inputs import Source, open_source, open_windows
from r2no.realpdebench.study.studies import BACKBONES, SOURCES, SourceName
from r2no.realpdebench.systems import SPLITS, SYSTEMS
from r2no.training import TrainSettings
from r2no.training.schedule import Workers

#: Results of the first format hold other estimates of the theory; all are read.
FORMATS = ("r2no.bench/1", "r2no.bench/2")
FORMAT = FORMATS[-1]
BEYOND_FORMAT = "r2no.beyond/1"

_MINI_TRAIN = {
    "small": True,
    "updates": 8,
    "batch_size": 4,
    "eval_batch_size": 16,
    "validations": 2,
    "lr": 1e-3,
}


class BenchConfig(BaseModel, frozen=True, extra="forbid"):
    """Everything a study depends on; each is stored with the results.

    ``preset="paper"`` is the published setting, ``"mini"`` the same code on small synthetic data
    with small networks. ``checkpoints`` holds released weights, SYSTEM/BACKBONE/PARADIGM.pth, as
    ``r2no bench checkpoints fetch`` writes them; what is not there is trained, and a file of which
    the paper says that it does not work is used with ``accept`` only. ``dpot`` is DPOT's released
    backbone. ``compat``, ``extent``, ``norm`` and ``weight_exponent`` switch the ambiguous points
    of docs/reproduction.md; results of both norms stand beside each other below ``out``.
    """

    preset: Literal["paper", "mini"] = option(
        "paper (default), or mini: synthetic data, small networks.", "paper"
    )
    data: Path | None = option("Folder that holds one folder per system.")
    out: Path = option("Folder of the run; default bench-out.", Path("bench-out"))
    systems: tuple[str, ...] = option("Repeat for several; default all.", tuple(SYSTEMS))
    backbones: tuple[str, ...] = option("Repeat for several; default all.", tuple(BACKBONES))
    sources: tuple[SourceName, ...] = option("finetune, pretrained; default both.", SOURCES)
    pretrained_backbones: tuple[str, ...] = ("fno", "dpot_s")
    checkpoints: Path | None = option("Released weights, SYSTEM/BACKBONE/PARADIGM.pth.")
    dpot: Path | None = option("DPOT's released backbone.")
    members: int = option("Repair modules; published: 3.", 3, ge=1)
    seed: int = option("Of the first repair module, one more each; published: 42.", 42, ge=0)
    batch_size: int = option("Windows per batch when not training.", 8, ge=1)
    compat: Literal["benchmark"] | None = option("benchmark: score as the benchmark does.")
    extent: Extent = option("corner (default) or ellipse.", "corner")
    norm: Literal["ortho", "forward"] = "ortho"
    weight_exponent: float = option("p of the window weight; published: 1.", 1.0, ge=0)
    statistics: str = option("exact, benchmark, or a file.", "exact")
    layout: Literal["auto", "arrow", "hdf5"] = "auto"
    checkpointing: bool = False
    accept: bool = option("Use released files known not to work.", False)
    beyond: bool = option("Also r2no's default fit, for `table beyond`.", False)
    device: str = option("Where to compute: auto, cpu, cuda:1, ...", "auto", exclude=True)
    workers: Workers = option(
        "Processes that read ahead in training: auto (default), 0, 2.", "auto", exclude=True
    )
    precision: Precision = option(
        "How networks multiply: float32 (default), tf32 or bf16.", "float32"
    )
    forecasts: Literal["keep", "drop"] = option(
        "Of the sources, on disk: keep (default), or drop once used.", "keep", exclude=True
    )

    @field_validator("systems")
    @classmethod
    def _known_systems(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(choice("system", value, tuple(SYSTEMS)) for value in values)

    @field_validator("backbones", "pretrained_backbones")
    @classmethod
    def _known_backbones(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(choice("backbone", value, tuple(BACKBONES)) for value in values)

    @classmethod
    def of(cls, **values: Any) -> "BenchConfig":
        """A config from options; wrong ones are a named error."""
        config = valid(cls, values, "The study")
        if config.preset == "paper" and config.data is None:
            raise ConfigError(
                "`preset=paper` needs the benchmark's data: give `--data ROOT` (fetch it with "
                "`r2no bench fetch`), or use `--preset mini`."
            )
        return config

    @property
    def root(self) -> Path:
        """Where the data are; those of the mini preset are written below ``out``."""
        return self.data or self.out / "data"

    def units(self) -> list[tuple[str, str]]:
        """(system, backbone), the units of work: their sources share checkpoints."""
        return [(system, backbone) for system in self.systems for backbone in self.backbones]

    def sources_of(self, backbone: str) -> tuple[SourceName, ...]:
        """The sources that are adapted for a backbone."""
        return tuple(
            source
            for source in self.sources
            if source == "finetune" or backbone in self.pretrained_backbones
        )

    def pairs(self) -> list["Pair"]:
        """All pairs, those of a unit one after another."""
        return [
            Pair(self, system, backbone, source)
            for system, backbone in self.units()
            for source in self.sources_of(backbone)
        ]

    def adapt(self) -> AdaptSettings:
        """Settings of the adaptation."""
        common: dict[str, Any] = {"norm": self.norm, "checkpointing": self.checkpointing}
        cells: dict[str, Any] = {"extent": self.extent, "weight_exponent": self.weight_exponent}
        if self.preset == "paper":
            repair = RepairSettings(train=TrainSettings(workers=self.workers), **common)
            ensemble = EnsembleSettings(cells="published", **cells)
        else:
            train = TrainSettings(
                epochs=None,
                updates=8,
                batch_size=8,
                lr=1e-3,
                schedule="cosine_update",
                validations=2,
                workers=self.workers,
            )
            repair = RepairSettings(width=4, depth=2, steps=4, train=train, **common)
            ensemble = EnsembleSettings(cells="published", radial=16, angular=4, **cells)
        return AdaptSettings(
            members=self.members,
            seed=self.seed,
            batch_size=self.batch_size,
            repair=repair,
            ensemble=ensemble,
            device=self.device,
            precision=self.precision,
            cache=self.forecasts,
        )

    def beyond_adapt(self) -> AdaptSettings:
        """The same modules with the default fit: all columns that cost nothing, nested cells."""
        published = self.adapt()
        kept = {"radial", "angular", "extent", "weight_exponent"}
        ensemble = EnsembleSettings(**published.ensemble.model_dump(include=kept))
        return changed(published, ensemble=ensemble)

    def windows(self, system: str) -> dict[str, RealPDEBench]:
        """The windows of the three real splits of a system, by their names."""
        reading = BenchmarkConfig(data=self.root, layout=self.layout)
        return {split: open_windows(reading, system, "real", split) for split in SPLITS}

    def benchmark(self, system: str, backbone: str) -> BenchmarkConfig:
        """How to read data and checkpoints of a pair."""
        return BenchmarkConfig(**self._reading(system, backbone), small=self.preset == "mini")

    def train(self, system: str, backbone: str, **more: Any) -> TrainConfig:
        """The published training of a backbone, or a very short one."""
        values = self._reading(system, backbone) | more
        values |= {"precision": self.precision, "workers": self.workers}
        if self.preset == "mini":
            values |= _MINI_TRAIN
        elif backbone == "dpot_s" and more.get("paradigm") == "numerical":
            values |= {"pretrained": self.dpot}
        return TrainConfig(**values)

    def _reading(self, system: str, backbone: str) -> dict[str, Any]:
        return {
            "data": self.root,
            "system": system,
            "backbone": backbone,
            "layout": self.layout,
            "statistics": self.statistics,
            "cache": self.out / "statistics",
            "device": self.device,
        }

    def settings_key(self) -> str:
        """Hash of the choices that all pairs of a table must share."""
        chosen = self.adapt().model_dump(mode="json")
        return storage.fingerprint(self.preset, self.compat, self.statistics, chosen)


@dataclass(frozen=True)
class Pair:
    """A pair and the files it owns."""

    config: BenchConfig
    system: str
    backbone: str
    source: SourceName

    @property
    def name(self) -> str:
        """What files and messages call the pair."""
        return f"{self.system}-{self.backbone}-{self.source}"

    def starting_from(self, source: SourceName) -> "Pair":
        """The pair of the same system and backbone with another source."""
        return replace(self, source=source)

    def published(self) -> Preset:
        """How long and in which batches its backbone is trained."""
        return self.config.train(self.system, self.backbone, paradigm="numerical").resolved()

    @property
    def result(self) -> Path:
        """Scores and everything else the tables read; those of the other norm have its name."""
        norm = "" if self.config.norm == "ortho" else f"-{self.config.norm}"
        return self.config.out / "results" / f"{self.name}{norm}.json"

    @property
    def fields(self) -> Path:
        """The fields that the qualitative figure shows."""
        return self.result.with_suffix(".safetensors")

    def key(self, checkpoint: Path, windows: dict[str, RealPDEBench]) -> str:
        """Hash of all that the adaptation depends on, the same for every format of results."""
        return storage.fingerprint(
            FORMATS[0],
            self.config.settings_key(),
            storage.file_sha256(checkpoint),
            [windows[split].fingerprint for split in SPLITS],
        )

    def folder(self, key: str) -> Path:
        """Where the adaptation of the pair is kept."""
        return self.config.out / "adapt" / f"{self.name}-{key[:12]}"

    def open(self, checkpoint: Path, reporter: Reporter) -> Source:
        """The operator that the pair adapts."""
        config = self.config.benchmark(self.system, self.backbone)
        return open_source(config, checkpoint, cache=config.cache, reporter=reporter)

    def is_scored(self, key: str) -> bool:
        """Whether the pair's result is there, of today's format, and belongs to this key."""
        if not (self.result.is_file() and self.fields.is_file()):
            return False
        found = storage.read_json(self.result)
        return (found.get("format"), found.get("key")) == (FORMAT, key)

    def is_done(self, key: str) -> bool:
        """Whether all that the pair is asked for is there."""
        beyond = not self.config.beyond or is_beyond_done(self.result, key)
        return self.is_scored(key) and beyond


def beyond_file(result: Path) -> Path:
    """The rows that the paper does not have, beside a pair's result."""
    return result.with_name(f"{result.stem}.beyond.json")


def is_beyond_done(result: Path, key: str) -> bool:
    """Whether these rows are there and belong to this key."""
    path = beyond_file(result)
    return path.is_file() and storage.read_json(path).get("key") == key
