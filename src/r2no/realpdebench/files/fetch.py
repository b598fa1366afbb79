"""Plan a download, show its size, ask above 1 GB, fetch, and check every file's hash.

What is asked of a hub is the few methods of :class:`Hub`, so that a stub can stand in for it.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from r2no._types import PathLike
from r2no.checks import choice
from r2no.errors import ConfigError, DataError, FileDamagedError, StorageError
from r2no.locks import sole_writer
from r2no.realpdebench.files.folder import GROUPS, Folder
from r2no.realpdebench.systems import KINDS, SPLITS, SYSTEMS, spellings
from r2no.storage import file_sha256, make_folder, read_json

DATA = "AI4Science-WestlakeU/RealPDEBench"
MODELS = "AI4Science-WestlakeU/RealPDEBench-models"
DPOT = "hzk17/DPOT"
PARADIGMS = ("numerical", "real", "finetune")
ASK_ABOVE = 10**9
_SMALL = 10**7


class RemoteFile(NamedTuple):
    """A file in a repository; large ones carry a SHA-256, small ones git's blob hash."""

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    def matches(self, path: Path) -> bool:
        """Whether the local file has the right size and content."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return file_sha256(path) == self.sha256
        return self.blob is None or _blob_hash(path) == self.blob


class Repository(NamedTuple):
    """Where files come from: name, ``dataset`` or ``model``, and a branch, tag or commit."""

    name: str
    type: str
    revision: str = "main"


@runtime_checkable
class Hub(Protocol):
    """A hub: fix a revision, list files, download one below a folder."""

    def commit(self, repository: Repository) -> str:
        """The commit that the revision stands for now."""
        ...

    def files(self, repository: Repository) -> list[RemoteFile]:
        """All files of a repository."""
        ...

    def download(self, repository: Repository, file: RemoteFile, folder: Path) -> None:
        """Put ``file`` below ``folder``, going on where an earlier attempt stopped."""
        ...


class HuggingFaceHub:
    """The Hugging Face Hub or a mirror; the token comes from ``HF_TOKEN`` and nowhere else."""

    def __init__(self, endpoint: str | None = None) -> None:
        from huggingface_hub import HfApi

        self._token = os.environ.get("HF_TOKEN") or False
        self._api = HfApi(endpoint=endpoint, token=self._token)

    def commit(self, repository: Repository) -> str:
        """The commit that the revision stands for now."""
        with _named_errors(repository):
            info = self._api.repo_info(
                repository.name, repo_type=repository.type, revision=repository.revision
            )
        return str(info.sha)

    def files(self, repository: Repository) -> list[RemoteFile]:
        """All files of a repository."""
        from huggingface_hub.hf_api import RepoFile

        with _named_errors(repository):
            entries = self._api.list_repo_tree(
                repository.name,
                repo_type=repository.type,
                revision=repository.revision,
                recursive=True,
            )
            found = [entry for entry in entries if isinstance(entry, RepoFile)]
        return [_remote_file(entry) for entry in found]

    def download(self, repository: Repository, file: RemoteFile, folder: Path) -> None:
        """Put ``file`` below ``folder``.

        What has arrived is kept in a hidden ``.part`` file of this revision, also when the process
        is killed, and the next attempt asks for the rest only. (``hf_hub_download`` drops it.)
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        target = folder / file.path
        part = target.with_name(f".{target.name}.{repository.revision[:12]}.part")
        with sole_writer(target), _named_errors(repository):
            if file.matches(target):  # by another process that we waited for
                return
            url = hf_hub_url(
                repository.name,
                file.path,
                repo_type=repository.type,
                revision=repository.revision,
                endpoint=self._api.endpoint,
            )
            headers = build_hf_headers(token=self._token)
            if part.is_file() and part.stat().st_size > file.size:
                part.unlink()
            with part.open("ab") as stream:
                http_get(
                    url,
                    stream,
                    resume_size=stream.tell(),
                    headers=headers,
                    expected_size=file.size,
                    displayed_filename=file.path,
                )
            os.replace(part, target)


def _remote_file(entry: Any) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(entry.path, entry.lfs.size, sha256=entry.lfs.sha256)
    return RemoteFile(entry.path, entry.size, blob=entry.blob_id)


def _blob_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\x00" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _named_errors(repository: Repository) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the transport's own types differ by version; all are reported
        reason = str(error).strip() or type(error).__name__
        raise DataError(
            f"The hub did not give `{repository.name}` at `{repository.revision}` ({reason}). "
            "Check the network and `endpoint`; for a repository that asks for consent, accept its "
            "terms and set HF_TOKEN. Run the same command again to resume."
        ) from error


