"""How far what was heard is from what should have been said. Pure.

Both sides are read out by our own rules first: a recogniser writes "12" where "twelve" was said. Words are
compared in languages that have blanks between them, characters in the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.text.front import prepare

WRONG = 0.6
"""Error rate from which a take is doubted: a small recogniser mishears a third of names and short words, and
another take costs more than one that is merely odd."""
FEWEST = 4
"""Below so many units nothing is said: a recogniser guesses at single words."""

_MARKS = re.compile(r"\[[^\[\]]{1,20}\]|</?[a-z]+>")
_UNITS = re.compile(r"[㐀-鿿豈-﫿ぁ-ヿ가-힣𠀀-𲎯]|[^\W_㐀-鿿豈-﫿ぁ-ヿ가-힣𠀀-𲎯]+(?:['’][^\W\d_]+)?")


def units(text: str, language: str) -> list[str]:
    """What is compared: words, or characters of Han, kana and hangul, in small letters."""
    said = prepare(_MARKS.sub(" ", text), language=language).spoken.text
    return [unit.casefold().replace("’", "'") for unit in _UNITS.findall(said)]


def error_rate(expected: Sequence[str], heard: Sequence[str]) -> float:
    """Levenshtein distance (1966) over units, divided by the number expected."""
    row = list(range(len(heard) + 1))
    for i, unit in enumerate(expected, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (unit != other))
    return row[-1] / max(1, len(expected))


def other_words(text: str, heard: str, language: str) -> bool:
    """Whether what was heard is plainly not `text` (a segment's, with markup)."""
    expected = units(text, language)
    return len(expected) >= FEWEST and error_rate(expected, units(heard, language)) > WRONG
