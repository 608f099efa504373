"""Reads out what is written in digits, signs and abbreviations, sentence by sentence in its language. Pure.

`normalize_edits` never raises, and it never makes text silent: each edit puts words for what carries meaning,
and what only decorates (emoji, boxes) becomes a blank. The language of the request decides; a sentence that
is plainly in the other one (an English sentence in a Chinese text) is read in its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.text.language import detect, primary
from pipeline.text.rules_en import EN
from pipeline.text.rules_zh import ZH
from pipeline.text.signs import view
from pipeline.text.spoken import Edit

# The end of a sentence; a full stop only before Han, since `Dr. Smith` is read as a whole; what is quoted in
# letters begins one of its own.
_ENDS = "。！？!?.\n：:“"
_SENTENCES = re.compile(
    r"(?:[^。！？!?.\n：:“]|[!?](?=[!-~])|\.(?![ \t]{1,8}[㐀-鿿])|(?<=[0-9])\.|[：:“](?![ \t]?[A-Za-z]{2}))"
    rf"{{1,2000}}[{_ENDS}]*|[{_ENDS}]+"
)
_ENGLISH = re.compile(
    r"\b(?:the|it|is|are|was|in|on|of|to|and|for|we|you|he|she|they|this|that|with|at|by)\b", re.I
)
_WORDS = re.compile(r"(?<![0-9A-Za-z/ ])[A-Za-z]{2,}(?![0-9])|(?<=[A-Za-z,.] )[A-Za-z]{2,}(?![0-9])")
_HAN = re.compile(r"[㐀-鿿豈-﫿𠀀-𲎯]")
_TO_READ = re.compile(
    r"_|[^\w\s,;:!?'\"()，。！？、；：“”‘’（）《》\-]|[0-9²³¹⁰-₉¼-⅞Ⅰ-ⅿ①-⓿]|[A-Z][a-z]* [IVX]"
    r"|[㐀-鿿][IVX]{2}|w/|vs "
)
_CHINESE = ("zh", "yue")


def normalize_edits(
    text: str, language: str = "auto", protected: Sequence[tuple[int, int]] = ()
) -> list[Edit]:
    """What to replace in `text`; `protected` stretches (markup, in order) stay as they are."""
    seen = view(text)
    context = detect(text, language)
    edits: list[Edit] = []
    for start, end in stretches(len(text), protected):
        for match in _SENTENCES.finditer(seen, start, end):
            if _TO_READ.search(match[0]) is None:
                continue
            edits += _sentence(seen, match.start(), match.end(), _tongue(match[0], language, context))
    return edits


def stretches(length: int, protected: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of a text lies outside of the `protected` stretches, which are in order."""
    at = 0
    for start, end in protected:
        if start > at:
            yield at, start
        at = max(at, end)
    if at < length:
        yield at, length


def _tongue(sentence: str, language: str, context: str) -> str:
    """The language that a sentence is read in."""
    wanted = primary(language)
    han = len(_HAN.findall(sentence))
    if wanted in _CHINESE or (not wanted and context in _CHINESE):
        latin = _WORDS.findall(sentence)
        english = len(latin) > 2 or (len(latin) == 2 and _ENGLISH.search(sentence) is not None)
        return "en" if english and not han else "zh"
    if wanted == "en" or (not wanted and context == "en"):
        words = sum(map(len, _WORDS.findall(sentence)))
        return "zh" if han * 3 > words else "en"
    if wanted:
        return wanted
    found = detect(sentence)
    return found if re.search(r"[^\W\d_]", sentence) else context


def _spaced(text: str, edits: Iterator[Edit]) -> Iterator[Edit]:
    """Words that were put for something keep a blank from letters beside them: `H2O` is not H twoO."""
    done, last = -1, ""
    for start, end, said in edits:
        before = last if done == start else text[start - 1 : start]
        if before and before in "'’" and text[start - 2 : start - 1].isalnum():  # `Q1'25`
            before = text[start - 2]
        if said[:1].isalnum() and before.isalnum() and before.isascii():
            said = " " + said
        if said[-1:].isalnum() and (text[end : end + 1].isalpha() and text[end].isascii()):
            said += " "
        done, last = end, said[-1:]
        yield start, end, said


def _sentence(text: str, start: int, end: int, language: str) -> Iterator[Edit]:
    if language in _CHINESE:
        yield from ZH.edits(text, start, end)
    elif language == "en":
        yield from _spaced(text, EN.edits(text, start, end))
    else:
        from pipeline.text.rules_other import rules_for

        yield from rules_for(language).edits(text, start, end)
