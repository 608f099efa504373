"""Reads a job's sound while it is made: segments, then the growing one, at last the finished FLAC.

Used by the web service (from asyncio) and the CLI (from a loop). It looks only at files; what the database
knows comes through `probe`. Nothing is said twice and nothing is left out, also when a segment is made
again after a crash (a new inode) and when the FLAC replaces the segment files under an open reader.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.audio.join import RETAKE_FADE, I16Mono, Joiner
from pipeline.codes import CosydError
from pipeline.jobs import FINAL_STATES, SAMPLE_RATE, JobState
from pipeline.paths import segment_part, segment_pcm

READ_BYTES = 2 * SAMPLE_RATE * 4
"""At most this much comes out of one `read`, so that an event loop is not held up by a long finished job."""

FAST_POLL_S = 0.005
"""Wait between polls until the first sound (twice that when it takes long): a part of the latency."""

SLOW_POLL_S = 0.050
"""Longest wait once sound flows: the listener has some in hand, and each poll costs three stats."""

_PATIENT_AFTER_S = 2.0
_RECENT = 64

PROBE_EVERY_S = 0.25
"""How often the database is asked while nothing comes; asked at once when a segment ends."""

_NONE: I16Mono = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What the database knows of a job; `segments` is None before the text is cut."""

    state: JobState | str
    segments: int | None = None
    error: CosydError | None = None


Probe = Callable[[], JobProgress]


