"""Ctrl+C before a program has begun: it ends at once with 130 and says nothing, instead of a traceback from
the middle of an import. Imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130
"""As a shell reports a program that Ctrl+C ended."""


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


def end_quietly() -> None:
    """From now on Ctrl+C ends the process, with nothing to tidy up. An ignored one stays ignored: a shell
    starts background jobs so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    release()


def hold() -> None:
    """Just before exec: a Ctrl+C waits until the next program calls `end_quietly`. The interpreter of that
    one would tell it with a traceback of its own start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def release() -> None:
    """What was held comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def raise_again() -> None:
    """From now on Ctrl+C raises KeyboardInterrupt, which the work tidies up after."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
