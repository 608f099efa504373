"""Where text may be cut: the ends of sentences, lines and clauses, in English and Chinese. Pure, linear time.

A boundary lies after the mark, its closing quotes and brackets. Used by `pipeline.text.segment`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from pipeline.jobs import is_han


class Kind(IntEnum):
    """How much of an end a boundary is. LINE and PARAGRAPH are never merged over."""

    CLAUSE = 1
    SENTENCE = 2
    LINE = 3
    PARAGRAPH = 4


class Boundary(NamedTuple):
    """A place between two characters."""

    at: int
    kind: Kind


_WIDE_ENDS = frozenset("。！？；｡")
_CLAUSES = frozenset(",;:，、：—–")
# A mark (none inside a number) and those that end a sentence after it; what closes; the blanks after, which
# belong to what comes before.
_MARKS = re.compile(
    r"([.!?。！？；｡…,;:，、：—–](?!(?<=[0-9][.,:])[0-9])[.!?。！？；｡…]*)"
    r"([\"'”’」』】）)\]}》〉»]*)[ \t\u3000]*|\n"
)

# Never the end of a sentence: a name, number or example follows.
_TITLES = frozenset(
    "dr mr mrs ms prof st rev hon sr fr gen col capt lt sgt maj cmdr gov sen rep pres mt ft fig figs eq vol "
    "pp ed eds cf vs e.g i.e eg ie approx dept est no nos art sec ch al mme mlle".split()
)
# May end one: only when the next word starts like a sentence.
_MAYBE = frozenset(
    "etc inc ltd co corp jr sr a.m p.m am pm u.s u.k u.n e.u d.c ph.d b.c a.d jan feb mar apr jun jul aug "
    "sep sept oct nov dec mon tue wed thu fri sat sun".split()
)
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")
_STARTERS = frozenset(
    "The A An This That These Those He She It We They I You In On At But And So Then When While After Before "
    "If As For There Here Now My His Her Its Our Their Your What Who Why How Where No Yes Not One Some Many "
    "Most All Both Each Every Later Today Yesterday Tomorrow However Meanwhile Please Let".split()
)
_LIST_ITEM = re.compile(
    r"[ \t　]*(?:[-*•◦▪‣·–—]\s|\(?\d{1,3}[.)、．）]|（\d{1,3}）|[①-⑳]|[一二三四五六七八九十]{1,3}[、.．])"
)
_SOFT_WRAP_FROM = 50  # letters in a line that was broken to fit a column, not to end something


def _is_cjk(ch: str) -> bool:
    return is_han(ch) or "\u3000" <= ch <= "\u30ff" or "\uff00" <= ch <= "\uffef"


def find_boundaries(text: str) -> list[Boundary]:
    """All places to cut, in order."""
    found: list[Boundary] = []
    done = 0
    for match in _MARKS.finditer(text):
        at = match.start()
        if at < done:
            continue
        if match[1] is None:
            end = at
            while end < len(text) and text[end].isspace():
                end += 1
            kind = _line_break(text, at, end)
            done = end
        else:
            # Blanks belong to what comes before, so that a line end right after a full stop is one place.
            kind, end = _mark(text, at, match[1], match.end(2)), match.end()
        if kind is not None:
            found.append(Boundary(end, kind))
    return found


def _mark(text: str, at: int, run: str, end: int) -> Kind | None:
    """What the marks `run` at `at` end; `end` is behind what closes after them."""
    following = text[end : end + 1]
    apart = not following or following.isspace()
    if run in _CLAUSES:
        if apart or run in "，、：—" or following in _CLAUSES or (at and _is_cjk(text[at - 1])):
            return Kind.CLAUSE
        return None
    if not _WIDE_ENDS.isdisjoint(run):
        return Kind.SENTENCE
    if not apart and not (_is_cjk(following) and (run[0] == "…" or (at and _is_cjk(text[at - 1])))):
        return None
    word_at = end
    while word_at < len(text) and text[word_at].isspace():
        word_at += 1
    next_lower = word_at < len(text) and text[word_at].islower()
    if next_lower and run[-1] in "!?":
        return Kind.SENTENCE if end == at + len(run) else None  # '"Go?" he said' is one sentence
    if run == "." and not _full_stop(text, at, word_at):
        return None
    return Kind.CLAUSE if next_lower else Kind.SENTENCE


def _full_stop(text: str, at: int, word_at: int) -> bool:
    """Whether the single dot at `at` ends a sentence, given that the next word is not in lower case."""
    start = at
    while (
        start > 0 and at - start < 24 and not text[start - 1].isspace() and text[start - 1] not in "(（[“\"'‘"
    ):
        start -= 1
    word = text[start:at]
    if not word:
        return False
    if word.isdigit() and len(word) <= 3 and _at_line_start(text, start):
        return False  # the number of a list item
    if word_at >= len(text):
        return True
    lower = word.lower()
    following = re.match(r"[^\W\d_]+", text[word_at : word_at + 24])
    starts = following is not None and following.group() in _STARTERS
    if lower == "no":
        return not text[word_at].isdigit()
    if lower in _TITLES:
        return False
    if _INITIALS.fullmatch(word) and word not in ("a", "i"):
        return starts
    if lower in _MAYBE:
        return starts or not (
            text[word_at].isalnum() and (text[word_at].isdigit() or lower in ("co", "jr", "sr"))
        )
    return True


def _at_line_start(text: str, at: int) -> bool:
    while at > 0 and text[at - 1] in " \t\u3000":
        at -= 1
    return at == 0 or text[at - 1] == "\n"


def _line_break(text: str, at: int, end: int) -> Kind | None:
    """What the white space `text[at:end]`, which starts with a line end, means; None for a soft wrap."""
    if at == 0 or end >= len(text):
        return None
    if text.count("\n", at, end) > 1:
        return Kind.PARAGRAPH
    if _LIST_ITEM.match(text, at + 1):
        return Kind.LINE
    line_end = at
    while line_end > 0 and text[line_end - 1] in " \t\u3000":
        line_end -= 1
    if line_end == 0:
        return None
    before, after = text[line_end - 1], text[end]
    if before in ",;-" or after.islower():
        return None
    if _is_cjk(before) or _is_cjk(after):
        return Kind.LINE
    start = text.rfind("\n", max(0, at - _SOFT_WRAP_FROM), at)
    wrapped = start < 0 and at >= _SOFT_WRAP_FROM
    return None if wrapped and not _LIST_ITEM.match(text, at - _SOFT_WRAP_FROM) else Kind.LINE
