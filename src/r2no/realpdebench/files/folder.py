"""Where everything lies below the root of a data set, which layout is there, which version."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from r2no.errors import DataError, FileDamagedError
from r2no.realpdebench.systems import SPLITS
from r2no.storage import read_json

#: The benchmark's code version whose data format this package reads.
CODE_VERSION = (0, 2, 0)
GROUPS = ("in_dist_test", "out_dist_test", "remain")


@dataclass(frozen=True)
class Folder:
    """Paths of one system below ``root``."""

    root: Path
    system: str

    @property
    def path(self) -> Path:
        """The system's own folder."""
        return self.root / self.system

    def shards(self, kind: str) -> Path:
        """Folder of the Arrow shards."""
        return self.path / "hf_dataset" / kind

    def index(self, kind: str, split: str) -> Path:
        """Released window list of a split."""
        return self.path / "hf_dataset" / f"{split}_index_{kind}.json"

    def group(self, kind: str, group: str, suffix: str = "json") -> Path:
        """Parameters of the trajectories in one group."""
        return self.path / f"{group}_params_{kind}.{suffix}"

    def mapping(self, kind: str, content: str) -> Path:
        """Window list of the HDF5 distribution: ``content`` is ``sim_id`` or ``time_id``."""
        return self.path / f"{content}_mapping_{kind}.pt"

    def raw(self, kind: str) -> Path:
        """Folder of the HDF5 files; ``surrogate`` is a third kind of combustion."""
        return self.path / kind

    def layouts(self, kind: str) -> tuple[str, ...]:
        """Layouts that hold at least one trajectory of ``kind``, preferred first."""
        arrow = any(self.shards(kind).glob("*.arrow"))
        hdf5 = any(self.raw(kind).glob("*.h5"))
        return ("arrow",) * arrow + ("hdf5",) * hdf5

    def detect(self, kind: str, layout: str = "auto") -> str:
        """The layout to read: ``layout`` itself if its files are there, else the first found."""
        found = self.layouts(kind)
        if layout in found:
            return layout
        if layout == "auto" and found:
            return found[0]
        if not self.path.is_dir():
            raise DataError(
                f"There is no folder `{self.path}`. Give the folder that holds `{self.system}/`, "
                f"or fetch the data with `r2no bench fetch --system {self.system}`."
            )
        self._refuse_old_layout(kind)
        raise DataError(
            f"No trajectories of kind `{kind}` in layout `{layout}` below `{self.path}`: looked "
            f"for `{self.shards(kind)}/*.arrow` and `{self.raw(kind)}/*.h5`, found layouts "
            f"{list(found)}. Fetch the shards, or give another `layout`."
        )

    def _refuse_old_layout(self, kind: str) -> None:
        old = [s for s in SPLITS if (self.path / "hf_dataset" / f"{kind}_{s}").is_dir()]
        if old:
            raise DataError(
                f"`{self.path / 'hf_dataset'}` is in the first release's layout (pre-cut windows "
                f"in `{kind}_{old[0]}/`), which is not supported. Fetch the current data, where "
                f"trajectories lie in `{kind}/` and splits are index files."
            )


def check_version(root: Path) -> None:
    """Refuse data that ask for newer code; a missing ``version.json`` is fine.

    Raises:
        DataError: if ``min_code_version`` is above the version this package implements.
    """
    path = root / "version.json"
    if not path.is_file():
        return
    try:
        needed = _numbers(read_json(path)["min_code_version"])
    except (FileDamagedError, KeyError, TypeError, ValueError, AttributeError) as error:
        warnings.warn(f"`{path}` was ignored: it names no version ({error}).", stacklevel=2)
        return
    if needed > CODE_VERSION:
        raise DataError(
            f"`{path}` asks for format {'.'.join(map(str, needed))}, but this version of r2no "
            f"reads up to {'.'.join(map(str, CODE_VERSION))}. Update r2no."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])
