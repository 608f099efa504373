"""Ready-made ways of speaking: styles and Chinese dialects, as the instructions CosyVoice 3 was trained with.

Pure. Used by page, API and CLI; what is sent is plain text, so any other instruction works too. Names are
stable ids; what a person reads is `page.style.NAME` and `page.dialect.NAME` in the catalogues. Seventeen of
the dialects stand in the model's own list of instructions; Chongqing is asked for in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.codes import CosydError

STYLES: Mapping[str, str] = {
    "happy": "请非常开心地说一句话。",
    "sad": "请非常伤心地说一句话。",
    "angry": "请非常生气地说一句话。",
    "soft": "Please say a sentence in a very soft voice.",
    "loud": "Please say a sentence as loudly as possible.",
    "slow": "请用尽可能慢地语速说一句话。",
    "fast": "请用尽可能快地语速说一句话。",
    "robot": "你可以尝试用机器人的方式解说吗？",
}
"""The wording is the model's, odd grammar included: it learned exactly these."""

_DIALECTS = {
    "cantonese": "广东话", "minnan": "闽南话", "sichuan": "四川话", "chongqing": "重庆话",
    "dongbei": "东北话", "shanghai": "上海话", "tianjin": "天津话", "shandong": "山东话", "henan": "河南话",
    "shaanxi": "陕西话", "shanxi": "山西话", "gansu": "甘肃话", "ningxia": "宁夏话", "hubei": "湖北话",
    "hunan": "湖南话", "jiangxi": "江西话", "guizhou": "贵州话", "yunnan": "云南话",
}  # fmt: skip

DIALECTS: Mapping[str, str] = {name: f"请用{spoken}表达。" for name, spoken in _DIALECTS.items()}


def instruction(dialect: str = "", style: str = "", words: str = "") -> str | None:
    """One instruction of a dialect's name, a style's name (or any text) and free words; None when all are
    empty.

    Raises CosydError(bad_value) for a dialect there is not.
    """
    if dialect and dialect not in DIALECTS:
        raise CosydError(
            "bad_value", field="dialect", reason="not_one_of", value=dialect[:80], allowed=", ".join(DIALECTS)
        )
    parts = (DIALECTS.get(dialect, ""), STYLES.get(style.strip().lower(), style.strip()), words.strip())
    said = [part if part[-1] in "。！？.!?" else part + "。" for part in parts if part]
    return _joined(said) or None


def _joined(sentences: list[str]) -> str:
    """Blanks only between sentences that are not both Chinese."""
    out = ""
    for sentence in sentences:
        gap = "" if not out or (out[-1] in "。！？" and not sentence[0].isascii()) else " "
        out += gap + sentence
    return out
