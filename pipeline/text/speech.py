"""Takes the form of a document out of a text, keeping each character's place in it. Pure, linear time.

Markdown as chat programs write it: headings, emphasis, code spans, links, lists, tables, rules; code blocks
are left out. Tags and entities are in `pipeline.text.ssml`. Plain text is read with the same eyes: nobody
wants to hear two asterisks. Used by `pipeline.text.front`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

from pipeline.jobs import Markup, has_words
from pipeline.text.spoken import Edit, Spoken
from pipeline.text.ssml import tag_edits


def to_speech(text: str, markup: Markup = "plain", language: str = "auto") -> Spoken:
    """`text` without its form. What has words keeps some: a text that is all code is read as it is."""
    typed = Spoken.of(text)
    edits = tag_edits(text, ssml=markup == "ssml", language=language)
    if markup != "ssml":
        edits = _markdown_edits(text) + edits
    spoken, _ = typed.edited(edits)
    return spoken if has_words(spoken.text) or not has_words(text) else typed


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
    re.compile(r"(?<![A-Za-z0-9*])(\*\*\*|\*\*|\*)(?=\S)([^*\n]{1,2000}?)(?<=\S)\1(?!\*)"),
    re.compile(r"(?<![^\W_])(___|__|_)(?=\S)([^_\n]{1,2000}?)(?<=\S)\1(?![^\W_])"),
    re.compile(r"(~~)(?=\S)([^~\n]{1,2000}?)(?<=\S)\1"),
)


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
