"""A hub that is a local folder."""

import hashlib
import shutil
from pathlib import Path

from r2no.realpdebench.files.fetch import RemoteFile, Repository


class LocalHub:
    """Lists and hands over the files of a folder, and lists ``extra`` ones that are not there."""

    folder: Path
    extra: tuple[RemoteFile, ...] = ()

    def files(self, repository: Repository) -> list[RemoteFile]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [*self.extra, *(self._describe(path) for path in paths)]

    def _describe(self, path: Path) -> RemoteFile:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return RemoteFile(str(path.relative_to(self.folder)), path.stat().st_size, sha256=digest)

    def download(self, repository: Repository, file: RemoteFile, folder: Path) -> None:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / file.path, folder / file.path)