class JobFollower:
    """A non-blocking reader of one job. `read` often; wait `delay_s` when it gave nothing.

    Ends with `finished` (all was given out) or `error` (the job failed, was cancelled or is gone; what
    could be heard came before). `start` drops that many samples first. Close it, or use it in `with`.
    """

    def __init__(
        self,
        job_dir: Path,
        final: Path,
        probe: Probe,
        *,
        start: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.finished = False
        self.error: CosydError | None = None
        self.delay_s = FAST_POLL_S
        self._dir, self._final, self._probe, self._monotonic = job_dir, final, probe, monotonic
        self._joiner = Joiner()
        self._idx = 0
        self._fd: int | None = None  # the take being read
        self._flac: Any = None
        self._drop = start
        self._odd = b""  # half a sample at the end of a part file
        self._heard = False
        self._recent = _NONE  # the last samples given out, by which the finished file is recognised
        self._next_probe = 0.0
        self._opened_at = monotonic()
        self._ending: CosydError | None = None  # the job is over without a result: drain, then say so

    def read(self) -> bytes:
        """The s16le samples that have become available, possibly none. Never blocks on the job."""
        if self.finished or self.error:
            return b""
        pieces: list[I16Mono] = []
        budget = READ_BYTES
        while budget > 0 and not (self.finished or self.error):
            samples = self._step(budget)
            if samples is None:
                break
            pieces.append(samples)
            self._recent = np.concatenate([self._recent, samples])[-_RECENT:]
            budget -= 2 * len(samples)
        return self._give(pieces)

    @property
    def position(self) -> int:
        """Offset into the job's signal of the next sample that `read` gives out."""
        return int(self._flac.tell()) if self._flac is not None else self._joiner.position

    def close(self) -> None:
        """Let go of open files. Idempotent."""
        self._close_take()
        if self._flac is not None:
            self._flac.close()
            self._flac = None

    def __enter__(self) -> JobFollower:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _give(self, pieces: list[I16Mono]) -> bytes:
        joined = np.concatenate(pieces) if pieces else _NONE
        skipped = min(self._drop, len(joined))
        self._drop -= skipped
        joined = joined[skipped:]
        if len(joined):
            self._heard = True
            self.delay_s = FAST_POLL_S
        elif self._heard:
            self.delay_s = min(SLOW_POLL_S, self.delay_s * 1.5)
        elif self._monotonic() - self._opened_at > _PATIENT_AFTER_S:
            self.delay_s = 2 * FAST_POLL_S
        return joined.astype("<i2", copy=False).tobytes()

    def _step(self, budget: int) -> I16Mono | None:
        """One move: samples (possibly none) when another step may bring more at once, else None."""
        if self._flac is not None:
            return self._read_flac(budget)
        if self._fd is None and not self._open_take():
            return self._splice_flac(budget) if self._open_flac() else self._ask(between=True)
        status = self._status()  # before reading, so that "finished" means: read on to the end
        if status == "replaced":
            self._close_take()
            self._joiner.restart_segment()
            return _NONE
        if status == "gone" and self._open_flac():
            return self._splice_flac(budget)
        samples = self._read_take(budget)
        if len(samples):
            self._ending = None  # more came since the job was known to be over: ask again at its end
            return self._joiner.feed(samples)
        if status == "finished":
            self._close_take()
            self._idx += 1
            self._next_probe, self._ending = 0.0, None
            return self._joiner.end_segment()
        return self._ask(between=False)

    def _open_take(self) -> bool:
        """Open the current segment, the finished file first."""
        for path in (segment_pcm(self._dir, self._idx), segment_part(self._dir, self._idx)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return True
        return False

    def _close_take(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._odd = b""

    def _read_take(self, budget: int) -> I16Mono:
        assert self._fd is not None
        data = self._odd + os.read(self._fd, budget)
        whole = len(data) & ~1
        self._odd = data[whole:]
        return np.frombuffer(data[:whole], "<i2").astype(np.int16, copy=False)

    def _status(self) -> str:
        """growing, finished, replaced (by another take) or gone (no file of that segment is left)."""
        assert self._fd is not None
        ours = os.fstat(self._fd)
        pcm, part = segment_pcm(self._dir, self._idx), segment_part(self._dir, self._idx)
        # pcm twice: the file may be renamed between the first two looks.
        for path, ours_means in ((pcm, "finished"), (part, "growing"), (pcm, "finished")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found = os.stat(path)
                same = (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
                return ours_means if same else "replaced"
        return "gone"

    def _ask(self, *, between: bool) -> I16Mono | None:
        """No new samples: see whether the job is over. `between`: no file of the next segment is there."""
        if self._ending is not None:  # the files were read to their end since the job was known to be over
            self.error = self._ending
            return self._joiner.finish()
        now = self._monotonic()
        if now < self._next_probe:
            return None
        self._next_probe = now + PROBE_EVERY_S
        progress = self._probe()
        if between and progress.segments is not None and 0 < progress.segments <= self._idx:
            self.finished = True
            return self._joiner.finish()
        if progress.state not in FINAL_STATES:
            return None
        # Over. One more step looks at the files as they are now; only if that brings nothing it is an error.
        default = {JobState.DONE: "not_found", JobState.CANCELLED: "cancelled"}.get(
            JobState(progress.state), "internal"
        )
        self._ending = progress.error or CosydError(default)
        return _NONE

    def _open_flac(self) -> bool:
        import soundfile

        if not self._final.exists():
            return False
        try:
            self._flac = soundfile.SoundFile(self._final)
        except soundfile.LibsndfileError:
            return False  # removed in this very moment
        return True

    def _splice_flac(self, budget: int) -> I16Mono:
        """Go on in the finished file from the listener's offset.

        It has the samples he has heard, so it simply goes on; a fade only when it is of another take.
        """
        self._close_take()
        position = min(self._joiner.position, self._flac.frames)
        before = min(position, len(self._recent))
        self._flac.seek(position - before)
        read = self._flac.read(before + max(budget // 2, RETAKE_FADE), dtype="int16")
        same = np.array_equal(read[:before], self._recent[len(self._recent) - before :])
        return read[before:] if same else self._joiner.splice(read[before:])

    def _read_flac(self, budget: int) -> I16Mono:
        samples: I16Mono = self._flac.read(max(1, budget // 2), dtype="int16")
        if not len(samples):
            self.finished = True
        return samples


def follow_job(
    job_dir: Path,
    final: Path,
    probe: Probe,
    *,
    start: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """s16le pieces of a job's sound until it is over, waiting with `sleep`. For threads and the CLI.

    Raises the job's CosydError after what could be heard was given out.
    """
    with JobFollower(job_dir, final, probe, start=start) as follower:
        while True:
            if data := follower.read():
                yield data
            elif follower.error:
                raise follower.error
            elif follower.finished:
                return
            else:
                sleep(follower.delay_s)
