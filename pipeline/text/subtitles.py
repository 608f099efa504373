"""Subtitles of a recording: its text in pieces short enough to read, each with its time. Pure.

SubRip and WebVTT (https://www.w3.org/TR/webvtt1/). A cue has at most two lines of 42 letters or 21 Han;
inside a segment, whose time is known, cues share it by their expected length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.jobs import estimate_seconds, has_words
from pipeline.text.boundaries import find_boundaries
from pipeline.text.markup import control_edits, find_marks
from pipeline.text.speech import to_speech
from pipeline.text.spoken import Spoken

WIDTH = 84
"""Width of a cue in letters; a Han character counts twice."""


@dataclass(frozen=True, slots=True)
class Cue:
    """`text` from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    text: str


def shown(text: str) -> str:
    """What a reader should see: as typed, without document form, markup and control tokens, on one line."""
    plain = to_speech(text).text
    plain = Spoken.of(plain).edited(control_edits(plain))[0].text
    marks = [(m.start, m.end, " " if m.kind == "pause" else "") for m in find_marks(plain)]
    return " ".join(Spoken.of(plain).edited(marks)[0].text.split())


def _width(text: str) -> int:
    return sum(2 if ord(ch) > 0x2E7F else 1 for ch in text)


def _lines(text: str) -> list[str]:
    """`text` cut at its marks, then between words, then anywhere, into pieces of at most WIDTH."""
    ends = sorted({b.at for b in find_boundaries(text)} | {len(text)})
    pieces: list[str] = []
    start = 0
    for end in ends:
        part = text[start:end]
        if pieces and _width(pieces[-1] + part) <= WIDTH:
            pieces[-1] += part
        else:
            pieces += _hard(part)
        start = end
    return [piece.strip() for piece in pieces if piece.strip()]


def _hard(text: str) -> list[str]:
    pieces: list[str] = []
    while _width(text) > WIDTH:
        width = at = 0
        while width + _width(text[at]) <= WIDTH:
            width += _width(text[at])
            at += 1
        blank = text.rfind(" ", at // 2, at + 1)
        at = blank + 1 if blank > 0 else at
        pieces.append(text[:at])
        text = text[at:]
    return [*pieces, text]


def cues_of(text: str, start_s: float, end_s: float) -> list[Cue]:
    """The cues of one segment, whose source is `text`."""
    lines = [line for line in _lines(shown(text)) if has_words(line)]
    weights = [max(estimate_seconds(line), 0.05) for line in lines]
    total, done, cues = sum(weights), 0.0, []
    for line, weight in zip(lines, weights, strict=True):
        first = start_s + (end_s - start_s) * done / total
        done += weight
        cues.append(Cue(first, start_s + (end_s - start_s) * done / total, line))
    return cues


def _stamp(seconds: float, mark: str) -> str:
    millis = max(0, round(seconds * 1000))
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"


def srt(cues: Sequence[Cue]) -> str:
    """SubRip."""
    return "".join(
        f"{n}\n{_stamp(cue.start_s, ',')} --> {_stamp(cue.end_s, ',')}\n{cue.text}\n\n"
        for n, cue in enumerate(cues, start=1)
    )


def webvtt(cues: Sequence[Cue]) -> str:
    """WebVTT, its special characters escaped."""
    escaped = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    return "WEBVTT\n\n" + "".join(
        f"{_stamp(cue.start_s, '.')} --> {_stamp(cue.end_s, '.')}\n{cue.text.translate(escaped)}\n\n"
        for cue in cues
    )
