"""Tests that measure time run alone, also where pytest-xdist runs several test processes.

A readers-writer lock on two files: every test holds the second one shared while it runs, a test that is
marked `alone` holds it exclusively. The first is a turnstile (A. Downey, "The Little Book of Semaphores",
4.2.5): whoever wants in passes it, so that a waiting writer is not overtaken for ever.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Holds a turn among the processes that use the same folder; gone with the process, however it ends."""
    turnstile = os.open(folder / "turnstile", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    room = os.open(folder / "room", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield
    finally:
        fcntl.flock(room, fcntl.LOCK_UN)  # said aloud: a child that a test forked may share the descriptor
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        os.close(room)
        os.close(turnstile)
