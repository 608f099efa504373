"""The file that is coming: what is there of it, its checksum, and its name when it is whole.

`NAME.CHECKSUM.part` stands beside the file while it comes, so that what is there of another version is never
taken for a beginning of this one. A file that has its name is whole and has its checksum.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.codes import CosydError
from pipeline.fetching.sources import RemoteFile

CHUNK = 1 << 20


def part_path(target: Path, file: RemoteFile) -> Path:
    """Where the beginning of this version of the file is kept."""
    return target.with_name(f"{target.name}.{(file.digest or str(file.size))[:12]}.part")


class Incoming:
    """The part file and the checksum of what is in it. A context manager; the part stays when it ends."""

    def __init__(self, target: Path, file: RemoteFile) -> None:
        self._target, self._file = target, file
        self.path = part_path(target, file)
        self._stream: BinaryIO | None = None
        self.size = 0

    def __enter__(self) -> Incoming:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        for other in self._target.parent.glob(f"{self._target.name}.*.part"):
            if other != self.path:
                other.unlink(missing_ok=True)
        self._stream = self.path.open("a+b")
        self._stream.seek(0, os.SEEK_END)
        if self._stream.tell() > self._file.size:
            self._stream.truncate(0)
        self._hash = self._begin()
        self._stream.seek(0)
        self.size = 0
        while piece := self._stream.read(CHUNK):
            self._hash.update(piece)
            self.size += len(piece)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # on a full disk the last bytes may not get out
                self._stream.close()

    def _begin(self) -> Any:
        if self._file.sha256 or not self._file.git_sha1:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self._file.size}\0".encode(), usedforsecurity=False)

    def write(self, piece: bytes) -> None:
        """Add bytes. Raises OSError."""
        assert self._stream is not None
        self._stream.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def restart(self) -> int:
        """Throw away what is there; returns how much it was."""
        assert self._stream is not None
        self._stream.truncate(0)
        self._stream.seek(0)
        thrown, self.size = self.size, 0
        self._hash = self._begin()
        return thrown

    @property
    def good(self) -> bool:
        """Whether it is all there, with the right checksum (where there is one)."""
        right = not self._file.digest or self._hash.hexdigest() == self._file.digest
        return self.size == self._file.size and right

    def finish(self) -> str:
        """Sync and rename; the SHA-256 where that is what was reckoned, else "". Raises OSError."""
        assert self._stream is not None
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.path.replace(self._target)
        fd = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return str(self._hash.hexdigest()) if self._hash.name == "sha256" else ""


@contextlib.contextmanager
def room_errors(folder: Path, needed: int) -> Iterator[None]:
    """A full or read-only disk as CosydError(storage_full)."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = _free(folder)
            raise CosydError(
                "storage_full", reason="no_room", needed=needed, free=free, folder=str(folder)
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise CosydError("storage_full", reason="read_only", detail=str(folder)) from error
        raise CosydError("storage_full", reason="io", detail=f"{folder}: {error.strerror}") from error


def _free(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
