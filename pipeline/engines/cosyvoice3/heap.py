"""glibc's heap, told to keep what inference gives back within a request, and to return it between requests.

By default every tensor above 128 KiB is mapped and unmapped anew, and its pages are faulted in again: the
vocoder took 1.4 times as long on a quiet 2-core machine and 4 times on a busy one. Other C libraries are left
alone.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEEP_BYTES = 256 << 20
LARGEST_KEPT = 32 << 20
"""glibc takes no larger threshold on 64 bits."""


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
