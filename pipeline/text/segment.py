"""Cuts a text into the segments that are spoken one by one (CONTRACTS 3). Pure and deterministic.

By sentence and line first; a sentence above the longest segment by clause, then by word, then by length.
Called by the worker when a job is begun, and again for segments not begun when a leaner profile takes over.
"""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.engines.base import Segment
from pipeline.jobs import HAN_PER_SECOND, LETTERS_PER_SECOND, Markup, has_words, is_han
from pipeline.text.boundaries import Kind
from pipeline.text.dictionary import Entry
from pipeline.text.front import prepare
from pipeline.text.language import primary, script_of
from pipeline.text.spoken import Spoken

FIRST_SHORT_S = 4.0
"""The first piece of an interactive job is a clause of about this length, so that sound starts early."""

MERGE_BELOW_S = 0.45
"""A piece shorter than this is spoken with its neighbour: alone it would sound clipped."""

PAUSE_S = {None: 0.0, Kind.CLAUSE: 0.12, Kind.SENTENCE: 0.35, Kind.LINE: 0.45, Kind.PARAGRAPH: 0.6}
"""Silence after a piece at speed 1, by what ends it; None is a cut where the text has no mark."""

_BEFORE_MARKS = re.compile(r" +(?=[,.;:!?，。！？；：、）)」』”])")
_HAN_ = "㐀-鿿豈-﫿，。！？；：、"
_BY_HAN = re.compile(f" (?<=[{_HAN_}] )(?=[{_HAN_}])")  # a blank first: that is found fast

# estimate_seconds in whole numbers, so that sums over a long text are exact: 45 units are one second.
_UNITS_PER_SECOND = 45
_HAN_UNITS = round(_UNITS_PER_SECOND / HAN_PER_SECOND)
_LETTER_UNITS = round(_UNITS_PER_SECOND / LETTERS_PER_SECOND)


def _units(ch: str) -> int:
    return _HAN_UNITS if is_han(ch) else 0 if ch.isspace() else _LETTER_UNITS


_ASCII_UNITS = bytes(_units(chr(code)) for code in range(256))


class _Piece(NamedTuple):
    start: int
    end: int
    kind: Kind | None  # of the boundary at its end
    pause_s: float | None = None  # asked for by markup


class _Ruler:
    """Estimated length of any stretch of the text in constant time, and where a given length ends."""

    def __init__(self, text: str) -> None:
        each: Iterable[int]
        if text.isascii():
            each = text.encode("ascii").translate(_ASCII_UNITS)
        else:
            units = {ch: _units(ch) for ch in set(text)}
            each = map(units.__getitem__, text)
        self.sums = list(itertools.accumulate(each, initial=0))

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
    dictionary: Sequence[Entry] = (),
    read_out: bool = True,
) -> list[Segment]:
    """The segments of `text`, none longer than `longest_s` by `estimate_seconds(segment.text, speed)`.

    `start` and `end` are offsets into `text` as given; segments are in order, do not overlap, and hold each
    character that can be spoken once. `Segment.text` is what is said: document form taken out, numbers and
    signs in words, markup (`[h][ào]`) kept, on one line. `pause_s` follows the kind of boundary and the
    speed, or the pause that was asked for; the last is 0 unless asked for. Nothing to speak gives [].
    `read_out` is False for engines that make signals and do not speak: they get the text as typed.
    """
    front = prepare(text, language=language, markup=markup, dictionary=dictionary, read_out=read_out)
    plain, marks = front.spoken.text, front.marks
    ruler = _Ruler(plain)
    limit = max(_HAN_UNITS, int(longest_s * speed * _UNITS_PER_SECOND - 1e-6))
    short = int(MERGE_BELOW_S * speed * _UNITS_PER_SECOND)
    pieces = _merge(_sentences(plain, marks, front.pauses), ruler, short, limit)
    cut = [part for piece in pieces for part in _cut(piece, ruler, front.spoken, marks, limit)]
    if first_short and cut:
        first = int(FIRST_SHORT_S * speed * _UNITS_PER_SECOND)
        if ruler.units(cut[0].start, cut[0].end) > first:
            head = _cut_once(cut[0], ruler, front.spoken, marks, first)
            cut[:1] = [head, cut[0]._replace(start=head.end)]
    cut = _without_silent(cut, plain)
    segments: list[Segment] = []
    for idx, piece in enumerate(cut):
        start, end = _trimmed(plain, piece.start, piece.end)
        words = _tidy(plain[start:end])
        last = idx == len(cut) - 1
        pause_s = 0.0 if last else PAUSE_S[piece.kind] / speed
        # A cut inside something that is read as a whole (a long number) has the whole in both pieces.
        source = max(front.spoken.offset(start), segments[-1].end if segments else 0)
        segments.append(
            Segment(
                idx=idx,
                text=words,
                start=source,
                end=max(front.spoken.offset_after(end - 1), source),
                pause_s=round(pause_s if piece.pause_s is None else piece.pause_s, 3),
                language=_language(words, language, front.language),
            )
        )
    return segments


