"""Text to search words and queries to FTS5 expressions. Pure.

SQLite's tokenizers find no two-character Chinese word: unicode61 takes a whole run of Han as one token,
trigram needs three characters. So a run of CJK characters is indexed as its overlapping pairs: one of four
characters, abcd, as ab bc cd d. One character is then looked for as a prefix (the index keeps prefixes of 1
to 3 characters), two are one token, more are a phrase of pairs, which is exact: pairs that overlap and follow
each other are the run. Single characters as tokens, and phrases of those, find the same, but frequent
characters that hardly ever meet cost 60 ms over a million rows. Other words are found by prefix.
"""

from __future__ import annotations

import unicodedata

MAX_TERMS = 32
"""Of a query; more cannot narrow it and only costs."""

MAX_QUERY_CHARS = 1000


def is_cjk(ch: str) -> bool:
    """Scripts written without blanks between words, a token for each character: Han, kana, Hangul, bopomofo.

    Hangul has blanks, but with particles glued to words, so people look for the middle of an eojeol.
    """
    cp = ord(ch)
    return (
        0x4E00 <= cp <= 0x9FFF
        or 0x3400 <= cp <= 0x4DBF
        or 0x3040 <= cp <= 0x30FF
        or 0xAC00 <= cp <= 0xD7A3
        or 0x3105 <= cp <= 0x312F
        or 0x31A0 <= cp <= 0x31FF
        or 0xF900 <= cp <= 0xFAFF
        or 0x1100 <= cp <= 0x11FF
        or 0x20000 <= cp <= 0x323AF
        or cp in (0x3005, 0x3007)  # iteration mark, zero
    )


def fold(text: str) -> str:
    """NFKC and case-folded: full-width letters, half-width kana and ligatures become the usual ones."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _tokens(text: str) -> list[tuple[bool, str]]:
    """Runs of `text` as (is_cjk, run); anything that is no letter, digit or mark separates."""
    runs: list[tuple[bool, str]] = []
    joined = False
    for ch in fold(text):
        cjk = is_cjk(ch)
        if not cjk and unicodedata.category(ch)[0] not in "LNM":
            joined = False
            continue
        if joined and runs[-1][0] == cjk:
            runs[-1] = (cjk, runs[-1][1] + ch)
        else:
            runs.append((cjk, ch))
        joined = True
    return runs


def search_text(text: str) -> str:
    """What is indexed for `text`: folded words, and the pairs of each run of CJK characters (its last one
    alone), separated by blanks."""
    words: list[str] = []
    for cjk, run in _tokens(text):
        words += [run[i : i + 2] for i in range(len(run))] if cjk else [run]
    return " ".join(words)


def match_expression(query: str) -> str | None:
    """The FTS5 expression for what a person typed, or None when nothing in it can be looked for.

    All terms must occur: each run of CJK characters as it stands, every other word as a prefix. Every term is
    quoted; since only letters, digits and marks are kept, nothing of the query is read as syntax.
    """
    terms: list[str] = []
    for cjk, run in _tokens(query[:MAX_QUERY_CHARS]):
        if cjk and len(run) > 1:
            terms.append('"' + " ".join(run[i : i + 2] for i in range(len(run) - 1)) + '"')
        elif any(unicodedata.category(ch)[0] in "LN" for ch in run):
            terms.append(f'"{run}" *')
    return " AND ".join(dict.fromkeys(terms[:MAX_TERMS])) or None
