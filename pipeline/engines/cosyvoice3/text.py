"""Upstream's text front end, held by its goldens, and what of it the engine uses. Pure; wetext is given.

The service reads numbers and cuts texts in pipeline.text; the engine then does `tidy`. `normalize` and
`split` are upstream's own, for the goldens and for comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

Normalizer: TypeAlias = Callable[[str], str]
Language: TypeAlias = Literal["zh", "en"]

_HAN = re.compile(r"[\u4e00-\u9fff]")
_BRACKETS = str.maketrans({"（": None, "）": None, "【": None, "】": None, "`": None})
_ENDS = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_QUOTES = '"”'
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ("", " thousand", " million", " billion", " trillion", " quadrillion")
_CONTROL = re.compile(r"<\|[^<>|]*\|>")


def has_han(text: str) -> bool:
    """True when upstream would call the text Chinese."""
    return _HAN.search(text) is not None


def without_control(text: str) -> str:
    """What a person wrote, without the model's control tokens (`<|...|>`); tags such as [breath] stay."""
    while (cleaned := _CONTROL.sub("", text)) != text:
        text = cleaned
    return text.replace("<|", "").replace("|>", "")


def is_raw(text: str) -> bool:
    """Texts with control tokens are neither normalised nor split."""
    return "<|" in text and "|>" in text


def _drop_blanks(text: str) -> str:
    """Spaces only stay between two ASCII characters that are no spaces."""
    kept = []
    for i, ch in enumerate(text):
        if ch != " ":
            kept.append(ch)
        elif 0 < i < len(text) - 1:
            before, after = text[i - 1], text[i + 1]
            if before.isascii() and before != " " and after.isascii() and after != " ":
                kept.append(ch)
    return "".join(kept)


def number_words(digits: str) -> str:
    """English words of a run of digits, in inflect's form: `two thousand and twenty-six`."""
    number = int(digits)
    if number == 0:
        return "zero"
    if number >= 1000 ** len(_SCALES):
        return " ".join(_ONES[int(d)] for d in digits)
    groups = []
    for scale in _SCALES:
        number, rest = divmod(number, 1000)
        if rest:
            groups.append((rest, _under_thousand(rest) + scale))
    words = groups[-1][1]
    for value, text in reversed(groups[:-1]):
        last = value == groups[0][0] and text is groups[0][1]
        words += (" and " if last and value < 100 else ", ") + text
    return words


def _under_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest:
        tens, ones = divmod(rest, 10)
        words.append(_ONES[rest] if rest < 20 else _TENS[tens] + (f"-{_ONES[ones]}" if ones else ""))
    return " and ".join(words)


def _spell_numbers(text: str) -> str:
    return re.sub(r"[0-9]+", lambda match: number_words(match[0]), text)


def normalize(text: str, zh: Normalizer | None = None, en: Normalizer | None = None) -> str:
    """Upstream's normalisation without the split. `zh` and `en` are wetext's; None leaves that step out."""
    if is_raw(text) or not text:
        return text
    text = text.strip()
    if not has_han(text):
        return _spell_numbers(en(text) if en else text)
    text = zh(text) if zh else text
    text = _drop_blanks(text.replace("\n", ""))
    text = text.replace("²", "平方").replace("³", "立方")
    text = text.replace(".", "。").replace(" - ", "，")
    text = text.translate(_BRACKETS).replace("——", " ")
    return re.sub(r"[，,、]+$", "。", text)


def tidy(text: str) -> str:
    """What upstream does to a text beside reading its numbers, which `pipeline.text` has done by now.

    Only for Chinese: no blanks but between English words, full stops wide, brackets away. Markup such as
    `[h][ào]` stays as it is.
    """
    text = " ".join(text.split())
    if not has_han(text):
        return text
    text = _drop_blanks(text).replace(" - ", "，").translate(_BRACKETS).replace("——", " ")
    text = re.sub(r"(?<![A-Za-z0-9])\.|\.(?![A-Za-z0-9])", "。", text)
    return re.sub(r"[，,、]+$", "。", text)


def _pieces(text: str, language: Language) -> list[str]:
    """Cut after each sentence end; a closing quote stays with its sentence."""
    ends = _ENDS[language]
    if text[-1] not in ends:
        text += "。" if language == "zh" else "."
    pieces: list[str] = []
    start = 0
    for i, ch in enumerate(text):
        if ch not in ends:
            continue
        if i > start:
            pieces.append(text[start : i + 1])
        start = i + 1
        if i + 1 < len(text) and text[i + 1] in _QUOTES and pieces:
            pieces[-1] += text[i + 1]
            start = i + 2
    return pieces


def split(text: str, language: Language, length: Callable[[str], int]) -> list[str]:
    """Join sentences until the next would exceed 80 while the current exceeds 60; a last piece below 20 joins
    on."""
    if not text:
        return []
    joined: list[str] = []
    current = ""
    for piece in _pieces(text, language):
        if length(current + piece) > 80 and length(current) > 60:
            joined.append(current)
            current = ""
        current += piece
    if current:
        if joined and length(current) < 20:
            joined[-1] += current
        else:
            joined.append(current)
    return joined


def only_punctuation(text: str) -> bool:
    """True when nothing is left to speak."""
    return not any(ch.isalnum() or (not ch.isascii() and ch.isalpha()) for ch in text)


def segments(
    text: str,
    tokenize: Callable[[str], Sequence[int]],
    zh: Normalizer | None = None,
    en: Normalizer | None = None,
) -> list[str]:
    """Upstream's whole text front end: normalised pieces, each a synthesis of its own."""
    if is_raw(text) or not text:
        return [text]
    normal = normalize(text, zh, en)
    language: Language = "zh" if has_han(text.strip()) else "en"
    pieces = split(normal, language, len if language == "zh" else lambda t: len(tokenize(t)))
    return [p for p in pieces if not only_punctuation(p)]
