"""From what was typed to what is spoken, stage by stage. Pure; used by `pipeline.text.segment`.

    document form and tags (speech, ssml) -> control tokens (markup) -> dictionary -> pauses taken out
    -> where it may be cut (boundaries) -> numbers and signs (normalize), kanji (japanese), wide letters

Places to cut are found before numbers are read, while `3.14` and `Dr.` still look as they were written, and
carried over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.jobs import Markup, has_words
from pipeline.text.boundaries import Kind, find_boundaries
from pipeline.text.dictionary import Entry, dictionary_edits
from pipeline.text.japanese import kanji_edits
from pipeline.text.language import detect, primary, split_runs
from pipeline.text.markup import Mark, control_edits, find_marks
from pipeline.text.normalize import normalize_edits, stretches
from pipeline.text.signs import narrowed
from pipeline.text.speech import to_speech
from pipeline.text.spoken import Edit, Spoken

_KANA = re.compile("[ぁ-ヿ]")
_BRACKETS = re.compile(r"[\[\]]")


@dataclass(frozen=True, slots=True)
class Front:
    """What `plan` cuts: the spoken text with its origin, where it may be cut, and pauses by place."""

    spoken: Spoken
    marks: tuple[tuple[int, Kind], ...]
    pauses: tuple[tuple[int, float], ...]
    language: str


def prepare(
    text: str,
    *,
    language: str = "auto",
    markup: Markup = "plain",
    dictionary: Sequence[Entry] = (),
    read_out: bool = True,
) -> Front:
    """All stages. Never raises; a text with words never becomes one without.

    Without `read_out` (for an engine that makes signals and does not speak) plain text stays as typed.
    """
    if not read_out:
        spoken, silences = Spoken.of(text), list[tuple[int, float]]()
        if markup != "plain":
            spoken, silences = _without_pauses(to_speech(text, markup, language))
        places = tuple((b.at, b.kind) for b in find_boundaries(spoken.text))
        return Front(spoken, places, tuple(silences), detect(spoken.text, language))
    spoken = to_speech(text, markup, language)
    spoken, _ = spoken.edited(control_edits(spoken.text))
    context = detect(spoken.text, language)
    if dictionary:
        marked = [(mark.start, mark.end) for mark in find_marks(spoken.text)]
        open_ = list(stretches(len(spoken.text), marked))
        spoken, _ = spoken.edited(dictionary_edits(spoken.text, dictionary, context, open_))
    spoken, pauses = _without_pauses(spoken)
    plain = spoken.text
    kept = [(mark.start, mark.end) for mark in find_marks(plain)]
    boundaries = find_boundaries(plain)
    edits = [
        *normalize_edits(plain, language, kept),
        *_kanji(plain, language, kept),
        *_bare_brackets(plain, kept),
    ]
    read, moves = spoken.edited(
        _full_stops(plain, edits, {b.at for b in boundaries if b.kind >= Kind.SENTENCE})
    )
    if not has_words(read.text) and has_words(plain):
        return Front(spoken, tuple((b.at, b.kind) for b in boundaries), tuple(pauses), context)
    marks = [(at, b.kind) for b in boundaries if (at := moves.place(b.at)) is not None]
    moved = tuple((moves.nearest(at), seconds) for at, seconds in pauses)
    return Front(replace(read, text=narrowed(read.text)), tuple(marks), moved, context)


def _without_pauses(spoken: Spoken) -> tuple[Spoken, list[tuple[int, float]]]:
    marks = [mark for mark in find_marks(spoken.text) if mark.kind == "pause"]
    if not marks:
        return spoken, []
    without, moves = spoken.edited((mark.start, mark.end, " ") for mark in marks)
    return without, [(moves.nearest(mark.end), mark.seconds) for mark in marks]


def _kanji(text: str, language: str, kept: Sequence[tuple[int, int]]) -> list[Edit]:
    if primary(language) != "ja" and not _KANA.search(text):
        return []
    runs = [run for run in split_runs(text, language) if run.language == "ja"]
    inside = [
        (max(start, run.start), min(end, run.end))
        for run in runs
        for start, end in stretches(len(text), kept)
        if start < run.end and end > run.start
    ]
    return list(kanji_edits(text, inside))


def _bare_brackets(text: str, kept: Sequence[tuple[int, int]]) -> list[Edit]:
    """Square brackets that are no markup would look like it to a model."""
    return [
        (m.start(), m.end(), " ")
        for a, b in stretches(len(text), kept)
        for m in _BRACKETS.finditer(text, a, b)
    ]


def _full_stops(text: str, edits: Sequence[Edit], ends: set[int]) -> list[Edit]:
    """The dot of an abbreviation that also ends its sentence stays: `5 p.m.` is `five P M.`"""
    out = []
    for start, end, said in edits:
        if text[end - 1 : end] == "." and end > start and said and said[-1] not in ".,":
            after = end
            while after < len(text) and text[after] in " \t\u3000":
                after += 1
            if after in ends or end in ends or end == len(text):
                said += "."
        out.append((start, end, said))
    return out


def pronounced(text: str) -> list[tuple[str, Mark | None]]:
    """A segment's text as plain pieces and markup, for an engine without the model's tokens."""
    pieces: list[tuple[str, Mark | None]] = []
    at = 0
    for mark in find_marks(text):
        if mark.start > at:
            pieces.append((text[at : mark.start], None))
        pieces.append((text[mark.start : mark.end], mark))
        at = mark.end
    if at < len(text):
        pieces.append((text[at:], None))
    return pieces
