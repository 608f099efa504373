"""Numbers in English words, American: no `and` inside, no hyphens. Pure; digits in, words out."""

from __future__ import annotations

import functools

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_SAID = dict(zip("0123456789", _ONES, strict=False))
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ("", "thousand", "million", "billion", "trillion")
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_LONGEST = 15


def one_by_one(digits: str) -> str:
    """`007` as zero zero seven. Other characters are left out."""
    return " ".join([_SAID[ch] for ch in digits if ch in _SAID])


def cardinal(digits: str) -> str:
    """`1,299` as one thousand two hundred ninety nine."""
    if not (digits.isascii() and digits.isdigit()):
        digits = "".join([ch for ch in digits if ch in _SAID])
    digits = digits.lstrip("0")
    if len(digits) <= 3:
        return _below_thousand(int(digits or "0")) or "zero"
    if len(digits) <= 6:
        high, low = divmod(int(digits), 1000)
        return f"{_below_thousand(high)} thousand {_below_thousand(low)}".rstrip()
    if len(digits) > _LONGEST:
        return one_by_one(digits)
    groups = [int(digits[max(0, end - 3) : end]) for end in range(len(digits), 0, -3)]
    words: list[str] = []
    for place in range(len(groups) - 1, -1, -1):
        if groups[place]:
            words += [_below_thousand(groups[place]), _SCALES[place]]
    return " ".join(word for word in words if word)


@functools.cache
def _below_thousand(number: int) -> str:
    words = [_ONES[number // 100], "hundred"] if number >= 100 else []
    rest = number % 100
    if rest >= 20:
        words.append(_TENS[rest // 10])
        rest %= 10
    if rest:
        words.append(_ONES[rest])
    return " ".join(words)


def decimal(text: str) -> str:
    """`-3.14` as minus three point one four."""
    if text.isdigit() and (len(text) == 1 or text[0] != "0"):
        return cardinal(text)
    sign = "minus " if text[:1] in "-−" else ""
    text = text.lstrip("+-−").replace(",", "")
    whole, _, part = text.partition(".")
    if len(whole) > 1 and whole.startswith("0") and not part:
        return sign + one_by_one(whole)
    return sign + cardinal(whole or "0") + (" point " + one_by_one(part) if part else "")


def ordinal(digits: str) -> str:
    """`21` as twenty first."""
    head, blank, last = cardinal(digits).rpartition(" ")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return head + blank + last


def year(digits: str) -> str:
    """`1999` as nineteen ninety nine, `2005` as two thousand five, `1900` as nineteen hundred."""
    number = int(digits)
    high, low = divmod(number, 100)
    if number < 1000 or number >= 10000 or 2000 <= number < 2010:
        return cardinal(digits)
    if low == 0:
        return cardinal(digits) if high % 10 == 0 else f"{_below_thousand(high)} hundred"
    return f"{_below_thousand(high)} {'oh ' + _ONES[low] if low < 10 else _below_thousand(low)}"


def plural(words: str) -> str:
    """`ninety` as nineties, `eighty six` as eighty sixes."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + ("es" if words.endswith(("x", "s")) else "s")


_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman(letters: str) -> int:
    """The value of a Roman numeral; 0 for letters that are none."""
    total, before = 0, 0
    for ch in reversed(letters.upper()):
        value = _ROMAN.get(ch, 0)
        if not value:
            return 0
        total += -value if value < before else value
        before = max(before, value)
    return total if to_roman(total) == letters.upper() else 0


def to_roman(number: int) -> str:
    """The canonical numeral of 1 to 3999."""
    if not 0 < number < 4000:
        return ""
    pairs = zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        "M CM D CD C XC L XL X IX V IV I".split(),
        strict=True,
    )
    out = ""
    for value, letters in pairs:
        count, number = divmod(number, value)
        out += letters * count
    return out
