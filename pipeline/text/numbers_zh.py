"""Numbers in Chinese words. Pure; digits in, Han out.

By the usual grouping in 万 (https://zh.wikipedia.org/wiki/中文数字). 二 inside numbers, 两 where a bare 2
counts something: `quantity`.
"""

from __future__ import annotations

import functools

_DIGITS = "零一二三四五六七八九"
_SAID = dict(zip("0123456789", _DIGITS, strict=True))
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿")
_LONGEST = 16  # digits that have a name; longer runs are read one by one


def one_by_one(digits: str, *, telephone: bool = False) -> str:
    """`010` as 零一零; a telephone number says 幺 for 一. Other characters are left out."""
    said = "".join([_SAID.get(ch, "") for ch in digits])
    return said.replace("一", "幺") if telephone else said


def cardinal(digits: str) -> str:
    """`1998` as 一千九百九十八. Thousands separators are ignored."""
    if not (digits.isascii() and digits.isdigit()):
        digits = "".join([ch for ch in digits if ch in _SAID])
    if len(digits) <= 4:
        said = _below_ten_thousand(int(digits or "0")) or "零"
        return said[1:] if said.startswith("一十") else said
    digits = digits.lstrip("0")
    if not digits:
        return "零"
    if len(digits) > _LONGEST:
        return one_by_one(digits)
    groups = [int(digits[max(0, end - 4) : end]) for end in range(len(digits), 0, -4)]
    said = ""
    gap = False  # a zero stands between what was said and what comes
    for place in range(len(groups) - 1, -1, -1):
        group = groups[place]
        if not group:
            gap = bool(said)
            continue
        if said and (gap or group < 1000):
            said += "零"
        said += _below_ten_thousand(group)
        # 万亿 is 万 before 亿: when 亿 follows by itself, only 万 is said.
        follows = place == 3 and groups[2]
        said += "万" if follows else _GROUPS[place]
        gap = False
    return said[1:] if said.startswith("一十") else said


@functools.cache
def _below_ten_thousand(number: int) -> str:
    said, gap = "", False
    for place in (3, 2, 1, 0):
        digit = number // 10**place % 10
        if digit:
            said += ("零" if gap else "") + _DIGITS[digit] + _PLACES[place]
            gap = False
        elif said:
            gap = True
    return said


def decimal(text: str, *, money: bool = False) -> str:
    """`-1,299.50` as 负一千二百九十九点五零; in money zeros at the end are not said."""
    if text.isdigit() and (len(text) == 1 or text[0] != "0"):
        return cardinal(text)
    sign = "负" if text[:1] in "-−" else ""
    text = text.lstrip("+-−").replace(",", "").replace("，", "")
    whole, _, part = text.partition(".")
    if money:
        part = part.rstrip("0")
    if len(whole) > 1 and whole.startswith("0") and not part:
        return sign + one_by_one(whole)
    return sign + cardinal(whole or "0") + ("点" + one_by_one(part) if part else "")


def quantity(text: str) -> str:
    """As `decimal`, with 两 for a bare 2: 两个, 两公里."""
    return "两" if text == "2" else decimal(text)


def year(digits: str) -> str:
    """Digit by digit."""
    return one_by_one(digits)
