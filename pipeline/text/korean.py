"""Numbers in Korean: Sino-Korean, and native ones before the counters that want them. Pure."""

from __future__ import annotations

import re

from pipeline.text.rule import Rules, rule

_DIGITS = "영일이삼사오육칠팔구"
_NATIVE_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_NATIVE_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_COUNTERS = "시간|시|살|명|개|번|마리|권|병|잔|대|송이|그루|켤레|벌|채|장|가지|사람|달"


def sino(digits: str) -> str:
    """`1998` as 천구백구십팔."""
    digits = digits.lstrip("0") or "0"
    if digits == "0":
        return "영"
    if len(digits) > 16:
        return one_by_one(digits)
    said = []
    groups = [int(digits[max(0, end - 4) : end]) for end in range(len(digits), 0, -4)]
    for place in range(len(groups) - 1, -1, -1):
        if groups[place]:
            words = _below_ten_thousand(groups[place])
            said.append(("" if words == "일" and place == 1 else words) + ("", "만", "억", "조")[place])
    return "".join(said)


def _below_ten_thousand(number: int) -> str:
    said = ""
    for place, name in ((3, "천"), (2, "백"), (1, "십"), (0, "")):
        digit = number // 10**place % 10
        if digit:
            said += ("" if digit == 1 and name else _DIGITS[digit]) + name
    return said


def one_by_one(digits: str) -> str:
    """A telephone number."""
    return "".join("공" if ch == "0" else _DIGITS[int(ch)] for ch in digits if ch.isdigit())


def native(number: int) -> str:
    """1 to 99 before a counter: 세 시, 스무 살."""
    tens, ones = divmod(number, 10)
    return "스무" if number == 20 else _NATIVE_TENS[tens] + _NATIVE_ONES[ones]


def _counted(m: re.Match[str]) -> str | None:
    number = int(m["n"])
    return f"{native(number)} " if 0 < number < 100 else None


def _number(m: re.Match[str]) -> str:
    whole, _, part = m["n"].replace(",", "").partition(".")
    return sino(whole) + (" 점 " + "".join(_DIGITS[int(d)] for d in part) if part else "")


def rules() -> Rules:
    """The rules of Korean."""
    return Rules(
        [
            rule("d", r"(?<![0-9])0[0-9]{1,2}-[0-9]{3,4}-[0-9]{4}(?![0-9])", lambda m: one_by_one(m[0])),
            rule("d", r"(?<![0-9.])(?P<n>[0-9]{1,2}):(?P<m>[0-5][0-9])(?![0-9:])", lambda m: (
                f"{native(int(m['n']) % 12 or 12)} 시" + (f" {sino(m['m'])} 분" if int(m["m"]) else ""))),
            rule("d", r"(?<![0-9.,])(?P<n>[0-9]{1,2}) ?(?=" + _COUNTERS + r")", _counted),
            rule("d", r"(?P<n>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?) ?%",
                 lambda m: _number(m) + " 퍼센트"),
            rule("d", r"(?P<n>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)", _number),
        ]
    )  # fmt: skip
