"""Progress of `cosyd model` on stderr: a line that is written over on a terminal, else one now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from daemon.cli.frame import language
from pipeline.fetching.progress import Progress, Waiting
from pipeline.messages import render

EVERY_S = 15.0
"""Between two lines where they cannot be written over: a log, a pipe."""


def words(key: str, **params: object) -> str:
    """A text of [model]."""
    return render(f"model.{key}", language(), params)


class Line:
    """Shows what is told. A context manager: the line is closed at its end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._over = self._stream.isatty()
        self._open = False
        self._last = -1e9

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the line that is written over."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False

    def show(self, text: str, *, always: bool = False) -> None:
        """Write over the line, or add one when it is time (or `always`)."""
        now = time.monotonic()
        if self._over:
            self._stream.write(f"\r\x1b[K{text[: _width() - 1]}")
            self._open = True
        elif always or now - self._last >= EVERY_S:
            self._stream.write(text + "\n")
            self._last = now
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()

    def fetched(self, event: Progress | Waiting) -> None:
        """What `pipeline.fetching` tells."""
        if isinstance(event, Waiting):
            why = words(f"why.{event.why}")
            self.say(words("waiting", why=why, seconds=event.seconds) if event.seconds else why)
            return
        share = event.done / event.total if event.total else 0.0
        key = "fetch_line_rate" if event.rate else "fetch_line"
        self.show(
            words(
                key, percent=share, done=event.done, total=event.total, name=event.name,
                rate=event.rate or 0.0, left=event.left_s or 0.0,
            )
        )  # fmt: skip

    def part(self, name: str, done: int, total: int) -> None:
        """What `tool convert` and `random` tell."""
        self.show(words("convert_line", percent=done / total if total else 0.0, name=name))

    def reading(self, name: str, done: int, total: int) -> None:
        """What `tool check` tells, and who reads checksums."""
        self.show(words("check_reading", name=name))

    def trial(self, name: str, done: int, total: int) -> None:
        """What `tool speak` tells."""
        self.show(words(f"speak_{name}", number=done, count=total), always=True)


def _width() -> int:
    import shutil

    return max(20, shutil.get_terminal_size().columns)
