"""Memory given back: glibc's heap between requests, mapped pages that were read once.

By default glibc maps and unmaps every tensor above 128 KiB anew, and its pages are faulted in again: the
vocoder took 1.4 times as long on a quiet 2-core machine and 4 times on a busy one. Other C libraries are left
alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEEP_BYTES = 256 << 20
LARGEST_KEPT = 32 << 20
"""glibc takes no larger threshold on 64 bits."""

_MADV_DONTNEED = 4


def keep_heap() -> bool:
    """Ask glibc to reuse freed memory. False where there is no mallopt."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)) and bool(mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES))


def return_heap() -> bool:
    """Give free memory back to the system. False where there is no malloc_trim."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    trim(0)
    return True


def drop_mapped(path: Path, root: Path = Path("/")) -> int:
    """Let go of the pages of a mapped file, or of all that lie in a folder, that nobody writes to; what is
    needed again is faulted in from the page cache (750 MB in about 10 ms). Returns the bytes of address space
    looked at, 0 where /proc or madvise is missing.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
        lines = (root / "proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, AttributeError):
        return 0
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    total, wanted = 0, str(path.resolve())
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not (fields[5] == wanted or fields[5].startswith(wanted + "/")):
            continue
        begin, end = (int(part, 16) for part in fields[0].split("-"))
        if madvise(begin, end - begin, _MADV_DONTNEED) == 0:
            total += end - begin
    return total
