"""Text on its way from what was typed to what is spoken, each character with the place it came from. Pure.

A stage (markup, dictionary, normalisation) is a list of edits of the text before it; `Spoken.edited` makes
them and keeps the way back to the first text, so that progress, resume and subtitles know their characters.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

Edit = tuple[int, int, str]
"""Replace `text[start:end]` by a string."""

_PLACE = itemgetter(0, 1)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text and its origin.

    Stretch i begins at `_starts[i]` and came from `_froms[i]:_tos[i]` of the first text: one character for
    one where both are equally long (`_exact`), else as a whole.
    """

    text: str
    _starts: tuple[int, ...]
    _froms: tuple[int, ...]
    _tos: tuple[int, ...]
    _exact: tuple[bool, ...]

    @classmethod
    def of(cls, text: str) -> Spoken:
        """The text as typed."""
        return cls(text, (0,), (0,), (len(text),), (True,))

    def offset(self, at: int) -> int:
        """Where the character `text[at]` was in the first text; a replaced stretch maps to its beginning."""
        i = bisect.bisect_right(self._starts, at) - 1
        return self._froms[i] + (at - self._starts[i] if self._exact[i] else 0)

    def offset_after(self, at: int) -> int:
        """The end in the first text of what became `text[at]`; a replaced stretch maps to its end."""
        i = bisect.bisect_right(self._starts, at) - 1
        return self._froms[i] + at - self._starts[i] + 1 if self._exact[i] else self._tos[i]

    def whole(self, at: int) -> int:
        """`at`, or the beginning of the replaced stretch that it lies in."""
        i = bisect.bisect_right(self._starts, at) - 1
        return at if self._exact[i] or at >= len(self.text) else self._starts[i]

    def edited(self, edits: Iterable[Edit]) -> tuple[Spoken, Moves]:
        """The text with the edits made, and where its places went. Of edits that overlap the one that begins
        first wins, of those the one given first; they may be given in any order."""
        text, length_before = self.text, len(self.text)
        kept: list[Edit] = []
        done = 0
        for edit in sorted(edits, key=_PLACE):
            if edit[0] >= done and (edit[1] > edit[0] or edit[2]):
                kept.append(edit)
                done = edit[1]
        if not kept and text:
            return self, Moves((0, length_before, length_before), (0, length_before, length_before))
        out: list[str] = []
        starts: list[int] = []
        froms: list[int] = []
        tos: list[int] = []
        exact: list[bool] = []
        olds, news = [0], [0]
        # Stretches are walked along with the edits: the one in hand is `text[left:right]`.
        ends = (*self._starts[1:], length_before)
        walk = zip(self._starts, ends, self._froms, self._tos, self._exact, strict=True)
        left, right, origin, target, same = next(walk)
        length = at = 0
        for start, end, replacement in [*kept, (length_before, length_before, "")]:
            while at < start:
                while right <= at:
                    left, right, origin, target, same = next(walk)
                upto = start if start < right else right
                starts.append(length)
                if same:
                    froms.append(origin + at - left)
                    tos.append(origin + upto - left)
                else:
                    froms.append(origin)
                    tos.append(target)
                exact.append(same)
                out.append(text[at:upto])
                length += upto - at
                at = upto
            olds.append(start)
            news.append(length)
            if replacement:
                if start < length_before:
                    while right <= start:
                        left, right, origin, target, same = next(walk)
                    first = origin + start - left if same else origin
                else:
                    first = self._tos[-1]
                beyond = first
                if end > start:
                    while right < end:
                        left, right, origin, target, same = next(walk)
                    beyond = origin + end - left if same else target
                starts.append(length)
                froms.append(first)
                tos.append(beyond if beyond > first else first)
                exact.append(False)
                out.append(replacement)
                length += len(replacement)
            olds.append(end)
            news.append(length)
            at = end
        if not starts:
            starts, froms, tos, exact = [0], [0], [0], [True]
        spoken = Spoken("".join(out), tuple(starts), tuple(froms), tuple(tos), tuple(exact))
        return spoken, Moves(tuple(olds), tuple(news))


@dataclass(frozen=True, slots=True)
class Moves:
    """Where places of a text are after an edit."""

    _olds: tuple[int, ...]
    _news: tuple[int, ...]

    def place(self, at: int) -> int | None:
        """The place `at` of the old text in the new one; None for one inside a replaced stretch."""
        i = bisect.bisect_right(self._olds, at) - 1
        if self._olds[i] == at:
            return self._news[i]
        # An even step leads over kept characters, an odd one over a replaced stretch.
        return self._news[i] + at - self._olds[i] if i % 2 == 0 else None

    def nearest(self, at: int) -> int:
        """As `place`; the end of the stretch for a place inside it."""
        found = self.place(at)
        return self._news[bisect.bisect_right(self._olds, at)] if found is None else found
