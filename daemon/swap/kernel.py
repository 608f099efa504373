"""What the swap helper asks of the kernel: swapon, swapoff, file system kinds, /proc/swaps, hibernation.

Part of the root helper: standard library only. Reading starts at `root`, so that tests give a folder of their
own; a call that fails raises OSError.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# statfs(2), f_type.
FILESYSTEMS = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0xF2F52010: "f2fs",
    0x6969: "nfs",
    0x65735546: "fuse",
    0xCA451A4E: "bcachefs",
}
GOOD = frozenset({"ext4", "xfs", "btrfs"})
"""Where a swap file is known to work. ext2 and ext3 have ext4's number and work as well."""
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS and FS_IOC_SETFLAGS where long has 64 bits
_NOCOW, _COMPRESS = 0x00800000, 0x00000004


@dataclass(frozen=True, slots=True)
class Swap:
    """A line of /proc/swaps. `kind` is `zram`, `partition` or `file`."""

    path: str
    kind: str
    bytes: int
    used_bytes: int


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def swapon(path: str) -> None:
    """swapon(2) without a priority: behind everything that is there."""
    _call("swapon", os.fsencode(path), 0)


def swapoff(path: str) -> None:
    """swapoff(2): brings all pages back into RAM, which may take minutes."""
    _call("swapoff", os.fsencode(path))


def in_use(fd: int) -> bool:
    """Is this open file a swap file in use? The kernel refuses to change such a file, whatever its name in
    /proc/swaps, which depends on the mount that it was opened through. Asks for room that it already has."""
    try:
        _call("fallocate", fd, 1, ctypes.c_long(0), ctypes.c_long(1))  # FALLOC_FL_KEEP_SIZE
    except OSError as error:
        return error.errno == errno.ETXTBSY
    return False


def filesystem(fd: int) -> str:
    """Name of the file system that an open file lies on; its number in hexadecimal where it has none here."""
    buffer = ctypes.create_string_buffer(512)
    _call("fstatfs", fd, buffer)
    number = struct.unpack_from("=l" if ctypes.sizeof(ctypes.c_long) == 4 else "=q", buffer)[0] & 0xFFFFFFFF
    return FILESYSTEMS.get(number, hex(number))


def no_copy_on_write(fd: int) -> None:
    """btrfs: pages of swap are overwritten in place. Works only while the file is empty."""
    flags = struct.unpack("=q", fcntl.ioctl(fd, _GET_FLAGS, struct.pack("=q", 0)))[0]
    fcntl.ioctl(fd, _SET_FLAGS, struct.pack("=q", (flags | _NOCOW) & ~_COMPRESS))


def header(size: int, page: int = PAGE_BYTES) -> bytes:
    """The first page of a swap area of `size` bytes (mkswap(8), version 1), with a random UUID."""
    fields = struct.pack("=III16s16s", 1, size // page - 1, 0, os.urandom(16), b"cosyd")
    return (b"\0" * 1024 + fields).ljust(page - 10, b"\0") + b"SWAPSPACE2"


def parse_swaps(text: str) -> list[Swap]:
    """/proc/swaps."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 5 or not (fields[2].isdigit() and fields[3].isdigit()):
            continue
        path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[0])
        kind = "zram" if re.fullmatch(r"/dev/(block/)?zram\d+", path) else fields[1]
        found.append(Swap(path, kind, int(fields[2]) * 1024, int(fields[3]) * 1024))
    return found


def _text(root: Path, path: str) -> str:
    try:
        return (root / path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def swaps(root: Path = Path("/")) -> list[Swap]:
    """What is in use now."""
    return parse_swaps(_text(root, "proc/swaps"))


def memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """MemTotal and MemAvailable in bytes, None when they cannot be read."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", _text(root, "proc/meminfo"), re.M))
    if len(found) != 2:
        return None
    return int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024


def hibernates(root: Path = Path("/")) -> bool:
    """Does this machine resume from swap? Then another swap could be taken for its image."""
    words: Iterable[str] = _text(root, "proc/cmdline").split()
    if "noresume" in words or "nohibernate" in words:
        return False
    if any(word.startswith("resume=") for word in words):
        return True
    device = _text(root, "sys/power/resume").strip()
    return device not in ("", "0:0") and "disk" in _text(root, "sys/power/state").split()


def in_container(root: Path = Path("/")) -> bool:
    """Swap belongs to the host: a file that goes away with a container would stay in use for ever. Asked
    as systemd tells it: /.dockerenv also lies in virtual machines that were made of an image."""
    if (root / "run/systemd/container").exists():
        return True
    return any(word.startswith("container=") for word in _text(root, "proc/1/environ").split("\0"))


def boot_id(root: Path = Path("/")) -> str:
    """Another one after each boot."""
    return _text(root, "proc/sys/kernel/random/boot_id").strip()
