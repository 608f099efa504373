"""Number words against other people's: wetext reads Chinese, num-free arithmetic reads back what English said."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text import japanese, korean
from pipeline.text import numbers_en as en
from pipeline.text import numbers_zh as zh
from pipeline.text.segment import plan


@functools.cache
def wetext_zh() -> Callable[[str], str]:
    """Another reader of Chinese numbers, used here only (41 MB and 0.3 s to load, 2 ms a call)."""
    wetext = pytest.importorskip("wetext", reason="wetext is not installed")
    read: Callable[[str], str] = wetext.Normalizer(lang="zh", operator="tn").normalize
    return read


def same(text: str) -> str:
    return text.replace("两", "二").replace("幺", "一").replace("〇", "零")


def spoken(text: str, language: str) -> str:
    return "".join(s.text for s in plan(text, longest_s=60, first_short=False, language=language))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 99_999_999))
def test_chinese_cardinals_are_those_of_wetext(number: int) -> None:
    assert same(zh.cardinal(str(number))) == same(wetext_zh()(f"共{number}个")[1:-1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 999))
def test_chinese_percent_and_decimals_are_those_of_wetext(whole: int, part: int) -> None:
    text = f"涨了{whole}.{part:03d}%。"
    assert same(spoken(text, "zh")) == same(wetext_zh()(text))


@settings(max_examples=60, deadline=None)
@given(st.dates())
def test_chinese_dates_are_those_of_wetext(day: object) -> None:
    text = f"{day:%Y年%-m月%-d日}" if getattr(day, "year", 0) >= 1100 else "2024年2月29日"
    assert same(spoken(text, "zh")) == same(wetext_zh()(text))


_VALUES = {word: n for n, word in enumerate(en._ONES)} | {w: 10 * n for n, w in enumerate(en._TENS) if n > 1}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def value(words: str) -> int:
    """The number that English words say: the rule backwards."""
    total = group = 0
    for word in words.split():
        if word in _SCALES:
            total, group = total + group * _SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += _VALUES[word]
    return total + group


@given(st.integers(0, 10**15 - 1))
def test_english_cardinals_say_the_number(number: int) -> None:
    assert value(en.cardinal(str(number))) == number
    assert en.cardinal(f"{number:,}") == en.cardinal(str(number))


_HAN = {ch: n for n, ch in enumerate("零一二三四五六七八九")}


@given(st.integers(0, 10**16 - 1))
def test_chinese_cardinals_say_the_number(number: int) -> None:
    total = part = digit = 0
    words = zh.cardinal(str(number)).replace("万亿", "兆")
    if words.startswith("十"):
        words = "一" + words
    high = 0
    for ch in words:
        if ch in _HAN:
            digit = _HAN[ch]
        elif ch in "十百千":
            part += digit * {"十": 10, "百": 100, "千": 1000}[ch]
            digit = 0
        elif ch == "万":
            high += (part + digit) * 10**4
            part = digit = 0
        else:
            total += (high + part + digit) * {"亿": 10**8, "兆": 10**12}[ch]
            high = part = digit = 0
    assert total + high + part + digit == number


@pytest.mark.parametrize(
    ("year", "words"),
    [("1999", "nineteen ninety nine"), ("1905", "nineteen oh five"), ("1900", "nineteen hundred"), ("2000", "two thousand"),
     ("2009", "two thousand nine"), ("2024", "twenty twenty four"), ("1066", "ten sixty six"), ("2100", "twenty one hundred")],
)  # fmt: skip
def test_english_years(year: str, words: str) -> None:
    assert en.year(year) == words


@given(st.integers(1, 3999))
def test_roman_numerals_there_and_back(number: int) -> None:
    assert en.roman(en.to_roman(number)) == number
    assert en.roman("IIII") == en.roman("VX") == en.roman("") == 0


@pytest.mark.parametrize(
    ("number", "korean_words", "kana"),
    [("0", "영", "ゼロ"), ("10", "십", "ジュウ"), ("1998", "천구백구십팔", "センキュウヒャクキュウジュウハチ"),
     ("10000", "만", "イチマン"), ("3600", "삼천육백", "サンゼンロッピャク"), ("100000000", "일억", "イチオク")],
)  # fmt: skip
def test_korean_and_japanese_numbers(number: str, korean_words: str, kana: str) -> None:
    assert korean.sino(number) == korean_words
    assert japanese.katakana(number) == kana


def test_korean_counts_in_its_own_numbers() -> None:
    assert korean.native(3) == "세" and korean.native(20) == "스무" and korean.native(21) == "스물한"


@pytest.mark.parametrize(
    "language", ["de", "fr", "es", "it", "pt", "nl", "ru", "uk", "pl", "sv", "tr", "vi", "fi", "el", "id"]
)
def test_no_digit_is_left_for_another_language_to_read(language: str) -> None:
    said = spoken("1, 12, 305, 1998, 3,5 %, 2.500, 007, 14:30 (25 °C).", language)
    assert not re.search(r"[0-9]", said) and re.search(r"[^\W\d_]", said), said
