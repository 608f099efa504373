"""The folder of cosyd's swap files: makes, activates and removes them so that a kill leaves nothing behind.

Part of the root helper: standard library only. A file has no name until it is whole (O_TMPFILE), and while it
has a name but is not yet, or no more, in use, a marker beside it says so: `clean` removes what is marked. All
files are reached through the folder's descriptor; nobody outside chooses a name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from daemon.swap import kernel

GIVEN = 4
"""Descriptor of the folder, where whoever started us had it opened (3 is the socket)."""
MAX_FILES = 8
MIN_FILE_BYTES = 1024**2
CHUNK_BYTES = 4 * 1024**2
_NAME = re.compile(r"swap-(\d\d)")
_PENDING = ".pending"
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """It is not done, and nothing was changed. `reason` is a word of the protocol (docs/architecture.md)."""

    def __init__(self, reason: str, **params: int | float | str) -> None:
        super().__init__(f"{reason} {params}")
        self.reason, self.params = reason, params


@dataclass(frozen=True, slots=True)
class OwnFile:
    """One of our files."""

    name: str
    bytes: int
    active: bool
    used_bytes: int


def stage(name: str) -> None:
    """Between two steps. Tests put a kill here."""


class SwapFolder:
    """Opened and locked; `close` it. Raises Refused(unsafe_folder, busy) and OSError."""

    def __init__(self, path: Path, root: Path = Path("/")) -> None:
        self.path, self._root = path, root
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _must_be_ours(parent, str(path.parent))
            try:
                os.mkdir(path.name, 0o700, dir_fd=parent)
            except FileExistsError:
                pass
            try:
                self.fd = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused("unsafe_folder", path=str(path)) from None
                raise
        finally:
            os.close(parent)
        try:
            self.fd = _through_given(self.fd)
            _must_be_ours(self.fd, str(path))
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise Refused("busy") from None
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self.fd)

    # -- looking -----------------------------------------------------------------------------------

    def look(self) -> tuple[list[OwnFile], list[kernel.Swap]]:
        """Our files, and the swap of others. Ours are known by device and inode, not by their name."""
        others = kernel.swaps(self._root)
        own = []
        for name in self._names():
            if _NAME.fullmatch(name) and (file := self._own(name, others)) is not None:
                own.append(file)
        return own, others

    def _own(self, name: str, swaps: list[kernel.Swap]) -> OwnFile | None:
        """The file of that name, if it is one of ours; takes its line out of `swaps`."""
        try:
            fd = os.open(name, os.O_RDWR | _OPEN, dir_fd=self.fd)
        except OSError:
            return None  # a link, a folder
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_nlink != 1:
                return None
            for swap in swaps:
                # Its name is another one where it was opened through another mount.
                if _same(swap.path, found) or (swap.path.endswith("/" + name) and kernel.in_use(fd)):
                    swaps.remove(swap)
                    return OwnFile(name, found.st_size, True, swap.used_bytes)
            active = kernel.in_use(fd)
            return OwnFile(name, found.st_size, active, found.st_size if active else 0)
        finally:
            os.close(fd)

    def filesystem(self) -> str:
        """What the folder lies on."""
        return kernel.filesystem(self.fd)

    def free_bytes(self) -> int:
        """Room on the disk for whoever is not root, who also wants to go on."""
        found = os.fstatvfs(self.fd)
        return found.f_bavail * found.f_frsize

    # -- changing ----------------------------------------------------------------------------------

    def clean(self) -> None:
        """Take away what a killed run left. A file in use stays, whatever its marker says."""
        own = {file.name: file for file in self.look()[0]}
        for name in self._names():
            base = name.removesuffix(_PENDING)
            if base == name or not _NAME.fullmatch(base):
                continue
            if base in own and not own[base].active:
                self._unlink(base)
            self._unlink(name)

    def add(self, size: int) -> None:
        """Make a file of `size` bytes and use it. Raises Refused: `too_many_files`, `disk_full`, and what
        `_activate` raises."""
        size -= size % kernel.PAGE_BYTES
        taken = {int(match[1]) for name in self._names() if (match := _NAME.fullmatch(name))}
        if len(taken) >= MAX_FILES:
            raise Refused("too_many_files", limit=MAX_FILES)
        name = f"swap-{min(set(range(MAX_FILES)) - taken):02d}"
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            stage("opened")
            if self.filesystem() == "btrfs":
                kernel.no_copy_on_write(fd)
            try:
                allocate(fd, size)
                stage("allocated")
                os.pwrite(fd, kernel.header(size), 0)
                os.fsync(fd)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise Refused("disk_full", need_bytes=size, free_bytes=self.free_bytes()) from None
                raise
            stage("written")
            self._mark(name)
            stage("marked")
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=self.fd, follow_symlinks=True)
            stage("linked")
            try:
                self._activate(name, fd)
            except BaseException:
                self._unlink(name)
                self._unlink(name + _PENDING)
                raise
            stage("activated")
            self._unlink(name + _PENDING)
            os.fsync(self.fd)
        finally:
            os.close(fd)

    def resume(self, file: OwnFile) -> None:
        """Use a file again that was there before a reboot; one that is no good any more goes away."""
        fd = os.open(file.name, os.O_RDWR | _OPEN, dir_fd=self.fd)
        try:
            self._mark(file.name)
            os.pwrite(fd, kernel.header(file.bytes), 0)
            try:
                self._activate(file.name, fd)
            except Refused:
                self._unlink(file.name)
                raise
            finally:
                self._unlink(file.name + _PENDING)
        finally:
            os.close(fd)

    def remove(self, file: OwnFile) -> None:
        """Stop using a file and delete it. OSError when its pages find no room: it stays in use."""
        self._mark(file.name)
        stage("shrink_marked")
        if file.active:
            try:
                kernel.swapoff(self._address(file.name))
            except OSError:
                self._unlink(file.name + _PENDING)
                raise
        stage("swapped_off")
        self._unlink(file.name)
        stage("unlinked")
        self._unlink(file.name + _PENDING)

    def _activate(self, name: str, fd: int) -> None:
        """swapon; a file that has holes for this kernel is written in full and tried once more. Raises
        Refused: `denied`, `swapon_failed`, `disk_full`."""
        try:
            try:
                kernel.swapon(self._address(name))
            except OSError as error:
                if error.errno != errno.EINVAL or self.filesystem() == "btrfs":
                    raise
                self._write_zeros(fd)
                kernel.swapon(self._address(name))
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                raise Refused("denied", error=error.errno) from None
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Refused(
                    "disk_full", need_bytes=os.fstat(fd).st_size, free_bytes=self.free_bytes()
                ) from None
            raise Refused("swapon_failed", error=error.errno or 0) from None
        if not any(file.name == name and file.active for file in self.look()[0]):
            kernel.swapoff(self._address(name))  # in use, but not as /proc/swaps sees this folder
            raise Refused("swapon_failed", error=0)

    def _write_zeros(self, fd: int) -> None:
        size, zeros = os.fstat(fd).st_size, b"\0" * CHUNK_BYTES
        at = 0
        while at < size:
            at += os.pwrite(fd, zeros[: size - at], at)
        os.pwrite(fd, kernel.header(size), 0)
        os.fsync(fd)
        stage("zeroed")

    def _names(self) -> list[str]:
        # Opened anew: btrfs shows through a descriptor only what was there when it was opened.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def _address(self, name: str) -> str:
        return f"/proc/self/fd/{self.fd}/{name}"

    def _mark(self, name: str) -> None:
        os.close(os.open(name + _PENDING, os.O_CREAT | os.O_WRONLY | _OPEN, 0o600, dir_fd=self.fd))
        os.fsync(self.fd)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass


def _through_given(fd: int) -> int:
    """The folder through descriptor GIVEN, where that is the same one: systemd opened it in the machine's
    mount namespace, before it made ours (see the unit). The kernel names a swap file by the mount it was
    opened through, and one of ours would be gone with us; through this one all see its real name, and it can
    be written whatever is read-only for us. Closes `fd` when it gives another."""
    try:
        given, wanted = os.fstat(GIVEN), os.fstat(fd)
    except OSError:
        return fd
    same = (given.st_dev, given.st_ino) == (wanted.st_dev, wanted.st_ino)
    if fd == GIVEN or not same:
        return fd
    found = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=GIVEN)
    os.close(fd)
    return found


def _same(path: str, file: os.stat_result) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)


def allocate(fd: int, size: int) -> None:
    """Room for all of the file. Whether the kernel takes such a file for swap is seen at swapon."""
    os.posix_fallocate(fd, 0, size)


def kept(files: Sequence[OwnFile], target: int) -> list[OwnFile]:
    """The files that come closest to `target` bytes together without being more."""
    best: tuple[OwnFile, ...] = ()
    for count in range(1, len(files) + 1):
        for choice in combinations(files, count):
            if sum(file.bytes for file in best) < sum(file.bytes for file in choice) <= target:
                best = choice
    return list(best)


def _must_be_ours(fd: int, path: str) -> None:
    """Raises Refused when anybody but root could put something in this folder's place or into it."""
    found = os.fstat(fd)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused("unsafe_folder", path=path)
