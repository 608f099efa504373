"""Takes markup out of a text, keeping for each character the place it came from. Pure, linear time.

A first form for Markdown as chat programs write it: headings, emphasis, code spans, links, lists, tables,
rules; code blocks are left out. SSML and HTML tags are removed, their entities read. Used by
`pipeline.text.segment`.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.jobs import Markup

Edit = tuple[int, int, str]
"""Replace `text[start:end]` by a string."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """Cleaned text. `_starts` and `_origins` pair the beginning of each kept stretch with its source."""

    text: str
    _starts: tuple[int, ...] = (0,)
    _origins: tuple[int, ...] = (0,)
    _exact: tuple[bool, ...] = (True,)

    def offset(self, at: int) -> int:
        """Where the character `text[at]` was in the source; a replaced stretch maps to its beginning."""
        i = bisect.bisect_right(self._starts, at) - 1
        return self._origins[i] + (at - self._starts[i] if self._exact[i] else 0)


def to_speech(text: str, markup: Markup = "plain") -> Spoken:
    """`text` without its markup. Plain text stays as it is."""
    if markup == "markdown":
        return _apply(text, _markdown_edits(text))
    if markup == "ssml":
        return _apply(text, _tag_edits(text))
    return Spoken(text)


def _apply(text: str, edits: Iterable[Edit]) -> Spoken:
    """Make the edits; one that overlaps an earlier one is left out."""
    out: list[str] = []
    starts, origins, exact = [], [], []
    done = length = 0

    def put(piece: str, origin: int, same: bool) -> None:
        nonlocal length
        if piece:
            starts.append(length)
            origins.append(origin)
            exact.append(same)
            out.append(piece)
            length += len(piece)

    for start, end, replacement in sorted(edits):
        if start < done:
            continue
        put(text[done:start], done, True)
        put(replacement, start, False)
        done = end
    put(text[done:], done, True)
    return Spoken("".join(out), tuple(starts) or (0,), tuple(origins) or (0,), tuple(exact) or (True,))


_FENCE = re.compile(r"^[ ]{0,3}(```|~~~)", re.M)
_LINE_START = re.compile(r"^[ \t]*(?:>[ \t]?)*(?:#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?)?", re.M)
_RULE = re.compile(r"^[ \t]*(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*)$", re.M)
_TABLE_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.M)
_TABLE_RULE = re.compile(r"[\s|:-]+")
_LINK = re.compile(
    r"(!?)\[([^\[\]\n]{0,500})\]\((?:[^()\s]|\([^()\s]{0,500}\)){0,2000}(?:[ \t]+\"[^\"\n]{0,500}\")?\)"
)
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]{1,2000})>")
_CODE = re.compile(r"(`{1,2})([^`\n]{1,1000})\1(?!`)")
_EMPHASIS = (
    re.compile(r"(\*\*\*|\*\*|\*)(?=\S)([^*\n]{1,2000}?)(?<=\S)\1"),
    re.compile(r"(?<![^\W_])(___|__|_)(?=\S)([^_\n]{1,2000}?)(?<=\S)\1(?![^\W_])"),
    re.compile(r"(~~)(?=\S)([^~\n]{1,2000}?)(?<=\S)\1"),
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,40})(?:\s[^<>]{0,500})?/?>|<!--.{0,2000}?-->", re.S)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_KEPT_TAGS = frozenset({"strong", "laughter"})  # controls that CosyVoice documents
_BREAKS = frozenset({"break", "p", "br", "s", "div", "li", "tr"})


def _markdown_edits(text: str) -> list[Edit]:
    """Edits for Markdown. Earlier kinds win where two meet: code before links before emphasis."""
    taken: list[Edit] = []
    inside: list[tuple[int, int]] = []  # code: nothing in it is markup
    fences = list(_FENCE.finditer(text))
    for opening, closing in zip(fences[::2], fences[1::2], strict=False):
        end = text.find("\n", closing.end())
        end = len(text) if end < 0 else end
        taken.append((opening.start(), end, ""))
        inside.append((opening.start(), end))
    if len(fences) % 2:  # cut off in the middle of a block, as streamed replies are
        taken.append((fences[-1].start(), len(text), ""))
        inside.append((fences[-1].start(), len(text)))
    free = _free_of(inside)
    codes = []
    for match in _CODE.finditer(text):
        if free(match.start()):
            taken += [(match.start(), match.start(2), ""), (match.end(2), match.end(), "")]
            codes.append((match.start(), match.end()))
    free = _free_of(inside + codes)
    for match in _RULE.finditer(text):
        if free(match.start()):
            taken.append((match.start(), match.end(), ""))
    for match in _TABLE_ROW.finditer(text):
        if free(match.start()):
            taken += _table_row(text, match)
    for match in _LINE_START.finditer(text):
        if match.end() > match.start() and free(match.start()):
            taken.append((match.start(), match.end(), ""))
    for match in _LINK.finditer(text):
        if free(match.start()):
            taken += [(match.start(), match.start(2), ""), (match.end(2), match.end(), "")]
    for match in _AUTOLINK.finditer(text):
        if free(match.start()):
            taken += [(match.start(), match.start(1), ""), (match.end(1), match.end(), "")]
    for pattern in _EMPHASIS:
        for match in pattern.finditer(text):
            if free(match.start()):
                taken += [(match.start(), match.start(2), ""), (match.end(2), match.end(), "")]
    return taken


def _free_of(spans: list[tuple[int, int]]) -> Callable[[int], bool]:
    spans = sorted(spans)
    starts = [start for start, _ in spans]

    def free(at: int) -> bool:
        i = bisect.bisect_right(starts, at) - 1
        return i < 0 or at >= spans[i][1]

    return free


def _table_row(text: str, match: re.Match[str]) -> list[Edit]:
    """Cells are read with a comma between them; the line under the heading is left out."""
    if _TABLE_RULE.fullmatch(match.group()):
        return [(match.start(), match.end(), "")]
    bars = [i for i in range(match.start(), match.end()) if text[i] == "|"]
    edits = [(bars[0], bars[0] + 1, ""), (bars[-1], bars[-1] + 1, "")]
    return edits + [(bar, bar + 1, ", ") for bar in bars[1:-1]]


def _tag_edits(text: str) -> list[Edit]:
    """Tags go (a break becomes a pause), CosyVoice's own controls stay, entities become characters."""
    edits: list[Edit] = []
    for match in _TAG.finditer(text):
        name = (match.group(2) or "").lower()
        if name not in _KEPT_TAGS:
            edits.append((match.start(), match.end(), ", " if name in _BREAKS else ""))
    for match in _ENTITY.finditer(text):
        if (meant := html.unescape(match.group())) != match.group():
            edits.append((match.start(), match.end(), meant))
    return edits
