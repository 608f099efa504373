"""Japanese for a voice that reads katakana best: numbers by their counters, and kanji by their readings. Pure.

CosyVoice reads kanji as Chinese, espeak-ng spells them out. Readings come from janome (Apache-2.0, with the
IPADIC dictionary; 77 MB of memory, 0.3 s, 22,000 characters a second), which is an extra (`[ja]`): without it
kanji stay. は and へ as particles are written as they are said.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.jobs import is_han
from pipeline.text.rule import Rules, rule
from pipeline.text.spoken import Edit

_ONES = ("", "イチ", "ニ", "サン", "ヨン", "ゴ", "ロク", "ナナ", "ハチ", "キュウ")
_HUNDREDS = ("", "ヒャク", "ニヒャク", "サンビャク", "ヨンヒャク", "ゴヒャク", "ロッピャク", "ナナヒャク", "ハッピャク",
             "キュウヒャク")  # fmt: skip
_THOUSANDS = (
    "",
    "セン",
    "ニセン",
    "サンゼン",
    "ヨンセン",
    "ゴセン",
    "ロクセン",
    "ナナセン",
    "ハッセン",
    "キュウセン",
)
_DAYS = (
    "",
    "ツイタチ",
    "フツカ",
    "ミッカ",
    "ヨッカ",
    "イツカ",
    "ムイカ",
    "ナノカ",
    "ヨウカ",
    "ココノカ",
    "トオカ",
)
_MINUTES = ("プン", "プン", "フン", "プン", "プン", "フン", "プン", "フン", "プン", "フン")
_COUNTERS = {"年": "ネン", "月": "ガツ", "円": "エン", "秒": "ビョウ", "歳": "サイ", "才": "サイ", "度": "ド", "回": "カイ",
             "個": "コ", "枚": "マイ", "台": "ダイ", "番": "バン", "階": "カイ", "点": "テン", "時間": "ジカン", "人": "ニン",
             "%": "パーセント", "円玉": "エンダマ", "週間": "シュウカン", "名": "メイ"}  # fmt: skip


def katakana(digits: str) -> str:
    """`1998` as センキュウヒャクキュウジュウハチ."""
    digits = digits.lstrip("0")
    if not digits:
        return "ゼロ"
    if len(digits) > 16:
        return "".join(_ONES[int(d)] or "ゼロ" for d in digits)
    groups = [int(digits[max(0, end - 4) : end]) for end in range(len(digits), 0, -4)]
    said = ""
    for place in range(len(groups) - 1, -1, -1):
        if groups[place]:
            said += _below_ten_thousand(groups[place]) + ("", "マン", "オク", "チョウ")[place]
    return said.replace("イチチョウ", "イッチョウ")


def _below_ten_thousand(number: int) -> str:
    tens = number // 10 % 10
    ten = "" if not tens else ("" if tens == 1 else _ONES[tens]) + "ジュウ"
    return _THOUSANDS[number // 1000] + _HUNDREDS[number // 100 % 10] + ten + _ONES[number % 10]


def _hour(number: int) -> str:
    return {4: "ヨ", 7: "シチ", 9: "ク", 0: "レイ"}.get(number, katakana(str(number))) + "ジ"


def _minute(digits: str) -> str:
    number = int(digits)
    said = katakana(digits)
    for full, short in (("イチ", "イッ"), ("ロク", "ロッ"), ("ハチ", "ハッ"), ("ジュウ", "ジュッ")):
        if said.endswith(full):
            said = said[: -len(full)] + short
    return said + _MINUTES[number % 10]


def _day(m: re.Match[str]) -> str:
    number = int(m["n"])
    return _DAYS[number] if 0 < number <= 10 else "ハツカ" if number == 20 else katakana(m["n"]) + "ニチ"


def _people(m: re.Match[str]) -> str:
    return {"1": "ヒトリ", "2": "フタリ", "4": "ヨニン"}.get(m["n"], katakana(m["n"]) + "ニン")


def _month(m: re.Match[str]) -> str:
    return {"4": "シ", "7": "シチ", "9": "ク"}.get(m["n"], katakana(m["n"])) + "ガツ"


def _number(text: str) -> str:
    whole, _, part = text.replace(",", "").partition(".")
    if len(whole) > 1 and whole[0] == "0":
        return "".join(_ONES[int(d)] or "ゼロ" for d in whole)
    return katakana(whole) + ("テン" + "".join(_ONES[int(d)] or "ゼロ" for d in part) if part else "")


def rules() -> Rules:
    """The rules of numbers in Japanese."""
    number = r"(?P<n>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)"
    return Rules(
        [
            rule("d", r"(?<![0-9.])(?P<h>[0-9]{1,2}):(?P<m>[0-5][0-9])(?![0-9:])", lambda m: (
                _hour(int(m["h"])) + (_minute(m["m"]) if int(m["m"]) else ""))),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,2})時(?!間)", lambda m: _hour(int(m["n"]))),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,3})分(?!の|間の)", lambda m: _minute(m["n"])),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,2})月", _month),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,2})日(?!間|本)", _day),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,9})人", _people),
            rule("d", number + r"(?P<c>" + "|".join(sorted(_COUNTERS, key=lambda c: -len(c))) + ")",
                 lambda m: _number(m["n"]) + _COUNTERS[m["c"]]),
            rule("s", r"[¥￥]" + number, lambda m: _number(m["n"]) + "エン"),
            rule("d", number, lambda m: _number(m["n"])),
        ]
    )  # fmt: skip


def can_read_kanji() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("janome") is not None


@functools.cache
def _tokenizer() -> Any:
    from janome.tokenizer import Tokenizer

    return Tokenizer()


def kanji_edits(text: str, stretches: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    """Words with kanji in the Japanese `stretches` of `text` as katakana, and particles as they are said."""
    if not can_read_kanji():
        return
    for start, end in stretches:
        at = start
        for token in _tokenizer().tokenize(text[start:end]):
            surface = token.surface
            at = text.find(surface, at, end)
            if at < 0:
                break
            particle = token.part_of_speech.startswith("助詞")
            reading = token.phonetic if particle and surface in ("は", "へ") else token.reading
            if reading != "*" and (any(is_han(ch) for ch in surface) or (surface != reading and particle)):
                yield at, at + len(surface), reading
            at += len(surface)
