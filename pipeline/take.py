"""One take of one segment: from the engine's chunks to its file, past the take check (`audio.check`).

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

from pipeline.audio.check import Finding, Listener
from pipeline.audio.files import SegmentWriter
from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Options, Segment, StopFlag, VoiceFeatures
from pipeline.jobs import SEED_MAX

TAKES = 2
"""A bad take is made again once. When the second is silent or not finite, the job ends with `bad_take`; when
it is only doubtful, it is delivered: a listener would rather have it than nothing."""


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
    listen: Callable[[], Listener] | None = None,
) -> Take:
    """Make `NNNN.pcm` of `segment`; `options(take)` says how take 0, 1 is spoken.

    `on_chunk` is called after each chunk is in the file. `confirm` is asked right before the file gets its
    final name: False means that the job is no longer ours. `listen` makes what judges one take; without it
    only silence and what is no number are caught. Raises Interrupted, CosydError(bad_take) after the
    last take, `storage_full`, and whatever the engine raises; the part file is gone then.
    """
    for take in range(TAKES):
        chosen = options(take)
        listener = listen() if listen else Listener(segment.text, natural=False)
        last = take + 1 == TAKES
        with open_writer(job_dir, segment.idx) as writer:
            try:
                with _closing(engine.synthesize(segment, voice, chosen, stop)) as chunks:
                    for chunk in chunks:
                        _refuse(listener.chunk(chunk), last)
                        writer.append(chunk)
                        on_chunk()
                        if stop.is_set():
                            break
                if not stop.is_set():
                    _refuse(listener.end(), last)
            except CosydError as error:
                if error.code != "bad_take" or last or stop.is_set():
                    raise
                continue
            if stop.is_set() or not confirm():
                raise Interrupted
            return Take(samples=writer.finish(), retries=take, seed=chosen.seed)
    raise AssertionError("unreachable: the last take returns or raises")


def _refuse(finding: Finding | None, last: bool) -> None:
    """Raise CosydError(bad_take), unless there is nothing or it is the last take and only doubtful."""
    if finding is not None and (finding.fatal or not last):
        raise CosydError("bad_take", reason=finding.reason)
