"""Log lines of every child: readable on a terminal, with their priority under journald.

The supervisor passes its own stderr on to the children. When that is the journal's stream (systemd says so
in JOURNAL_STREAM) each line starts with `<N>`, which journald turns into PRIORITY (sd-daemon(3)). Spoken text
and voice names never go into a record above debug.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def priority(level: int) -> int:
    """syslog priority of a Python log level."""
    return next((number for floor, number in _PRIORITIES if level >= floor), 7)


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` is the one systemd connected to the journal (`JOURNAL_STREAM=device:inode`)."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


class LineFormatter(logging.Formatter):
    """`role: message`; under journald `<4>role: message` on each line, as the journal splits at line ends."""

    def __init__(self, role: str, journal: bool) -> None:
        super().__init__(
            f"{role}: %(message)s" if journal else f"%(asctime)s {role}: %(message)s", "%H:%M:%S"
        )
        self._journal = journal

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Where it was raised and of which kind, not its message, which may quote what was to be spoken."""
        kind, _, where = ei
        if kind is None:
            return ""
        return "".join(traceback.format_tb(where)) + kind.__name__

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._journal:
            return text
        mark = f"<{priority(record.levelno)}>"
        return "\n".join(mark + line for line in text.splitlines())


def set_up(role: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the root logger to stderr as lines of `role` (`web`, `worker builtin`), replacing its handlers."""
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(role, is_journal(stream)))
    logging.basicConfig(level=level, handlers=[handler], force=True)
