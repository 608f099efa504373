"""How segments become one signal: neighbours overlap by 30 ms in a linear crossfade (CONTRACTS 3 and 5).

The final file (`pipeline.audio.files`) and the live stream (`pipeline.audio.follow`) both come through
`Joiner`, so both have the same samples. Signals are int16, mono, 24 kHz, shape (samples,). The fade is
computed in integers and rounds half up: a signal faded with itself stays exactly the same, which is why a
second, equal take of a segment cannot be told from the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.jobs import SAMPLE_RATE

I16Mono: TypeAlias = npt.NDArray[np.int16]
"""Shape (samples,), int16."""

OVERLAP = SAMPLE_RATE * 30 // 1000
"""Samples (30 ms) by which a segment reaches into the next; held back until the next begins."""

RETAKE_FADE = SAMPLE_RATE * 20 // 1000
"""Samples (20 ms) over which a listener passes from a broken take to the new one."""

_EMPTY: I16Mono = np.zeros(0, np.int16)


def crossfade(old: I16Mono, new: I16Mono) -> I16Mono:
    """`old` fades out while `new` fades in, linearly; both have the same length, so has the result.

    Linear, not equal-power: segments' edges are near silence, and the sum of two weights that add up to one
    can neither clip nor change equal signals.
    """
    n = len(old)
    if n == 0:
        return _EMPTY
    weight = 2 * np.arange(n, dtype=np.int64) + 1
    mixed = (old.astype(np.int64) * (2 * n - weight) + new.astype(np.int64) * weight + n) // (2 * n)
    return mixed.astype(np.int16)


def join(segments: Iterable[I16Mono]) -> I16Mono:
    """All segments as one signal; the definition that `Joiner` follows to the sample.

    A segment (or what precedes it) shorter than the overlap is overlapped whole.
    """
    joined = _EMPTY
    for segment in segments:
        n = min(OVERLAP, len(joined), len(segment))
        faded = crossfade(joined[len(joined) - n :], segment[:n])
        joined = np.concatenate([joined[: len(joined) - n], faded, segment[n:]])
    return joined


def joined_length(lengths: Iterable[int]) -> int:
    """Samples of the joined signal, from the segments' lengths in samples."""
    total = 0
    for length in lengths:
        total += length - min(OVERLAP, total, length)
    return total


class Joiner:
    """`join`, fed piece by piece: `feed` and `end_segment` give the samples that are certain by now.

    The last 30 ms are always held back; `finish` gives them out. `restart_segment` begins another take of
    the segment being fed: the listener goes on at the same offset in the new take.
    """

    def __init__(self) -> None:
        self._tail: I16Mono = _EMPTY  # joined, not given out; at most OVERLAP samples between calls
        self._head: I16Mono = _EMPTY  # of this take, not yet merged into the tail
        self._before: I16Mono = _EMPTY  # what the start of this segment was faded with
        self._merged = False
        self._resume: int | None = None  # after a restart: offset into the segment where the new take goes on
        self._fed = 0  # samples of this take
        self._base = 0  # where this segment starts in the joined signal (known once merged)
        self._end = 0  # length of the joined signal up to the end of the previous segment

    @property
    def position(self) -> int:
        """Offset into the joined signal of the next sample to be given out."""
        if self._resume is not None:
            return self._base + self._resume
        if self._merged:
            return self._base + self._fed - len(self._tail)
        return self._end - len(self._tail)

    def feed(self, samples: I16Mono) -> I16Mono:
        """The next samples of the current segment; returns what can be played now."""
        self._fed += len(samples)
        if self._merged and self._resume is None:
            self._tail = np.concatenate([self._tail, samples])
        else:
            self._head = np.concatenate([self._head, samples])
            if self._resume is not None:
                if len(self._head) < max(self._resume + RETAKE_FADE, len(self._before)):
                    return _EMPTY
                self._pass_over()
            elif len(self._head) >= OVERLAP:
                self._merge()
            else:
                return _EMPTY
        return self._release()

    def end_segment(self) -> I16Mono:
        """The current segment is complete; returns what can be played now."""
        if self._resume is not None:
            self._pass_over()
        elif not self._merged:
            self._merge()
        self._end = self._base + self._fed
        self._merged, self._fed, self._before = False, 0, _EMPTY
        return self._release()

    def finish(self) -> I16Mono:
        """No segment follows: what was held back. A segment in progress counts as complete."""
        ended = self.end_segment() if self._merged or self._fed or self._resume is not None else _EMPTY
        tail, self._tail = self._tail, _EMPTY
        return np.concatenate([ended, tail])

    def restart_segment(self) -> None:
        """Forget the take being fed; `feed` starts again at its first sample, from another take."""
        if self._merged and self._resume is None:
            self._resume = self._fed - len(self._tail)
        self._head, self._fed = _EMPTY, 0

    def splice(self, rest: I16Mono) -> I16Mono:
        """Leave the segments and go on with `rest`, another signal from `position` on (20 ms fade)."""
        tail, self._tail = self._tail, _EMPTY
        n = min(RETAKE_FADE, len(tail))
        if len(rest) < n:
            rest = np.concatenate([rest, np.zeros(n - len(rest), np.int16)])
        return np.concatenate([crossfade(tail[:n], rest[:n]), rest[n:]])

    def _merge(self) -> None:
        n = min(OVERLAP, len(self._tail), len(self._head))
        kept = len(self._tail) - n
        self._before = self._tail[kept:]
        faded = crossfade(self._before, self._head[:n])
        self._tail = np.concatenate([self._tail[:kept], faded, self._head[n:]])
        self._head, self._merged = _EMPTY, True
        self._base = self._end - n

    def _pass_over(self) -> None:
        """Fade from the old take (the tail) to the new one (the head) at the listener's offset."""
        offset, n = self._resume or 0, len(self._before)
        take = self._head
        if len(take) < n:
            take = np.concatenate([take, np.zeros(n - len(take), np.int16)])
        take = np.concatenate([crossfade(self._before, take[:n]), take[n:]])[offset:]
        fade = min(RETAKE_FADE, len(self._tail), len(take))
        if fade:  # else the new take ended before the listener's offset: he has heard it all
            self._tail = np.concatenate([crossfade(self._tail[:fade], take[:fade]), take[fade:]])
        self._head, self._resume = _EMPTY, None

    def _release(self) -> I16Mono:
        cut = max(0, len(self._tail) - OVERLAP)
        out, self._tail = self._tail[:cut], self._tail[cut:]
        return out