@dataclass(frozen=True)
class Plan:
    """Files to fetch below ``folder`` from one commit, and those already there."""

    repository: Repository
    folder: Path
    files: tuple[RemoteFile, ...]
    present: tuple[RemoteFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes still to fetch."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        there = f", {len(self.present)} already there" if self.present else ""
        return (
            f"{len(self.files)} files, {self.size / 1e9:.2f} GB, from {self.repository.name} at "
            f"{self.repository.revision[:12]} to {self.folder}{there}"
        )


def plan_metadata(
    hub: Hub, root: PathLike, systems: Sequence[str] = tuple(SYSTEMS), *, revision: str = "main"
) -> Plan:
    """Window lists, groups and state files of ``systems``: a few megabytes, no fields."""
    names = "|".join(choice("systems", name, tuple(SYSTEMS)) for name in systems)
    pattern = re.compile(rf"(version\.json|README\.md|(?:{names})/.*\.(?:json|txt))$")
    return _plan(hub, Repository(DATA, "dataset", revision), Path(root), pattern.match)


def plan_shards(
    hub: Hub,
    root: PathLike,
    systems: Sequence[str],
    kinds: Sequence[str] = KINDS,
    splits: Sequence[str] = SPLITS,
    *,
    revision: str = "main",
) -> Plan:
    """Fields of ``systems`` and ``kinds``; with the metadata there, only shards ``splits`` need.

    Rows are sorted by name and dealt to shards contiguously, so the groups tell which shard holds
    which trajectory. Where they do not name every trajectory, all shards are planned.
    """
    for split in splits:
        choice("splits", split, SPLITS)
    keep = {
        (choice("systems", name, tuple(SYSTEMS)), choice("kinds", kind, KINDS)): _wanted_names(
            Folder(Path(root), name), kind, splits
        )
        for name in systems
        for kind in kinds
    }

    def chosen(path: str) -> bool:
        match = re.match(r"(\w+)/hf_dataset/(\w+)/data-(\d+)-of-(\d+)\.arrow$", path)
        if match is None or (match[1], match[2]) not in keep:
            return False
        names, wanted = keep[match[1], match[2]]
        return not names or bool(wanted & set(_dealt(names, int(match[3]), int(match[4]))))

    return _plan(hub, Repository(DATA, "dataset", revision), Path(root), chosen)


def plan_checkpoint(
    hub: Hub,
    folder: PathLike,
    system: str,
    backbone: str,
    *,
    paradigm: str = "finetune",
    revision: str = "main",
) -> Plan:
    """Released weights ``{system}/{backbone}/{paradigm}.pth``."""
    choice("system", system, tuple(SYSTEMS))
    choice("paradigm", paradigm, PARADIGMS)
    wanted = {f"{system}/{name}/{paradigm}.pth" for name in spellings(backbone)}
    return _plan(hub, Repository(MODELS, "model", revision), Path(folder), wanted.__contains__)


def plan_dpot(hub: Hub, folder: PathLike, size: str = "S", *, revision: str = "main") -> Plan:
    """DPOT's pretrained backbone in one of its sizes Ti, S, M, L, H."""
    name = f"model_{choice('size', size, ('Ti', 'S', 'M', 'L', 'H'))}.pth"
    return _plan(hub, Repository(DPOT, "model", revision), Path(folder), name.__eq__)


def download(
    plan: Plan,
    hub: Hub,
    *,
    confirm: Callable[[Plan], bool] | None = None,
    progress: Callable[[RemoteFile, int], None] | None = None,
) -> list[Path]:
    """Fetch what ``plan`` lists, checking each hash; returns all its files.

    Args:
        plan: from one of the functions above.
        hub: where to fetch from.
        confirm: asked before fetching more than 1 GB; without it such a plan is refused.
        progress: told each file and the bytes left after it.
    """
    if plan.size > ASK_ABOVE and (confirm is None or not confirm(plan)):
        raise ConfigError(f"Not fetched without consent: {plan}. Confirm, or narrow the request.")
    make_folder(plan.folder)
    free = shutil.disk_usage(plan.folder).free
    if plan.size > free:
        raise StorageError(f"Not enough space: {plan}, but only {free / 1e9:.2f} GB are free.")
    left = plan.size
    for file in plan.files:
        hub.download(plan.repository, file, plan.folder)
        _verify(file, plan.folder / file.path)
        left -= file.size
        if progress is not None:
            progress(file, left)
    return [plan.folder / file.path for file in (*plan.present, *plan.files)]


def _plan(hub: Hub, repository: Repository, folder: Path, chosen: Callable[[str], object]) -> Plan:
    """What to fetch at one commit, without what is already here."""
    fixed = repository._replace(revision=hub.commit(repository))
    files = hub.files(fixed)
    wanted = [file for file in files if chosen(file.path)]
    if not wanted:
        some = ", ".join(sorted(file.path for file in files)[:10])
        raise DataError(
            f"`{repository.name}` at `{repository.revision}` holds nothing of what was asked for. "
            f"It holds {len(files)} files, such as {some}."
        )
    present = [file for file in wanted if _is_there(file, folder / file.path)]
    rest = [file for file in wanted if file not in set(present)]
    return Plan(fixed, folder, tuple(rest), tuple(present))


def _is_there(file: RemoteFile, path: Path) -> bool:
    """Small files by their hash; large ones by size, as their hash was checked when fetched."""
    if file.size > _SMALL:
        return path.is_file() and path.stat().st_size == file.size
    return file.matches(path)


def _verify(file: RemoteFile, path: Path) -> None:
    if not file.matches(path):
        path.unlink(missing_ok=True)
        raise FileDamagedError(
            f"`{path}` does not have the size and hash that the hub states for `{file.path}`; it "
            "was removed. Run the same command again."
        )


def _wanted_names(folder: Folder, kind: str, splits: Iterable[str]) -> tuple[list[str], set[str]]:
    """All trajectories, sorted, and those of ``splits``; nothing if the metadata cannot tell."""
    groups = [folder.group(kind, group) for group in GROUPS]
    lists = [path for s in splits if (path := folder.index(kind, s)).is_file()]
    if not lists or not all(path.is_file() for path in groups):
        return [], set()
    names = sorted(name for path in groups for name in read_json(path))
    if len(names) != SYSTEMS[folder.system].trajectories[KINDS.index(kind)]:
        return [], set()
    return names, {entry["sim_id"] for path in lists for entry in read_json(path)}


def _dealt(names: Sequence[str], shard: int, shards: int) -> Sequence[str]:
    """The part of ``names`` that lies in one shard: nearly equal, the first ones longer."""
    each, extra = divmod(len(names), shards)
    start = shard * each + min(shard, extra)
    return names[start : start + each + (shard < extra)]
