"""One optimisation loop for backbones and repair modules, resumable in the middle of an epoch.

Everything a run depends on is either in its key (settings, data) or in its one state file: weights,
optimiser moments, random state, position, best score and running means. So a run that is killed
and started again ends in the same bits as one that was not. What was computed before the run and
may differ in its last bits on another machine, initial weights and normalisers, is compared with a
tolerance, so a run also goes on there.
"""

import contextlib
import csv
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from r2no import devices, ranks, storage
from r2no._repr import brief_repr
from r2no._types import Number, PathLike
from r2no.data.ahead import ahead
from r2no.errors import EmptySplitError, FingerprintError, NonFiniteError
from r2no.locks import sole_run
from r2no.progress import SILENT, Reporter
from r2no.training.distributed import Gradients, LossFunction
from r2no.training.schedule import Plan, TrainSettings

_STATE, _BEST, _LOG = "state.safetensors", "best.safetensors", "log"
_FORMAT = "r2no.training/2"
_SAME_BEGIN = 1e-4  # of a tensor's norm; rounding on another machine changes less
_SAVE_SHARE = 20  # training lasts at least so many times as long as saving

#: Score of the current weights, lower is better, alone or with other scores to log.
Validation = Callable[[], float | tuple[float, Mapping[str, float]]]
#: Reads the windows with these numbers in an epoch; a function of the two, in whatever process.
Read = Callable[[list[int], int], Any]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended; the module holds its best weights. ``losses`` has an entry per update."""

    best_score: float
    best_update: int
    updates: int
    log: list[dict[str, Number]]
    losses: list[float] = field(default_factory=list)

    __repr__ = brief_repr


@dataclass
class _State:
    """How far a run has got, and what it has seen."""

    update: int = 0
    best_score: float = float("inf")
    best_update: int = -1
    sums: dict[str, float] = field(default_factory=dict)
    counted: int = 0
    log: list[dict[str, Number]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def _numbers(numbers: list[int], epoch: int) -> list[int]:
    """The reader of a loss that reads by itself."""
    return numbers


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained, on which windows, and how it is judged.

    Attributes:
        module: Trained in place; a run that goes on must begin with the same weights.
        loss: Loss of a batch as ``read`` gives it, averaged over its windows.
        validate: Score of the current weights, lower is better; runs in evaluation mode. Other
            scores may come with it, as a pair, and go to the log.
        size: Number of training windows.
        key: Fingerprint of everything the run depends on besides its settings.
        read: Reads the windows with these numbers in this epoch, ahead of their use, in other
            processes too (``TrainSettings.workers``); without it ``loss`` gets the numbers.
        alike: Tensors that must be the same, but for rounding, for a run to go on.
        precision: How gradients multiply; ``loss`` itself decides how it does.
    """

    module: nn.Module
    loss: LossFunction
    validate: Validation
    size: int
    key: str
    read: Read = _numbers
    alike: Sequence[Tensor] = ()
    precision: devices.Precision = "float32"

    def __repr__(self) -> str:
        return f"Problem({type(self.module).__name__} on {self.size} windows)"

    @property
    def place(self) -> torch.device:
        """Where the module is."""
        return devices.of(self.module) or devices.CPU


def optimise(
    problem: Problem,
    settings: TrainSettings,
    *,
    folder: PathLike,
    title: str = "training",
    reporter: Reporter = SILENT,
    save_seconds: Number = 5.0,
) -> TrainResult:
    """Minimise the loss of a problem and leave the best weights in its module.

    Args:
        problem: What is trained.
        settings: How to optimise.
        folder: Where the state, the best weights and the log are kept.
        title: Shown with the progress.
        reporter: Where progress is shown.
        save_seconds: Time between two saves of the state, longer where saving itself is slow.

    Raises:
        NonFiniteError: if the loss or a score stops being finite.
        FingerprintError: if the folder belongs to another run.
        ProcessError: if a process that reads ahead is lost; the folder keeps the last good state.
    """
    if problem.size == 0:
        raise EmptySplitError("The training split holds no windows. Give at least one trajectory.")
    ranks.check_enough(problem.size)
    folder, module, place = Path(folder), problem.module, problem.place
    with devices.forked_random(place), devices.products(problem.precision, place):
        torch.manual_seed(settings.seed)
        with sole_run(folder):
            storage.remove_temporaries(folder)
            run = _Run(problem, settings, folder)
            run.advance(title, reporter, save_seconds)
    ranks.barrier()
    best, _ = storage.load_tensors(folder / _BEST)
    module.load_state_dict(best)
    module.eval()
    state = run.state
    return TrainResult(state.best_score, state.best_update, state.update, state.log, state.losses)


