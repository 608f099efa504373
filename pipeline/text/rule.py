"""How rules of reading are written and run: one pass, the first rule that fits a place wins. Pure.

A rule is a regular expression, the kinds of character it can begin with, and a function from its match to
what is spoken (None: it does not apply after all). Expressions are bounded: no nested repetition, no `.*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.text.spoken import Edit

Reading = Callable[[re.Match[str]], str | None]

# Where something to read can begin: a digit; a word in ASCII letters that goes on with something else than
# letters, a blank or a common mark, or that may be an abbreviation; a sign. Ordinary punctuation is no sign
# unless a digit follows.
_PLACES = re.compile(
    r"[0-9]|(?<![A-Za-z0-9])(?:(?=[A-Za-z]{1,40}(?:[^A-Za-z\s,;!?'\"’”)，。]| [0-9IVXLC]))[A-Za-z]"
    r"|(?:Dr|Mr|Mrs|Ms|Prof|St|Mt|vs|Rd|Ave|Blvd|Ln|Hwy)(?=[ ,]|$))|[²³¹⁰⁴-⁹₀-₉¼-¾⅐-⅞Ⅰ-ⅿ①-⓿㋀-㋋㍘-㏿]"
    r"|[-+.,'’(（:~][(]?(?=[0-9$€£¥￥])|[^\w\s,.;:!?'\"()\-，。！？、；：“”‘’（）《》「」『』…—\[\]<|>]|[<>|](?!\|)"
    r"|-(?=>)|!(?==)|_|(?<=[㐀-鿿])[IVX](?=[IVX])"
)
_DIGITS = re.compile(r"[0-9]+")
_NAME = re.compile(r"\(\?P([<=])(\w+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """`starts` has `d` (digit), `l` (ASCII letter), `s` (sign) for what a match can begin with."""

    starts: str
    pattern: re.Pattern[str]
    reading: Reading


def rule(starts: str, pattern: str, reading: Reading | str) -> Rule:
    """A rule from its source; a string is spoken as it is."""
    if isinstance(reading, str):
        said = reading
        return Rule(starts, re.compile(pattern), lambda match: said)
    return Rule(starts, re.compile(pattern), reading)


class _Table:
    """The rules for one kind of beginning. One expression finds the first that fits: trying them one by one
    is ten times slower."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._any: dict[int, re.Pattern[str]] = {}

    def _from(self, index: int) -> re.Pattern[str]:
        """Any of the rules from `index` on."""
        if index not in self._any:
            parts = [self._numbered(i, r) for i, r in enumerate(self.rules) if i >= index]
            self._any[index] = re.compile("|".join(parts) or "(?!)")
        return self._any[index]

    @staticmethod
    def _numbered(index: int, rule_: Rule) -> str:
        inside = _NAME.sub(lambda m: f"(?P{m[1]}{m[2]}_{index}", rule_.pattern.pattern)
        return f"(?P<r{index}>{inside})"

    def read(self, text: str, at: int, end: int) -> Edit | None:
        """The edit of the first rule that applies at `at`."""
        index = 0
        while (found := self._from(index).match(text, at, end)) is not None and found.lastgroup:
            index = int(found.lastgroup[1:])
            entry = self.rules[index]
            match = entry.pattern.match(text, at, end)
            if match is not None and match.end() > at and (said := entry.reading(match)) is not None:
                return at, match.end(), said
            index += 1
        return None


class Rules:
    """Rules in order of precedence."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by_start = {kind: _Table([r for r in rules if kind in r.starts]) for kind in "dls"}

    def edits(self, text: str, start: int, end: int) -> Iterator[Edit]:
        """What to replace in `text[start:end]`; characters around may be looked at."""
        at = start
        while (found := _PLACES.search(text, at, end)) is not None:
            at = found.start()
            ch = text[at]
            digit = "0" <= ch <= "9"
            kind = "d" if digit else "l" if ch.isascii() and ch.isalpha() else "s"
            edit = self._by_start[kind].read(text, at, end)
            if edit is not None:
                yield edit
                at = edit[1]
            else:
                run = _DIGITS.match(text, at, end) if digit else None
                at = run.end() if run else at + 1
