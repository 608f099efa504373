"""A stranger's file to samples: decoded by a short child in bounds, in an empty private folder.

Whatever the bytes are, this process neither parses them nor holds more than the seconds that it asked for.
The child (`pipeline.audio.decode_child`) has no network, sees no file but this one, and is ended after
`WALL_S`.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pipeline.audio.mixdown import RATE
from pipeline.codes import CosydError

F32 = npt.NDArray[np.float32]

WALL_S = 120.0
"""The child ends itself after 20 s of work; this is for a machine that gives it none."""
READ_SECONDS = 120.0
"""No more of a recording is looked at than this."""

MIN_RATE = 8_000
"""Telephones; below it there is no speech to learn from."""

CHILD = "pipeline.audio.decode_child"
_HEAD_BYTES, _ENDING_S = 4096, 1.0
_KEPT = ("PATH", "LD_LIBRARY_PATH", "COSYD_INSTANCE", "TZ")


@dataclass(frozen=True, slots=True)
class Recording:
    """Mono samples at 24 kHz and what is known of the file: its own `rate` and `channels`, the share of
    `clipped` samples, whether parts of it are missing (`cut_off`), whether it goes on (`more`)."""

    audio: F32
    rate: int
    channels: int
    clipped: float = 0.0
    cut_off: bool = False
    more: bool = False
    decoder: str = ""

    @property
    def seconds(self) -> float:
        """How long `audio` is."""
        return len(self.audio) / RATE


def read_recording(path: Path, seconds: float = READ_SECONDS) -> Recording:
    """At most `seconds` of a file. Raises CosydError(bad_audio): empty, unreadable, cut_off, broken, rate,
    slow."""
    try:
        # O_NONBLOCK: a named pipe would wait for somebody to write.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise CosydError("bad_audio", reason="empty") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise CosydError("bad_audio", reason="empty")
        head, samples = _run(fd, seconds)
    finally:
        os.close(fd)
    if reason := head.get("reason"):
        raise CosydError("bad_audio", reason=str(reason))
    rate = int(head["rate"])
    if rate < MIN_RATE:
        raise CosydError("bad_audio", reason="rate", value=rate, limit=MIN_RATE)
    return Recording(
        audio=samples,
        rate=rate,
        channels=int(head["channels"]),
        clipped=float(head["clipped"]),
        cut_off=bool(head["cut_off"]),
        more=bool(head["more"]),
        decoder=str(head["decoder"]),
    )


def _run(file: int, seconds: float) -> tuple[dict[str, Any], F32]:
    """The child's answer. Raises CosydError(bad_audio): unreadable when it dies, slow when it takes too
    long."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # This package is found wherever the person stands, and nothing there is.
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment |= {"LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "MALLOC_ARENA_MAX": "1"}
    with tempfile.TemporaryDirectory(prefix="empty-") as empty:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD, repr(seconds)],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env=environment,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            data = _collect(child.stdout, _HEAD_BYTES + int(4 * RATE * (seconds + 2)))
        finally:
            _end(child)
    head, _, rest = data.partition(b"\n")
    try:
        facts = json.loads(head)
        samples = np.frombuffer(rest[: len(rest) // 4 * 4], "<f4").astype(np.float32)
        if not isinstance(facts, dict) or child.returncode != 0:
            raise ValueError
    except ValueError as error:
        reason = "slow" if child.returncode == -signal.SIGXCPU else "unreadable"
        raise CosydError("bad_audio", reason=reason) from error
    return facts, samples


def _collect(pipe: IO[bytes], most: int) -> bytes:
    """Everything until its end. Raises CosydError(bad_audio): slow, unreadable (it says too much)."""
    found, deadline = bytearray(), time.monotonic() + WALL_S
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not ready.select(left):
                raise CosydError("bad_audio", reason="slow")
            block = os.read(pipe.fileno(), 1 << 18)
            if not block:
                return bytes(found)
            found += block
            if len(found) > most:
                raise CosydError("bad_audio", reason="unreadable")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait a moment for its exit status, then end it with whatever it started."""
    try:
        ended = os.pidfd_open(child.pid)
        try:
            select.select([ended], [], [], _ENDING_S)
        finally:
            os.close(ended)
        # Not waited for yet, so that the number of the group is still its own.
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
