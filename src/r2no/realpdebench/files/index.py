"""Window lists and groups: the released files first, the documented algorithm last."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.files.folder import GROUPS, Folder
from r2no.realpdebench.files.splits import DrawnSplits, WindowStart, draw_splits
from r2no.realpdebench.systems import System
from r2no.storage import read_json
from r2no.torch_files import read_torch

_MODE_GROUPS = {
    "in_dist": GROUPS[:1],
    "out_dist": GROUPS[1:2],
    "seen": GROUPS[2:],
    "unseen": GROUPS[:2],
}


def load_pt(path: Path) -> Any:
    """Read a ``.pt`` file without executing anything in it.

    Raises:
        FileDamagedError: if it is truncated or holds more than tensors, numbers and containers.
    """
    if not path.exists():
        raise DataError(f"There is no file `{path}`.")
    return read_torch(path)


@dataclass(frozen=True)
class Index:
    """Window lists of one system and kind."""

    folder: Folder
    system: System
    kind: str
    layout: str
    names: Sequence[str]
    split_seed: int = 0

    @property
    def source(self) -> str:
        """Where lists come from: ``json``, ``pt`` or ``drawn``."""
        if self.folder.index(self.kind, "train").is_file():
            return "json"
        mappings = (self.folder.mapping(self.kind, part) for part in ("sim_id", "time_id"))
        if all(path.is_file() for path in mappings):
            return "pt"
        if self.layout == "hdf5":
            return "drawn"
        raise DataError(
            f"There is no window list `{self.folder.index(self.kind, 'train')}`. Fetch it with "
            f"`r2no bench fetch --system {self.system.name}`; it is small."
        )

    def windows(self, split: str) -> list[WindowStart]:
        """(trajectory, first frame) of each window, in the released order."""
        source = self.source
        if source == "json":
            return self._from_json(split)
        return self._from_pt(split) if source == "pt" else self._drawn().windows[split]

    def group(self, test_mode: str) -> set[str]:
        """Names of the trajectories that ``test_mode`` keeps."""
        members = _MODE_GROUPS[test_mode]
        if self.source == "drawn":
            groups = self._drawn().groups()
            return {name for member in members for name in groups[member]}
        return {name for member in members for name in self._parameters(member, test_mode)}

    def _from_json(self, split: str) -> list[WindowStart]:
        """The windows that the benchmark's list names; an entry of another form is refused."""
        path = self.folder.index(self.kind, split)
        if not path.is_file():
            if self.kind == "real":
                raise DataError(
                    f"There is no window list `{path}`. Fetch it with "
                    f"`r2no bench fetch --system {self.system.name}`; it is small."
                )
            warnings.warn(
                f"`{path}` is not there, so the {split} split of the simulated data is empty, "
                "as released for some systems.",
                stacklevel=5,
            )
            return []
        try:
            return [(str(entry["sim_id"]), int(entry["time_id"])) for entry in read_json(path)]
        except (KeyError, TypeError, ValueError) as error:
            raise FileDamagedError(f"`{path}` is not a list of windows. Fetch it again.") from error

    def _from_pt(self, split: str) -> list[WindowStart]:
        paths = [self.folder.mapping(self.kind, part) for part in ("sim_id", "time_id")]
        try:
            names, starts = (load_pt(path)[split] for path in paths)
            return [(str(name), int(start)) for name, start in zip(names, starts, strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise FileDamagedError(
                f"`{paths[0]}` and `{paths[1]}` must hold lists of equal length under `{split}`. "
                "Fetch them again."
            ) from error

    def _drawn(self) -> DrawnSplits:
        warnings.warn(
            f"`{self.folder.path}` holds no released window lists for `{self.kind}` (index JSON or "
            f"mapping .pt). Splits were drawn anew with seed {self.split_seed}: scores are not "
            "comparable with published ones.",
            stacklevel=5,
        )
        return draw_splits(self.system, self.kind, self.names, seed=self.split_seed)

    def _parameters(self, group: str, test_mode: str) -> list[str]:
        plain = self.folder.group(self.kind, group)
        stored = self.folder.group(self.kind, group, "pt")
        if plain.is_file():
            return list(read_json(plain))
        if stored.is_file():
            return list(load_pt(stored))
        raise DataError(
            f"`test_mode='{test_mode}'` needs `{plain}` (or `.pt`), which is not there. Fetch the "
            "metadata of this system, or use `test_mode='all'`."
        )