class _Run:
    """A problem on its way, from where the state in the folder leaves off."""

    def __init__(self, problem: Problem, settings: TrainSettings, folder: Path) -> None:
        self.problem, self.settings, self.folder = problem, settings, folder
        self.module, self.plan = problem.module, Plan(problem.size, settings)
        self.key = storage.fingerprint(problem.key, settings.model_dump(mode="json"))
        self.begin = _sketch([*self.module.state_dict().values(), *problem.alike])
        kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
        weights = self.module.parameters()
        self.optimiser = kind(weights, lr=settings.lr, weight_decay=settings.weight_decay)
        self.state = self._resumed()
        self.gradients = Gradients(self.module, problem.loss)

    def advance(self, title: str, reporter: Reporter, save_seconds: Number) -> None:
        """Run the updates that are left."""
        problem, settings, state, plan = self.problem, self.settings, self.state, self.plan
        total = settings.total_updates(plan.per_epoch)
        every = settings.validate_every(plan.per_epoch)
        last_save, pause = time.monotonic(), save_seconds
        if state.update >= total:
            return
        reads = problem.read is not _numbers
        batches = ahead(
            problem.read,
            (plan.own(update) for update in range(state.update, total)),
            workers=settings.workers if reads else 0,
            device=problem.place if reads else devices.CPU,
            say=reporter.say,
        )
        with reporter.step(title, total) as step, contextlib.closing(batches):
            step.advance(state.update)
            while state.update < total:
                self._update(next(batches))
                state.update += 1
                validated = state.update % every == 0 or state.update == total
                if validated:
                    self._validate()
                if validated or time.monotonic() - last_save > pause:
                    begun = time.monotonic()
                    self._save()
                    last_save = time.monotonic()
                    pause = max(save_seconds, _SAVE_SHARE * (last_save - begun))
                step.advance(1, self._note())

    def _update(self, batch: Any) -> None:
        """One step of the optimiser on a batch, of which each rank takes its share."""
        numbers, epoch = self.plan(self.state.update)
        self.module.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.lr_at(self.state.update, self.plan.per_epoch)
        self.optimiser.zero_grad(set_to_none=True)
        with devices.memory_named(len(numbers), self._attempt(numbers, epoch)):
            loss, terms = self.gradients(batch, numbers)
        self.state.losses.append(loss)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"The training loss became {loss} at update {self.state.update}. Lower `lr`, set "
                "`clip`, or check the data for extreme values; the last good state is in "
                f"`{self.folder}`."
            )
        if self.settings.clip > 0:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.settings.clip)
        self.optimiser.step()
        for name, value in terms.items():
            self.state.sums[name] = self.state.sums.get(name, 0.0) + value
        self.state.counted += 1

    def _attempt(self, numbers: list[int], epoch: int) -> Callable[[int], None]:
        """A step on fewer windows, to see whether it fits into memory."""

        def attempt(size: int) -> None:
            self.optimiser.zero_grad(set_to_none=True)
            self.gradients.attempt(self.problem.read(numbers[:size], epoch))

        return attempt

    def _validate(self) -> None:
        """Score the module, log it, and keep it if it is the best so far."""
        self.module.eval()
        with torch.no_grad():
            found = self.problem.validate()
        score, others = found if isinstance(found, tuple) else (float(found), {})
        if score != score or score == float("inf"):
            raise NonFiniteError(
                f"The validation score became {score} at update {self.state.update}. Lower `lr` "
                "or check the validation data."
            )
        state = self.state
        means = {name: value / state.counted for name, value in state.sums.items()}
        rate = self.settings.lr_at(state.update - 1, self.plan.per_epoch)
        row = {"update": state.update, "lr": rate, **means, "score": score, **others}
        state.log.append(row)
        state.sums, state.counted = {}, 0
        if score < state.best_score:
            state.best_score, state.best_update = score, state.update
            storage.save_tensors(self.folder / _BEST, self.module.state_dict())

    def _save(self) -> None:
        """Write everything that a resumed run needs to go on bit for bit."""
        if not ranks.is_main():
            return
        state = self.state
        tensors = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        moments = self.optimiser.state_dict()["state"]
        for number, entries in moments.items():
            for name, value in entries.items():
                tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
        tensors["random"] = torch.get_rng_state()
        own = devices.random_state(self.problem.place)
        if own is not None:
            tensors["random.device"] = own
        tensors["begin"] = self.begin
        tensors["losses"] = torch.tensor(state.losses, dtype=torch.float64)
        metadata = {"format": _FORMAT, "key": self.key, **vars(state)}
        del metadata["losses"]  # which are numbers
        metadata["best_score"] = state.best_score if state.best_update >= 0 else None
        storage.save_tensors(self.folder / _STATE, tensors, metadata)
        _write_log(self.folder, state.log)

    def _resumed(self) -> _State:
        """The folder's state, if any; module, optimiser and random generator follow it."""
        if not (self.folder / _STATE).exists():
            return _State()
        tensors, saved = storage.load_tensors(self.folder / _STATE)
        begin = tensors.get("begin", self.begin[:0])
        if saved.get("key") != self.key or not _same_begin(begin, self.begin):
            raise FingerprintError(
                f"`{self.folder}` holds a training run with other settings, data or initial "
                "weights. Give another folder, or delete this one to start over."
            )
        self.module.load_state_dict(_part(tensors, "module."))
        entries: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(tensors, "optimiser.").items():
            number, entry = name.split(".", 1)
            entries.setdefault(int(number), {})[entry] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": entries, "param_groups": groups})
        torch.set_rng_state(tensors["random"])
        if "random.device" in tensors and self.problem.place != devices.CPU:
            devices.set_random_state(self.problem.place, tensors["random.device"])
        known = {name: saved[name] for name in vars(_State()).keys() - {"losses"}}
        if known["best_score"] is None:
            known["best_score"] = float("inf")
        return _State(**known, losses=tensors.get("losses", torch.zeros(0)).tolist())

    def _note(self) -> str:
        state = self.state
        if not state.log:
            return ""
        return f"score {state.log[-1]['score']:.5g}, best {state.best_score:.5g}"


def _sketch(tensors: Sequence[Tensor]) -> Float[Tensor, " number"]:
    """A few numbers of each tensor: its size, its norm and sixteen values spread over it."""
    numbers: list[float] = []
    for tensor in tensors:
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        flat = plain.detach().reshape(-1).cpu().double()
        places = torch.linspace(0, max(len(flat) - 1, 0), 16).round().long()
        values = flat[places] if len(flat) else flat.new_zeros(16)
        numbers += [float(len(flat)), float(flat.norm()), *values.tolist()]
    return torch.tensor(numbers, dtype=torch.float64)


def _same_begin(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    scale = first.unflatten(0, (-1, 18))[:, 1:].abs().amax(1).repeat_interleave(18)
    return bool(((first - second).abs() <= _SAME_BEGIN * scale + 1e-12).all())


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: v for name, v in tensors.items() if name.startswith(prefix)}


def _write_log(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The log as JSON lines and as CSV, one row per validation."""
    lines = "".join(json.dumps(storage.strict_json(row), allow_nan=False) + "\n" for row in rows)
    storage.write_text(folder / f"{_LOG}.jsonl", lines)
    if rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        storage.write_text(folder / f"{_LOG}.csv", text.getvalue())
