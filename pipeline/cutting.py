"""How a job is cut into segments, and how a later claim goes on from a cut that is already stored. Pure.

The rows hold offsets and text; pause and language of a segment follow from the text again. When the limits
have changed since (a leaner profile), what is finished stays and only the rest is cut anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pipeline.engines.base import Segment
from pipeline.jobs import JobRequest, Lane
from pipeline.queue.values import SegmentRow
from pipeline.text.dictionary import Entry
from pipeline.text.segment import plan


@dataclass(frozen=True, slots=True)
class Cut:
    """What the cutting follows from."""

    request: JobRequest
    lane: Lane
    longest_s: float
    dictionary: tuple[Entry, ...] = ()
    read_out: bool = True


@lru_cache(maxsize=8)
def _segments(cut: Cut, start: int) -> tuple[Segment, ...]:
    """The segments of the text from `start` on, offsets from there. Kept, since a long job that gives way is
    claimed again after each segment. The first of an interactive job is short: sound starts early."""
    request = cut.request
    return tuple(
        plan(
            request.text[start:],
            longest_s=cut.longest_s,
            first_short=start == 0 and cut.lane is Lane.interactive,
            speed=request.speed,
            language=request.language,
            markup=request.markup,
            dictionary=cut.dictionary,
            read_out=cut.read_out,
        )
    )


def cut_job(cut: Cut, finished: Sequence[SegmentRow]) -> tuple[Segment, ...]:
    """All segments of the job, numbered from 0; those in `finished`, the first ones, stay as they are."""
    whole = _segments(cut, 0)
    if _spans(whole[: len(finished)]) == _spans(finished):
        return whole
    at = finished[-1].end
    rest = _segments(cut, at)
    kept = tuple(Segment(row.idx, row.text, row.start, row.end) for row in finished)
    return kept + tuple(replace(s, idx=s.idx + len(kept), start=s.start + at, end=s.end + at) for s in rest)


def same_cut(segments: Sequence[Segment], stored: Sequence[SegmentRow]) -> bool:
    """Whether the stored rows are exactly these segments."""
    return _spans(segments) == _spans(stored)


def _spans(pieces: Sequence[Segment] | Sequence[SegmentRow]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]
