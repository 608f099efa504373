"""Chinese text to pinyin for espeak-ng, whose own Han dictionary cannot be trusted.

Debian 12's espeak-ng 1.51 reads a Han character as the English letters of its pinyin (会 as "hui four"); its
`cmn-latn-pinyin` voice is right. pypinyin (57 MB) is imported when the first Chinese run comes. A deeper
number reader is to come; here: years, dates, times, percent, money, telephone numbers.
"""

from __future__ import annotations

import re

_DIGITS = dict(zip("0123456789", "零一二三四五六七八九", strict=True))


def _one_by_one(match: re.Match[str]) -> str:
    return "".join(_DIGITS[ch] for ch in match[0])


_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\d)(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?!\d)"), r"\1年\2月\3日"),
    (re.compile(r"(?<![\d:])([01]?\d|2[0-4]):0?0(?![\d:])"), r"\1点"),
    (re.compile(r"(?<![\d:])([01]?\d|2[0-4]):([0-5]\d)(?![\d:])"), r"\1点\2分"),
    (re.compile(r"(\d+(?:\.\d+)?)[%％]"), r"百分之\1"),
    (re.compile(r"[¥￥](\d+(?:\.\d+)?)"), r"\1元"),
    (re.compile(r"(?<![\d.])-(\d+(?:\.\d+)?)\s*(?:℃|°C)"), r"零下\1摄氏度"),
    (re.compile(r"(?:℃|°C)"), "摄氏度"),
    (re.compile(r"(?<=\d)-(?=\d)"), "到"),
    (re.compile(r"(?<=\d)\.(?=\d)"), "点"),
    (re.compile(r"(?<=月)0(?=\d)|(?<=年)0(?=\d)"), ""),
)
_TELEPHONE = re.compile(r"(?<![\d.-])0\d{2,3}-\d{3,4}-?\d{4}(?![\d-])")
_DIGIT_BY_DIGIT = re.compile(
    r"(?<![\d.])\d{4}(?=年)|(?<![\d.])(?:0\d{2,}|\d{9,})(?![\d.])|(?<=点)\d+(?!\d*[分点:])"
)
_MARKS = {
    ord(wide): narrow
    for wide, narrow in zip("．，。！？；：、（）“”‘’《》【】…—", '.,.!?;:,()""\'\'""().,', strict=True)
}


def read_numbers(text: str) -> str:
    """Digits that Chinese reads in a way of its own, written out; other numbers stay digits."""
    text = _TELEPHONE.sub(lambda match: match[0].replace("-", ""), text)
    for pattern, reading in _RULES:
        text = pattern.sub(reading, text)
    return _DIGIT_BY_DIGIT.sub(_one_by_one, text)


def to_pinyin(text: str) -> str:
    """What the voice `cmn-latn-pinyin` reads: syllables with tone numbers, ASCII marks, digits."""
    from pypinyin import Style, lazy_pinyin

    syllables = lazy_pinyin(
        read_numbers(text), style=Style.TONE3, neutral_tone_with_five=True, errors="default"
    )
    return " ".join(" ".join(syllables).translate(_MARKS).split())
