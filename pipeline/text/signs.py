"""Characters that are read in the same way whatever is around them, and those that are not read. Pure."""

from __future__ import annotations

import unicodedata

# One character for one, so that places in a text stay where they are.
_WIDE = {cp: cp - 0xFEE0 for cp in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}
_WIDE |= {
    ord(a): ord(b)
    for a, b in zip("％＋－＝＄＃＠＆／＊～＜＞｜＾＿．￥：", "%+-=$#@&/*~<>|^_.¥:", strict=True)
}
_WIDE |= {ord(a): ord(b) for a, b in zip("−‐‑‒〜∶\u00a0\u2009\u202f", "----~:   ", strict=True)}
_CONTEXT = {
    ord(a): ord(b)
    for a, b in zip(
        "點頁號個電話撥塊歲萬億時鐘間樓層碼帳賬驗證聯繫線熱報轉開關條張隻輛臺戰勝擊敗負級週溫約圓聲選擇會議賽學編訂單",
        "点页号个电话拨块岁万亿时钟间楼层码账账验证联系线热报转开关条张只辆台战胜击败负级周温约圆声选择会议赛学编订单",
        strict=True,
    )
}
_KEPT_WIDE = frozenset(ord(ch) for ch in "．：～＜＞｜＿＾＊")


def view(text: str) -> str:
    """`text` for the eyes of rules: full-width forms, odd hyphens and blanks, and the traditional characters
    that rules look at, each as its common form. As long as `text`."""
    return text.translate(_WIDE | _CONTEXT)


def narrowed(text: str) -> str:
    """Full-width letters, digits and signs as ASCII; full-width punctuation stays. As long as `text`."""
    return text.translate({cp: to for cp, to in _WIDE.items() if cp not in _KEPT_WIDE and cp > 0xFF00})


SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def number_sign(ch: str) -> int | None:
    """The whole number that a circled, bracketed or Roman sign stands for; None for others."""
    if unicodedata.category(ch) not in ("No", "Nl", "So"):
        return None
    value = unicodedata.numeric(ch, None)
    return int(value) if value is not None and value == int(value) and value >= 0 else None


def fraction_sign(ch: str) -> tuple[int, int] | None:
    """(1, 2) for ½."""
    plain = unicodedata.normalize("NFKC", ch)
    above, bar, below = plain.partition("\u2044")
    return (int(above), int(below)) if bar and above.isdigit() and below.isdigit() else None


def read_sign(ch: str) -> str | None:
    """What a sign without a name of its own becomes: its letters where it stands for some (㏂), a blank where
    it only decorates (emoji, boxes, trade marks), None (it stays) for the rest."""
    category = unicodedata.category(ch)
    if category == "Cf" or "\ufe00" <= ch <= "\ufe0f" or ch == "\u20e3":
        return ""
    if category not in ("So", "Sk", "Cn", "Co", "Cs"):
        return None
    plain = unicodedata.normalize("NFKC", ch)
    if plain != ch and any(unicodedata.category(part)[0] in "LN" for part in plain) and ch not in "™℠":
        return f" {plain} "
    return " "
