"""RealPDEBench as a data set of windows: measured or simulated, Arrow or HDF5."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from r2no._types import Number, PathLike
from r2no.checks import choice, whole
from r2no.data.window import Fields, Window, with_constants
from r2no.errors import ConfigError, NonFiniteError
from r2no.realpdebench.files.arrow import ArrowTrajectories
from r2no.realpdebench.files.folder import Folder, check_version
from r2no.realpdebench.files.hdf5 import HDF5Trajectories
from r2no.realpdebench.files.index import Index, WindowStart
from r2no.realpdebench.files.trajectories import Trajectories
from r2no.realpdebench.systems import (
    KINDS,
    LAYOUTS,
    SPLITS,
    TEST_MODES,
    System,
    lookup,
)
from r2no.storage import fingerprint


class RealPDEBench(Dataset[Window]):
    """Windows of one system, kind and split, read from memory-mapped files.

    Only the frames and arrays of a window are touched. Channels that a kind does not measure are
    zero. Of simulated windows (``kind="numerical"``), a share ``mask_prob`` has all unmeasured
    channels zeroed and ``noise_scale`` multiplies Gaussian noise x + x n s; both draws depend on
    (``seed``, epoch, window number) alone, see :meth:`set_epoch`. For ``controlled_cylinder`` the
    Reynolds number and the control frequency follow as constant channels of the history.

    Pickles without open files and opens them again in each worker process.

    Args:
        root: folder that holds one folder per system.
        system: a name, or a :class:`System` with changed settings.
        kind: ``real`` or ``numerical``.
        split: ``train``, ``val`` or ``test``, as released.
        layout: ``arrow``, ``hdf5``, or ``auto`` for the first that is there.
        history_frames: frames of the history; default as released.
        horizon_frames: frames of one forecast block; default as released.
        autoregressive: number of blocks in the target, N. With N > 1, val and test keep only
            windows that end before the nominal last frame.
        stride: keep every so many-th grid point; default as released for the kind.
        frames: nominal number of frames of a trajectory; default as released.
        mask_prob: default as released, 0.5 or 0.8; without effect on real data.
        noise_scale: without effect on real data.
        seed: of masking and noise; a generator gives one draw from its stream.
        test_mode: which trajectories val and test keep: ``all``, ``in_dist``, ``out_dist``,
            ``seen`` or ``unseen``.
        incomplete: ``raise`` when listed windows lack their trajectory or run past its end, or
            ``skip`` them with a warning.
        exclude: trajectories to leave out.
        split_seed: for data without window lists, see :func:`draw_splits`.
    """

    def __init__(
        self,
        root: PathLike,
        system: str | System,
        kind: str = "real",
        split: str = "train",
        *,
        layout: str = "auto",
        history_frames: int | None = None,
        horizon_frames: int | None = None,
        autoregressive: int = 1,
        stride: int | None = None,
        frames: int | None = None,
        mask_prob: Number | None = None,
        noise_scale: Number = 0.0,
        seed: int | torch.Generator = 0,
        test_mode: str = "all",
        incomplete: str = "raise",
        exclude: Sequence[str] = (),
        split_seed: int = 0,
    ) -> None:
        root = Path(root)
        self.kind = choice("kind", kind, KINDS)
        self.split = choice("split", split, SPLITS)
        choice("layout", layout, LAYOUTS)
        choice("incomplete", incomplete, ("raise", "skip"))
        self.test_mode = choice("test_mode", test_mode, TEST_MODES)
        known = lookup(system, root) if isinstance(system, str) else system
        self.system = known.changed(
            kind,
            history_frames=history_frames,
            horizon_frames=horizon_frames,
            stride=stride,
            frames=frames,
            mask_prob=mask_prob,
        )
        self.autoregressive = whole("autoregressive", autoregressive)
        if not 0 <= noise_scale < float("inf"):
            raise ConfigError(
                f"`noise_scale` must be finite and not negative, but got {noise_scale}."
            )
        self.noise_scale = noise_scale
        self.seed = _plain_seed(seed)
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers see it change
        check_version(root)
        folder = Folder(root, self.system.name)
        self.layout = folder.detect(kind, layout)
        self.trajectories = open_trajectories(folder, self.system, kind, self.layout)
        self.names = self.trajectories.names
        self.index = Index(folder, self.system, kind, self.layout, self.names, split_seed)
        self.pairs = self.trajectories.complete(
            self._listed(set(exclude)), self.length, skip=incomplete == "skip"
        )
        self.fields = self._fields()

    @property
    def length(self) -> int:
        """Frames of a window: history and every block of the target."""
        return self.system.history_frames + self.autoregressive * self.system.horizon_frames

    @property
    def stride(self) -> int:
        """Every so many-th grid point is kept."""
        return self.system.stride[KINDS.index(self.kind)]

    @property
    def epoch(self) -> int:
        """Epoch whose masks and noise are drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw new masks and noise from now on, also in workers that are already running."""
        self._epoch.fill_(epoch)

    @cached_property
    def origins(self) -> Int[Tensor, "window 2"]:
        """For each window: number of its trajectory in ``names``, first frame of its history."""
        number = {name: position for position, name in enumerate(self.names)}
        rows = [(number[name], start) for name, start in self.pairs]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of settings, window list and files; the same for copies of the same data."""
        simulated = self.kind == "numerical"
        settings = {
            "system": self.system.name,
            "kind": self.kind,
            "frames": (self.system.history_frames, self.length),
            "stride": self.stride,
            "draws": (self.system.mask_prob, self.noise_scale, self.seed) if simulated else None,
        }
        names, starts = zip(*self.pairs, strict=True) if self.pairs else ((), ())
        stamps = {stamp for name in set(names) for stamp in self.trajectories.stamps(name)}
        files = sorted(stamp.identity() for stamp in stamps)
        return fingerprint(settings, list(names), np.array(starts, np.int64), files)

    def __repr__(self) -> str:
        return (
            f"RealPDEBench({self.system.name}, {self.kind}, {self.split}: {len(self)} windows, "
            f"{self.fields.describe()}, {self.layout})"
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Window:
        number = range(len(self))[index]
        name, _ = self.pairs[number]
        constants = self.system.values(name) if self.system.conditioned else ()
        if self.kind == "real":
            history, target = self._cut(number, unmeasured=False)
            return Window(with_constants(history, constants), target, None)
        generator = _generator(self.seed, self.epoch, number)
        masked = bool(torch.rand((), generator=generator) < self.system.mask_prob)
        history, target = self._cut(number, unmeasured=not masked)
        if self.noise_scale > 0:
            history = add_noise(history, self.noise_scale, generator)
            target = add_noise(target, self.noise_scale, generator)
        return Window(with_constants(history, constants), target, None)

    def _cut(self, number: int, *, unmeasured: bool) -> tuple[Tensor, Tensor]:
        """History and target as stored, two views of one array."""
        name, start = self.pairs[number]
        values = torch.from_numpy(
            self.trajectories.read(
                name, start, self.length, stride=self.stride, unmeasured=unmeasured
            )
        )
        _check_finite(values, self.system, name, start)
        return values[: self.system.history_frames], values[self.system.history_frames :]

    def _listed(self, excluded: set[str]) -> list[WindowStart]:
        pairs = [pair for pair in self.index.windows(self.split) if pair[0] not in excluded]
        if self.split == "train":
            return pairs
        if self.test_mode != "all":
            kept = self.index.group(self.test_mode)
            pairs = [pair for pair in pairs if pair[0] in kept]
        if self.autoregressive > 1:
            pairs = [pair for pair in pairs if pair[1] + self.length < self.system.frames]
        return pairs

    def _fields(self) -> Fields:
        used = sorted({name for name, _ in self.pairs}) or self.names[:1]
        height, width = self.trajectories.common_grid(used)
        return Fields(
            grid=(-(-height // self.stride), -(-width // self.stride)),
            history_frames=self.system.history_frames,
            horizon_frames=self.autoregressive * self.system.horizon_frames,
            channels=self.system.channels,
            measured=self.system.measured,
            conditioning=self.system.parameters if self.system.conditioned else (),
            time_step=self.system.time_step,
        )


def _plain_seed(seed: int | torch.Generator) -> int:
    """A seed as a number; a generator gives the next draw of its stream."""
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**62, (), generator=seed))
    return whole("seed", seed, least=0)


def _check_finite(
    values: Float[Tensor, "time height width channel"], system: System, name: str, start: int
) -> None:
    """Refuse NaN and infinity, naming trajectory, frame and channel.

    The sum is finite when all values are; only otherwise is every value looked at.
    """
    if torch.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values)
    if not bad.any():
        return
    frames = bad.any(dim=(1, 2, 3)).nonzero().flatten() + start
    channels = bad.any(dim=(0, 1, 2)).nonzero().flatten().tolist()
    raise NonFiniteError(
        f"`{name}` holds NaN or infinity in {len(frames)} frames of this window, first in frame "
        f"{int(frames[0])}, in {', '.join(system.channels[c] for c in channels)}. "
        f"Repair the file, or leave the trajectory out with `exclude=('{name}',)`."
    )


def _generator(seed: int, epoch: int, number: int) -> torch.Generator:
    """The random stream of one window in one epoch, whoever reads it and in whichever order."""
    state = np.random.SeedSequence([seed, epoch, number]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def add_noise(
    values: Float[Tensor, "*axes"], scale: Number, generator: torch.Generator
) -> Float[Tensor, "*axes"]:
    """Multiplicative Gaussian noise, x + x n s with n ~ N(0, 1)."""
    noise = torch.randn(values.shape, generator=generator)
    return noise.mul_(scale).add_(1.0).mul_(values)


def open_trajectories(folder: Folder, system: System, kind: str, layout: str) -> Trajectories:
    """Reader of one layout; opens no field data."""
    if layout == "arrow":
        return ArrowTrajectories(folder.shards(kind), system, kind)
    return HDF5Trajectories(folder, system, kind)
