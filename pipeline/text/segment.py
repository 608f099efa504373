"""Cuts a text into the segments that are spoken one by one (CONTRACTS 3). Pure and deterministic.

By sentence and line first; a sentence above the longest segment by clause, then by word, then by length.
Called by the worker when a job is begun, and again for segments not begun when a leaner profile takes over.
"""

from __future__ import annotations

import bisect
import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engines.base import Segment
from pipeline.jobs import HAN_PER_SECOND, LETTERS_PER_SECOND, Markup, has_words, is_han
from pipeline.text.boundaries import Kind, find_boundaries
from pipeline.text.language import detect, primary, script_of
from pipeline.text.speech import to_speech

FIRST_SHORT_S = 4.0
"""The first piece of an interactive job is a clause of about this length, so that sound starts early."""

MERGE_BELOW_S = 1.0
"""A piece shorter than this is spoken with its neighbour: alone it would sound clipped."""

PAUSE_S = {None: 0.0, Kind.CLAUSE: 0.12, Kind.SENTENCE: 0.35, Kind.LINE: 0.45, Kind.PARAGRAPH: 0.6}
"""Silence after a piece at speed 1, by what ends it; None is a cut where the text has no mark."""

# estimate_seconds in whole numbers, so that sums over a long text are exact: 45 units are one second.
_UNITS_PER_SECOND = 45
_HAN_UNITS = round(_UNITS_PER_SECOND / HAN_PER_SECOND)
_LETTER_UNITS = round(_UNITS_PER_SECOND / LETTERS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    end: int
    kind: Kind | None  # of the boundary at its end


class _Ruler:
    """Estimated length of any stretch of the text in constant time, and where a given length ends."""

    def __init__(self, text: str) -> None:
        units = (_HAN_UNITS if is_han(ch) else 0 if ch.isspace() else _LETTER_UNITS for ch in text)
        self.sums = list(itertools.accumulate(units, initial=0))

    def units(self, start: int, end: int) -> int:
        return self.sums[end] - self.sums[start]

    def reach(self, start: int, units: int) -> int:
        """The furthest end of a stretch from `start` within `units`."""
        return bisect.bisect_right(self.sums, self.sums[start] + units) - 1


def plan(
    text: str,
    *,
    longest_s: float,
    first_short: bool,
    speed: float = 1.0,
    language: str = "auto",
    markup: Markup = "plain",
) -> list[Segment]:
    """The segments of `text`, none longer than `longest_s` by `estimate_seconds(segment.text, speed)`.

    `start` and `end` are offsets into `text` as given; segments are in order, do not overlap, and hold each
    character that can be spoken once (markup is left out). `Segment.text` is cleaned, on one line.
    `pause_s` follows the kind of boundary and the speed; the last is 0. Nothing to speak gives [].
    """
    spoken = to_speech(text, markup)
    plain = spoken.text
    ruler = _Ruler(plain)
    limit = max(_HAN_UNITS, int(longest_s * speed * _UNITS_PER_SECOND - 1e-6))
    marks = [(b.at, b.kind) for b in find_boundaries(plain)]
    short = int(MERGE_BELOW_S * speed * _UNITS_PER_SECOND)
    pieces = _merge(_sentences(plain, marks), ruler, short, limit)
    cut = [part for piece in pieces for part in _cut(piece, ruler, plain, marks, limit)]
    if first_short and cut:
        first = int(FIRST_SHORT_S * speed * _UNITS_PER_SECOND)
        if ruler.units(cut[0].start, cut[0].end) > first:
            head = _cut_once(cut[0], ruler, plain, marks, first)
            cut[:1] = [head, _Piece(head.end, cut[0].end, cut[0].kind)]
    cut = _without_silent(cut, plain)
    context = detect(plain, language)
    segments = []
    for idx, piece in enumerate(cut):
        start, end = _trimmed(plain, piece.start, piece.end)
        words = " ".join(plain[start:end].split())
        last = idx == len(cut) - 1
        segments.append(
            Segment(
                idx=idx,
                text=words,
                start=spoken.offset(start),
                end=spoken.offset(end - 1) + 1,
                pause_s=0.0 if last else round(PAUSE_S[piece.kind] / speed, 3),
                language=_language(words, language, context),
            )
        )
    return segments


def _language(words: str, language: str, context: str) -> str:
    """`auto` stays, except where a piece alone says too little: digits, or Han amid Japanese."""
    if primary(language):
        return language
    scripts = {script_of(ch) for ch in words} - {""}
    if not scripts or (context == "ja" and "han" in scripts and "kana" not in scripts):
        return context
    return "auto"


def _sentences(text: str, marks: Sequence[tuple[int, Kind]]) -> list[_Piece]:
    pieces, start = [], 0
    for at, kind in marks:
        if kind >= Kind.SENTENCE and at > start:
            pieces.append(_Piece(start, at, kind if at < len(text) else Kind.PARAGRAPH))
            start = at
    if start < len(text):
        pieces.append(_Piece(start, len(text), Kind.PARAGRAPH))
    return pieces


def _merge(pieces: Sequence[_Piece], ruler: _Ruler, short: int, limit: int) -> list[_Piece]:
    """Join really short pieces with a neighbour of the same line, the one that follows first."""
    merged: list[_Piece] = []
    for piece in pieces:
        before = merged[-1] if merged else None
        if before is not None and before.kind == Kind.SENTENCE:
            small = min(ruler.units(before.start, before.end), ruler.units(piece.start, piece.end)) < short
            # A short piece waits for what follows it; only the last of a line leans on the one before.
            leans = ruler.units(before.start, before.end) < short or piece.kind != Kind.SENTENCE
            if small and leans and ruler.units(before.start, piece.end) <= limit:
                merged[-1] = _Piece(before.start, piece.end, piece.kind)
                continue
        merged.append(piece)
    return merged


def _cut(
    piece: _Piece, ruler: _Ruler, text: str, marks: Sequence[tuple[int, Kind]], limit: int
) -> list[_Piece]:
    """A piece as parts within `limit`, about equally long."""
    parts = []
    while ruler.units(piece.start, piece.end) > limit:
        left = ruler.units(piece.start, piece.end)
        head = _cut_once(piece, ruler, text, marks, limit, ideal=left // -(-left // limit))
        parts.append(head)
        piece = _Piece(head.end, piece.end, piece.kind)
    return [*parts, piece]


def _cut_once(
    piece: _Piece,
    ruler: _Ruler,
    text: str,
    marks: Sequence[tuple[int, Kind]],
    limit: int,
    ideal: int | None = None,
) -> _Piece:
    """The head of a piece that is above `limit` units: to a clause end, a blank, or as far as it may go."""
    ideal = limit if ideal is None else ideal
    reach = ruler.reach(piece.start, limit)
    low = bisect.bisect_right(marks, (piece.start, Kind.PARAGRAPH))
    high = bisect.bisect_right(marks, (reach, Kind.PARAGRAPH))
    at_marks = [
        (at, kind)
        for at, kind in marks[low:high]
        if ruler.units(piece.start, at) * 4 >= ideal and at < piece.end
    ]
    if at_marks:
        at, kind = min(at_marks, key=lambda mark: abs(ruler.units(piece.start, mark[0]) - ideal))
        return _Piece(piece.start, at, min(kind, Kind.SENTENCE))
    blank = _last_blank(text, ruler.reach(piece.start, ideal // 4), ruler.reach(piece.start, ideal))
    if blank is not None:
        return _Piece(piece.start, blank, None)
    at = max(piece.start + 1, ruler.reach(piece.start, ideal))
    return _Piece(piece.start, _whole_character(text, piece.start, at), None)


def _last_blank(text: str, low: int, high: int) -> int | None:
    """The end of the last white space in `text[low:high + 1]`, after which a word may start."""
    if high < len(text) and text[high].isspace():
        return high
    for at in range(high, low, -1):
        if text[at - 1].isspace():
            return at
    return None


def _whole_character(text: str, start: int, at: int) -> int:
    """Not before a combining mark or a joiner: a letter and its accents, an emoji family stay together."""
    for back in range(at, max(start, at - 8), -1):
        if back >= len(text):
            return back
        joined = unicodedata.category(text[back])[0] == "M" or "\u200d" in text[back - 1 : back + 1]
        if not joined:
            return back
    return at


def _without_silent(pieces: Sequence[_Piece], text: str) -> list[_Piece]:
    """Pieces with nothing to speak lend their pause to the one before and vanish."""
    kept: list[_Piece] = []
    for piece in pieces:
        if has_words(text[piece.start : piece.end]):
            kept.append(piece)
        elif kept and (piece.kind or 0) > (kept[-1].kind or 0):
            kept[-1] = _Piece(kept[-1].start, kept[-1].end, piece.kind)
    return kept


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
