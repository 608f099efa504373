"""Plays raw samples through whichever player the machine has. A child of ours that ends with its stdin."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable

from pipeline.jobs import SAMPLE_RATE

_RATE = str(SAMPLE_RATE)
PLAYERS: tuple[tuple[str, ...], ...] = (
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", _RATE, "-c", "1"),
    ("paplay", "--raw", "--format=s16le", f"--rate={_RATE}", "--channels=1"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-ar", _RATE, "-i", "pipe:0"),
    ("pw-play", "--raw", "--format", "s16", "--rate", _RATE, "--channels", "1", "-"),
)
"""Programs that play s16le mono from stdin, the plainest first."""


def find_player(which: Callable[[str], str | None] = shutil.which) -> tuple[str, ...] | None:
    """The command of the first player that is installed, or None."""
    return next((command for command in PLAYERS if which(command[0])), None)


class PlayerSink:
    """Takes samples as they come; `finish` waits until they were heard."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`; a pipe could fill up
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._said, bufsize=0)

    def write(self, pcm: bytes) -> None:
        """Raises BrokenPipeError when the player ended."""
        assert self._child.stdin is not None
        left = memoryview(pcm)
        while left:
            left = left[self._child.stdin.write(left) :]

    def finish(self) -> bool:
        """False when the player failed. ffplay ends with 0 without a loudspeaker; only its words tell."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        status = self._child.wait()
        self._said.seek(0)
        return status == 0 and b"audio open failed" not in self._said.read()

    def close(self) -> None:
        """End it at once."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._said.close()
