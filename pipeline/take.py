"""One take of one segment: from the engine's chunks to its file, with the basic take check.

Called by `pipeline.runner`, in the engine's one thread. The listener hears the take while it is made; a take
that fails the check is thrown away and made once more with another seed, as a new file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.audio.files import SegmentWriter
from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Options, Segment, StopFlag, VoiceFeatures
from pipeline.jobs import SEED_MAX, has_words

SILENCE_PEAK = 10 ** (-50 / 20)
"""Speech whose loudest sample stays below -50 dBFS is silent: far below the softest voice, above dither."""

TAKES = 2
"""A bad take is made again once; the second bad one ends the job with `bad_take`."""


class Why(StrEnum):
    """Why a synthesis was told to stop; the first reason stays."""

    CANCEL = "cancel"
    LEASE_LOST = "lease_lost"
    DEADLINE = "deadline"
    LEAVE = "leave"


class Stop:
    """A StopFlag that remembers why and since when (monotonic seconds). Set from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._set: tuple[Why, float] | None = None

    def set(self, why: Why) -> None:
        """Ask for the end; a second reason changes nothing."""
        self._set = self._set or (why, self._monotonic())

    def is_set(self) -> bool:
        return self._set is not None

    @property
    def why(self) -> Why | None:
        return self._set[0] if self._set else None

    @property
    def since(self) -> float | None:
        return self._set[1] if self._set else None


class Interrupted(Exception):
    """The take was not finished because the stop flag was set; its file is gone."""


@dataclass(frozen=True, slots=True)
class Take:
    """A finished segment: `samples` in its file, takes thrown away, the seed that made it."""

    samples: int
    retries: int
    seed: int


def take_seed(segment_seed: int, take: int) -> int:
    """The seed of take `take` (0, 1 ..) of a segment: the segment's own, then ones that no neighbour has."""
    if take == 0:
        return segment_seed
    digest = hashlib.blake2b(f"{segment_seed}:{take}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (SEED_MAX + 1)


class _Check:
    """Looks at a take while it passes."""

    def __init__(self, words: bool) -> None:
        self._words = words
        self._peak = 0.0

    def chunk(self, chunk: F32Mono) -> None:
        if not np.isfinite(chunk).all():
            raise CosydError("bad_take", reason="not_finite")
        if len(chunk):
            self._peak = max(self._peak, float(np.abs(chunk).max()))

    def end(self) -> None:
        if self._words and self._peak < SILENCE_PEAK:
            raise CosydError("bad_take", reason="silent")


@contextmanager
def _closing(chunks: Iterator[F32Mono]) -> Iterator[Iterator[F32Mono]]:
    """A generator left in the middle is closed now, with the programs it started, not at collection."""
    try:
        yield chunks
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


class Speaker(Protocol):
    """The part of an engine that a take needs."""

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]: ...


OpenWriter = Callable[[Path, int], SegmentWriter]


def speak_segment(
    engine: Speaker,
    segment: Segment,
    voice: VoiceFeatures | str,
    options: Callable[[int], Options],
    *,
    job_dir: Path,
    stop: Stop,
    on_chunk: Callable[[], None],
    confirm: Callable[[], bool] = lambda: True,
    open_writer: OpenWriter = SegmentWriter,
) -> Take:
    """Make `NNNN.pcm` of `segment`; `options(take)` says how take 0, 1 is spoken.

    `on_chunk` is called after each chunk is in the file. `confirm` is asked right before the file gets its
    final name: False means that the job is no longer ours. Raises Interrupted, CosydError(bad_take) after the
    last take, `storage_full`, and whatever the engine raises; the part file is gone then.
    """
    for take in range(TAKES):
        chosen = options(take)
        check = _Check(has_words(segment.text))
        with open_writer(job_dir, segment.idx) as writer:
            try:
                with _closing(engine.synthesize(segment, voice, chosen, stop)) as chunks:
                    for chunk in chunks:
                        check.chunk(chunk)
                        writer.append(chunk)
                        on_chunk()
                        if stop.is_set():
                            break
                if not stop.is_set():
                    check.end()
            except CosydError as error:
                if error.code != "bad_take" or take + 1 == TAKES or stop.is_set():
                    raise
                continue
            if stop.is_set() or not confirm():
                raise Interrupted
            return Take(samples=writer.finish(), retries=take, seed=chosen.seed)
    raise AssertionError("unreachable: the last take returns or raises")
