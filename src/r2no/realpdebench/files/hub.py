"""The few things asked of a model and data hub, so that a stub can stand in for it."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from r2no.errors import DataError
from r2no.locks import sole_writer
from r2no.storage import file_sha256


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
