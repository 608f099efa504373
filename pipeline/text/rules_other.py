"""Numbers of the languages beyond Chinese and English, read in their own words. Pure.

Number words come from unicode-rbnf (CLDR's rules), Korean and Japanese counters from tables. What is not
read stays as it is: a synthesiser of the language may know it. unicode-rbnf (0.1 s) is imported when a text
needs it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from pipeline.text import japanese, korean
from pipeline.text.links import EMAIL, IP, URL
from pipeline.text.rule import Rules, rule

_WORDS: dict[str, tuple[str, str, str, str, str]] = {
    # decimal mark, percent, degrees, minus, hour word between hours and minutes
    "de": ("Komma", "Prozent", "Grad", "minus", "Uhr"),
    "fr": ("virgule", "pour cent", "degrés", "moins", "heures"),
    "es": ("coma", "por ciento", "grados", "menos", "y"),
    "it": ("virgola", "per cento", "gradi", "meno", "e"),
    "pt": ("vírgula", "por cento", "graus", "menos", "e"),
    "nl": ("komma", "procent", "graden", "min", "uur"),
    "ru": ("запятая", "процентов", "градусов", "минус", ""),
    "uk": ("кома", "відсотків", "градусів", "мінус", ""),
    "pl": ("przecinek", "procent", "stopni", "minus", ""),
    "sv": ("komma", "procent", "grader", "minus", ""),
    "da": ("komma", "procent", "grader", "minus", ""),
    "cs": ("čárka", "procent", "stupňů", "minus", ""),
    "tr": ("virgül", "yüzde", "derece", "eksi", ""),
    "ro": ("virgulă", "la sută", "grade", "minus", "și"),
    "fi": ("pilkku", "prosenttia", "astetta", "miinus", ""),
    "hu": ("egész", "százalék", "fok", "mínusz", "óra"),
    "el": ("κόμμα", "τοις εκατό", "βαθμοί", "μείον", "και"),
    "id": ("koma", "persen", "derajat", "minus", ""),
    "vi": ("phẩy", "phần trăm", "độ", "âm", "giờ"),
}
_MONEY: dict[str, dict[str, str]] = {
    "de": {"€": "Euro", "$": "Dollar", "£": "Pfund", "¥": "Yen"},
    "fr": {"€": "euros", "$": "dollars", "£": "livres", "¥": "yens"},
    "es": {"€": "euros", "$": "dólares", "£": "libras", "¥": "yenes"},
    "it": {"€": "euro", "$": "dollari", "£": "sterline", "¥": "yen"},
    "pt": {"€": "euros", "$": "dólares", "£": "libras", "¥": "ienes"},
    "nl": {"€": "euro", "$": "dollar", "£": "pond", "¥": "yen"},
    "ru": {"€": "евро", "$": "долларов", "£": "фунтов", "₽": "рублей"},
    "pl": {"€": "euro", "$": "dolarów", "£": "funtów"},
    "sv": {"€": "euro", "$": "dollar", "£": "pund"},
}
_MAJOR = ("de", "nl", "fr", "es", "it", "pt", "sv", "pl")
_N = r"(?:[0-9]{1,3}(?:[.\u00a0\u202f ][0-9]{3}){1,4}(?![0-9])(?:,[0-9]+)?|[0-9]+(?:[,.][0-9]+)?)(?![0-9])"
_NS = r"(?<![0-9A-Za-z])(?<![0-9][.,])"


@functools.cache
def _engine(language: str) -> Any:
    from unicode_rbnf import RbnfEngine

    try:
        return RbnfEngine.for_language(language)
    except (ValueError, KeyError, OSError):
        return None


def _whole(language: str, digits: str) -> str:
    """A whole number in words; its digits where the language has no rules."""
    number = int(digits)
    engine = _engine(language)
    if engine is None or len(digits) > 15:
        return digits
    if language == "de" and 1100 <= number < 2000 and len(digits) == 4:
        high, low = divmod(number, 100)
        return f"{_whole(language, str(high))}hundert{_whole(language, str(low)) if low else ''}"
    try:
        said = str(engine.format_number(number).text)
    except (ValueError, KeyError, RecursionError, ArithmeticError):
        return digits
    return said.replace("\u00ad", "")


def _parts(text: str) -> tuple[str, str]:
    """Digits before and after the decimal mark: 1.234,56 and 2,50 and 3.5."""
    text = re.sub(r"[\u00a0\u202f ]", "", text)
    if re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]+)?", text):
        text = text.replace(".", "")
    whole, _, part = text.replace(",", ".").partition(".")
    return whole, part


def _number(language: str, text: str) -> str:
    whole, part = _parts(text)
    one_by_one = len(whole) > 1 and whole[0] == "0"
    said = " ".join(_whole(language, d) for d in whole) if one_by_one else _whole(language, whole)
    if part:
        said += f" {_WORDS[language][0]} " + " ".join(_whole(language, digit) for digit in part)
    return said


def _european(language: str) -> Rules:
    _, percent, degrees, minus, hour = _WORDS[language]
    money = _MONEY.get(language, {})
    signs = re.escape("".join(money)) or "€"

    def say(m: re.Match[str]) -> str:
        return (f"{minus} " if m.groupdict().get("neg") else "") + _number(language, m["n"])

    def amount(m: re.Match[str]) -> str:
        name = money[m["cur"]]
        whole, part = _parts(m["n"])
        if len(part) == 2 and language in _MAJOR:
            cents = f" {_whole(language, part)}" if int(part) else ""
            return f"{_whole(language, whole)} {name}{cents}"
        return f"{_number(language, m['n'])} {name}"

    def clock(m: re.Match[str]) -> str | None:
        if int(m["h"]) > 24:
            return None
        minute = f" {_whole(language, m['m'])}" if int(m["m"]) else ""
        return " ".join(f"{_whole(language, m['h'])} {hour}{minute}".split())

    def percentage(m: re.Match[str]) -> str:
        said = say(m)
        return f"{percent} {said}" if language == "tr" else f"{said} {percent}"

    neg = r"(?P<neg>(?<![0-9A-Za-z])[-−])?"
    table = [
        rule("dl", URL, lambda m: m[0]),
        rule("dl", EMAIL, lambda m: m[0]),
        rule("d", IP, lambda m: m[0]),
        rule("d", _NS + r"(?P<h>[0-9]{1,2}):(?P<m>[0-5][0-9])(?![0-9:])(?: Uhr| heures?| uur)?", clock),
        rule("ds", _NS + neg + r"(?P<n>" + _N + r") ?%", percentage),
        rule("ds", _NS + neg + r"(?P<n>" + _N + r") ?°(?: ?C(?![A-Za-z]))?", lambda m: f"{say(m)} {degrees}"),
        rule("d", _NS + r"(?P<a>[0-9]+(?:\.[0-9]+){2,})", lambda m: " ".join(
            _whole(language, part) for part in m["a"].split("."))),
        rule("ds", _NS + neg + r"(?P<n>" + _N + r")(?![0-9]|[./][0-9])(?!\.? ?[A-Za-zÀ-ÿ]*[0-9])", say),
        rule("d", r"(?P<n>[0-9]+)", say),
    ]  # fmt: skip
    if money:
        table[4:4] = [
            rule("d", _NS + r"(?P<n>" + _N + r") ?(?P<cur>[" + signs + r"])", amount),
            rule("s", r"(?P<cur>[" + signs + r"]) ?(?P<n>" + _N + r")", amount),
        ]
    return Rules(table)


_NOTHING = Rules([])
_OWN: dict[str, Callable[[], Rules]] = {"ko": korean.rules, "ja": japanese.rules}


@functools.cache
def rules_for(language: str) -> Rules:
    """The rules of a language (primary tag); none where nothing is known about it."""
    if language in _OWN:
        return _OWN[language]()
    return _european(language) if language in _WORDS else _NOTHING
