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
# letters, a blank or a common mark, that may be an abbreviation, or that may be a month or the like before a
# number; a sign. Ordinary punctuation is no sign unless a digit follows.
_PLACES = re.compile(
    r"[0-9]+|(?<![A-Za-z0-9])(?:(?=[A-Za-z]{1,40}(?:[^A-Za-z\s,;!?'\"’”)，。]| [IVXLC])"
    r"|(?:[A-Z][A-Za-z]{0,39}|version|x) [0-9])[A-Za-z]"
    r"|(?:Dr|Mr|Mrs|Ms|Prof|St|Mt|vs|Rd|Ave|Blvd|Ln|Hwy)(?=[ ,]|$))|[²³¹⁰⁴-⁹₀-₉¼-¾⅐-⅞Ⅰ-ⅿ①-⓿㋀-㋋㍘-㏿]"
    r"|[-+.,'’(（:~][(]?(?=[0-9$€£¥￥])|[^\w\s,.;:!?'\"()\-，。！？、；：“”‘’（）《》「」『』…—\[\]<|>]|[<>|](?!\|)"
    r"|-(?=>)|!(?==)|_|(?<=[㐀-鿿])[IVX](?=[IVX])"
)
NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)(?![0-9])"
"""1,299.50"""
SCIENTIFIC = (
    r"(?<![0-9A-Za-z])(?<![0-9][.,])(?P<n>[-+]?[0-9]+(?:\.[0-9]+)?)"
    r"[eE](?P<exp>[-+]?[0-9]{1,3})(?![A-Za-z0-9])"
)
"""1.5e-3"""
_NUMBER = re.compile(NUMBER + " ?")
_NAME = re.compile(r"\(\?P([<=])(\w+)")
_GOES_ON = frozenset(",. ")
_FOLLOWS_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """`starts` has `d` (digit), `l` (ASCII letter), `s` (sign) for what a match can begin with.

    Where it begins with a digit, `then` fits the character after the first digits in a row ("" at the end),
    and `past` the one after the whole `NUMBER` and a blank, if there is one. None: anything. They spare
    looking at the rule where it cannot fit, and must be true.
    """

    starts: str
    pattern: re.Pattern[str]
    reading: Reading
    then: re.Pattern[str] | None = None
    past: re.Pattern[str] | None = None

    def fits(self, then: str, past: str) -> bool:
        """Whether it may fit a number with these characters after it."""
        return (self.then is None or self.then.fullmatch(then) is not None) and (
            self.past is None or self.past.fullmatch(past) is not None
        )


def rule(
    starts: str, pattern: str, reading: Reading | str, then: str | None = None, past: str | None = None
) -> Rule:
    """A rule from its source; a string is spoken as it is."""
    follows = [None if source is None else re.compile(source) for source in (then, past)]
    if isinstance(reading, str):
        said = reading
        return Rule(starts, re.compile(pattern), lambda match: said, *follows)
    return Rule(starts, re.compile(pattern), reading, *follows)


class _Table:
    """The rules for one kind of beginning. One expression finds the first that fits: trying them one by one
    is ten times slower. Where that one declines, which is rare, those after it are tried so: it costs 3 ms to
    make another expression."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._any: re.Pattern[str] | None = None
        self._by_group = {f"r{i}": (i, r.pattern, r.reading) for i, r in enumerate(self.rules)}

    def _compiled(self) -> re.Pattern[str]:
        """Any of the rules."""
        parts = [self._numbered(i, r) for i, r in enumerate(self.rules)]
        self._any = re.compile("|".join(parts) or "(?!)")
        return self._any

    @staticmethod
    def _numbered(index: int, rule_: Rule) -> str:
        """A rule as one group; it keeps groups of its own only where it refers to them."""
        inside = rule_.pattern.pattern
        if "(?P=" in inside:
            inside = _NAME.sub(lambda m: f"(?P{m[1]}{m[2]}_{index}", inside)
        else:
            inside = re.sub(r"\(\?P<\w+>", "(?:", inside)
        return f"(?P<r{index}>{inside})"

    def read(self, text: str, at: int, end: int) -> Edit | None:
        """The edit of the first rule that applies at `at`."""
        found = (self._any or self._compiled()).match(text, at, end)
        if found is None:
            return None
        first, pattern, reading = self._by_group[found.lastgroup or ""]
        # A pattern without groups has nothing to add to what is found.
        match = pattern.match(text, at, end) if pattern.groups else found
        if match is not None and (to := match.end()) > at and (said := reading(match)) is not None:
            return at, to, said
        for other in self.rules[first + 1 :]:
            match = other.pattern.match(text, at, end)
            if match is not None and (to := match.end()) > at and (said := other.reading(match)) is not None:
                return at, to, said
        return None


class Rules:
    """Rules in order of precedence."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._letter, self._sign = (_Table([r for r in rules if kind in r.starts]) for kind in "ls")
        self.digit = [r for r in rules if "d" in r.starts]
        self._after: dict[tuple[str, str], _Table] = {}
        self._tables: dict[tuple[int, ...], _Table] = {}

    def _digits_before(self, follows: tuple[str, str]) -> _Table:
        """The rules for digits with `follows` after them. Those that are equal for many are made once."""
        fitting = tuple(i for i, r in enumerate(self.digit) if r.fits(*follows))
        table = self._tables.get(fitting)
        if table is None:
            table = self._tables[fitting] = _Table([self.digit[i] for i in fitting])
        if len(self._after) >= _FOLLOWS_KEPT:
            self._after.clear()
        self._after[follows] = table
        return table

    def chosen(self, text: str, at: int, digits_end: int, end: int) -> _Table:
        """The rules that may fit `text[at:digits_end]`, which is digits, and what follows up to `end`."""
        then = past = text[digits_end] if digits_end < end else ""
        if then in _GOES_ON and (number := _NUMBER.match(text, at, end)) is not None:
            past = text[number.end()] if number.end() < end else ""
        return self._after.get((then, past)) or self._digits_before((then, past))

    def edits(self, text: str, start: int, end: int) -> Iterator[Edit]:
        """What to replace in `text[start:end]`; characters around may be looked at."""
        at = start
        while (found := _PLACES.search(text, at, end)) is not None:
            at, beyond = found.span()
            ch = text[at]
            if "0" <= ch <= "9":
                table = self.chosen(text, at, beyond, end)
            else:
                beyond = at + 1
                table = self._letter if ch.isascii() and ch.isalpha() else self._sign
            edit = table.read(text, at, end)
            if edit is not None:
                yield edit
                beyond = edit[1]
            at = beyond
