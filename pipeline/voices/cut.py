"""Which 3 to 10 seconds of a longer recording make the best reference. Pure; `find_speech` in, spans out.

A cut begins and ends in a pause, so that no word is halved. Better is: eight seconds of speech, no long
pauses, one level (else there are perhaps two people, or somebody walks about).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeline.audio.speech import FRAME_S, Activity

LEAST_S, MOST_S, BEST_S = 3.0, 10.0, 8.0
MARGIN_S = 0.1
"""Of the pause before and after, this much is kept."""
_LONG_PAUSE_S = 0.7


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a recording in seconds, and how good it is (higher is better)."""

    start: float
    end: float
    score: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


def outer(activity: Activity, total_s: float) -> Cut:
    """All of it without the silence before and after, 100 ms kept. Without any sound: all."""
    if not activity.spans:
        return Cut(0.0, total_s)
    start, end = activity.spans[0][0] * FRAME_S, activity.spans[-1][1] * FRAME_S
    return Cut(max(0.0, start - MARGIN_S), min(total_s, end + MARGIN_S))


def best_cuts(activity: Activity, total_s: float, most_s: float = MOST_S, count: int = 3) -> list[Cut]:
    """The best parts of at most `most_s` seconds, the best first, none sharing a second with another."""
    most_s = min(most_s, MOST_S)
    pieces = [part for span in activity.spans for part in _fitting(activity, span, most_s)]
    found = []
    for first, (start, _) in enumerate(pieces):
        for last in range(first, len(pieces)):
            inside = pieces[first : last + 1]
            seconds = FRAME_S * (pieces[last][1] - start)
            if seconds + 2 * MARGIN_S > most_s + 1e-6:
                break
            low = max(0.0, start * FRAME_S - MARGIN_S, _before(pieces, first))
            high = min(total_s, pieces[last][1] * FRAME_S + MARGIN_S, _after(pieces, last))
            found.append(Cut(round(low, 3), round(high, 3), _score(activity, inside, seconds)))
    if not found:
        return [Cut(0.0, min(total_s, most_s))]
    found.sort(key=lambda cut: (-cut.score, cut.start))
    chosen: list[Cut] = []
    for cut in found:
        if len(chosen) == count:
            break
        if chosen and cut.seconds < LEAST_S:
            continue
        if all(min(cut.end, other.end) - max(cut.start, other.start) < 1.0 for other in chosen):
            chosen.append(cut)
    return chosen


def _before(pieces: list[tuple[int, int]], at: int) -> float:
    """No earlier than the end of the piece before."""
    return pieces[at - 1][1] * FRAME_S if at else 0.0


def _after(pieces: list[tuple[int, int]], at: int) -> float:
    return pieces[at + 1][0] * FRAME_S if at + 1 < len(pieces) else float("inf")


def _fitting(activity: Activity, span: tuple[int, int], most_s: float) -> list[tuple[int, int]]:
    """A piece without a pause that is longer than a cut may be, parted at its quietest frames."""
    limit = int((most_s - 2 * MARGIN_S) / FRAME_S)
    start, end = span
    parts = []
    while end - start > limit:
        window = activity.levels[start + limit // 2 : start + limit]
        at = start + limit // 2 + int(window.argmin())
        parts.append((start, at))
        start = at
    return [*parts, (start, end)]


def _score(activity: Activity, pieces: list[tuple[int, int]], seconds: float) -> float:
    """In seconds of good speech: what is spoken up to `BEST_S`, less what spoils it."""
    spoken = FRAME_S * sum(end - start for start, end in pieces)
    pauses = [FRAME_S * (after[0] - before[1]) for before, after in pairwise(pieces)]
    loudness = np.array([_level(activity, piece) for piece in pieces])
    own = float(loudness.max()) if len(loudness) else 0.0
    uneven = float(loudness.max() - loudness.min()) if len(loudness) else 0.0
    usual = activity.loud_db if activity.loud_db is not None else own
    return (
        min(spoken, BEST_S)
        - 0.25 * max(0.0, seconds - BEST_S)
        - 1.5 * sum(max(0.0, pause - _LONG_PAUSE_S) for pause in pauses)
        - 0.2 * max(0.0, uneven - 6.0)
        - 0.2 * max(0.0, abs(usual - own) - 6.0)
    )


def _level(activity: Activity, piece: tuple[int, int]) -> float:
    """How loud a piece is: the mean power of its frames, in dB."""
    powers = 10 ** (activity.levels[piece[0] : piece[1]] / 10)
    return float(10 * np.log10(powers.mean() + 1e-20))
