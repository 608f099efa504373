"""Pronunciation markup in the form that hibari and espeak-ng know, since they know no `[h][ào]`. Pure.

Pinyin becomes syllables with tone numbers (the form of the voice `cmn-latn-pinyin`), ARPAbet becomes misaki's
letters in hibari's link syntax or espeak-ng's `[[...]]`. Sounds (`[breath]`) are a short pause, emphasis is
left out. Used by `engine`.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.text.front import pronounced
from pipeline.text.language import Run, split_runs
from pipeline.text.markup import Mark, espeak, misaki, syllables

_STANDS_FOR = {"pinyin": "汉", "arpabet": "a"}


def marked_runs(text: str, language: str) -> list[Run]:
    """`split_runs`, with pinyin counted as Chinese and ARPAbet as a word of the run's language."""
    seen, kept = "", ""
    for piece, mark in pronounced(text):
        if mark is None:
            seen += piece
            kept += piece
        elif mark.kind in _STANDS_FOR:
            seen += _STANDS_FOR[mark.kind] * len(piece)
            kept += piece
        else:
            seen += " " * len(piece)
            kept += ("," if mark.kind == "event" else "").ljust(len(piece))
    return [
        Run(kept[run.start : run.end], run.language, run.start, run.end) for run in split_runs(seen, language)
    ]


def _each(text: str, plain: Callable[[str], str], marked: Callable[[Mark], str]) -> str:
    return "".join(plain(piece) if mark is None else marked(mark) for piece, mark in pronounced(text))


def for_hibari(text: str) -> str:
    """English text for hibari; what a person wrote as a link stays text."""
    return _each(text, lambda piece: piece.replace("](", "] ("), lambda m: f"[x](/{_misaki(m)}/)")


def _misaki(mark: Mark) -> str:
    return misaki(mark.tokens) if mark.kind == "arpabet" else ""


def for_espeak(text: str) -> str:
    """Text of any language but Chinese for espeak-ng."""
    return _each(
        text,
        lambda piece: piece.replace("[[", "[ ["),
        lambda m: f"[[{espeak(m.tokens)}]]" if m.kind == "arpabet" else " ".join(syllables(m.tokens)),
    )


def for_mandarin(text: str, to_pinyin: Callable[[str], str]) -> str:
    """Chinese as pinyin, given syllables where the text has them."""
    return " ".join(
        _each(
            text,
            lambda piece: f" {to_pinyin(piece)} ",
            lambda m: f" {' '.join(syllables(m.tokens))} " if m.kind == "pinyin" else " ",
        ).split()
    )
