"""The user's pronunciation dictionary applied to a text. Pure; the entries live in the database
(`pipeline.pronunciations`).

An entry replaces a word by how it is spoken: other words, or markup such as `[h][ào]`. A pattern that begins
or ends in an ASCII letter or digit only fits at the edge of a word, whatever its case; Han fits anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.text.language import primary
from pipeline.text.spoken import Edit


@dataclass(frozen=True, slots=True)
class Entry:
    """`language` "" fits every text, else those in that language (a primary tag)."""

    pattern: str
    replacement: str
    language: str = ""


def dictionary_edits(
    text: str, entries: Sequence[Entry], language: str, stretches: Sequence[tuple[int, int]]
) -> Iterator[Edit]:
    """What the entries for `language` replace in the `stretches` of `text`: the longest pattern first."""
    chosen = [e for e in entries if e.pattern and primary(e.language) in ("", primary(language))]
    if not chosen:
        return
    words = {entry.pattern.casefold(): entry.replacement for entry in chosen}
    firsts = "".join(sorted({ch for e in chosen for ch in (e.pattern[0].lower(), e.pattern[0].upper()[:1])}))
    patterns = sorted({e.pattern for e in chosen}, key=lambda p: (-len(p), p))
    found = re.compile(
        f"(?=[{re.escape(firsts)}])(?:" + "|".join(_edges(p) for p in patterns) + ")", re.IGNORECASE
    )
    for start, end in stretches:
        for match in found.finditer(text, start, end):
            said = words.get(match[0].casefold())
            if said is not None:
                yield match.start(), match.end(), said


def _edges(pattern: str) -> str:
    before = "(?<![A-Za-z0-9])" if pattern[0].isascii() and pattern[0].isalnum() else ""
    after = "(?![A-Za-z0-9])" if pattern[-1].isascii() and pattern[-1].isalnum() else ""
    return before + re.escape(pattern) + after