def _tidy(text: str) -> str:
    """On one line, without the blanks that readings leave before marks and next to Han."""
    text = _BEFORE_MARKS.sub("", " ".join(text.split()))
    return _BY_HAN.sub("", text)


def _language(words: str, language: str, context: str) -> str:
    """`auto` stays, except where a piece alone says too little: digits, or Han amid Japanese."""
    if primary(language):
        return language
    if context != "ja":
        return "auto" if any(map(script_of, words)) else context
    scripts = set(map(script_of, words)) - {""}
    return context if not scripts or ("han" in scripts and "kana" not in scripts) else "auto"


def _sentences(
    text: str, marks: Sequence[tuple[int, Kind]], pauses: Sequence[tuple[int, float]]
) -> list[_Piece]:
    pieces: list[_Piece] = []
    start = 0
    wanted: dict[int, float] = {}
    for at, seconds in pauses:
        wanted[at] = wanted.get(at, 0.0) + seconds
    ends: dict[int, Kind] = dict.fromkeys(wanted, Kind.CLAUSE) | {
        a: k for a, k in marks if k >= Kind.SENTENCE
    }
    for at, kind in sorted(ends.items()):
        if at > start:
            kind = kind if at < len(text) else Kind.PARAGRAPH
            pieces.append(_Piece(start, at, kind, wanted.get(at)))
            start = at
        elif at in wanted and pieces:
            pieces[-1] = pieces[-1]._replace(pause_s=(pieces[-1].pause_s or 0.0) + wanted[at])
    if start < len(text):
        pieces.append(_Piece(start, len(text), Kind.PARAGRAPH))
    return pieces


def _merge(pieces: Sequence[_Piece], ruler: _Ruler, short: int, limit: int) -> list[_Piece]:
    """Join really short pieces with a neighbour of the same line, the one that follows first."""
    merged: list[_Piece] = []
    for piece in pieces:
        before = merged[-1] if merged else None
        if before is not None and before.kind == Kind.SENTENCE and before.pause_s is None:
            small = min(ruler.units(before.start, before.end), ruler.units(piece.start, piece.end)) < short
            # A short piece waits for what follows it; only the last of a line leans on the one before.
            leans = ruler.units(before.start, before.end) < short or piece.kind != Kind.SENTENCE
            if small and leans and ruler.units(before.start, piece.end) <= limit:
                merged[-1] = piece._replace(start=before.start)
                continue
        merged.append(piece)
    return merged


def _cut(
    piece: _Piece, ruler: _Ruler, spoken: Spoken, marks: Sequence[tuple[int, Kind]], limit: int
) -> list[_Piece]:
    """A piece as parts within `limit`, about equally long."""
    parts = []
    while ruler.units(piece.start, piece.end) > limit:
        left = ruler.units(piece.start, piece.end)
        head = _cut_once(piece, ruler, spoken, marks, limit, ideal=left // -(-left // limit))
        parts.append(head)
        piece = piece._replace(start=head.end)
    return [*parts, piece]


def _cut_once(
    piece: _Piece,
    ruler: _Ruler,
    spoken: Spoken,
    marks: Sequence[tuple[int, Kind]],
    limit: int,
    ideal: int | None = None,
) -> _Piece:
    """The head of a piece that is above `limit` units: to a clause end, a blank, or as far as it may go."""
    ideal = limit if ideal is None else ideal
    text = spoken.text
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
    at = -1 if blank is None else blank
    if blank is None:
        at = max(piece.start + 1, ruler.reach(piece.start, ideal))
        at = _whole_character(text, piece.start, at)
    # Not inside a number that is read out, unless it alone is too long.
    return _Piece(piece.start, whole if (whole := spoken.whole(at)) > piece.start else at, None)


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
        elif kept:
            asked = [p.pause_s for p in (kept[-1], piece) if p.pause_s is not None]
            kind = max(piece.kind or Kind(1), kept[-1].kind or Kind(1)) if piece.kind else kept[-1].kind
            kept[-1] = kept[-1]._replace(kind=kind, pause_s=sum(asked) if asked else None)
    return kept


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
