"""Splits text into runs by language, from the scripts it is written in and the language asked for.

Used by the built-in engine inside a segment and by `pipeline.text.segment` for the whole text. Pure.
Script ranges are from Unicode 15 Blocks.txt.
"""

from __future__ import annotations

import bisect
import functools
import unicodedata
from collections import Counter
from dataclasses import dataclass

_RANGES: tuple[tuple[int, int, str], ...] = (
    (0x0041, 0x005A, "latin"), (0x0061, 0x007A, "latin"), (0x00AA, 0x00AA, "latin"),
    (0x00BA, 0x00BA, "latin"),
    (0x00C0, 0x02AF, "latin"), (0x0370, 0x03FF, "greek"), (0x0400, 0x052F, "cyrillic"),
    (0x0530, 0x058F, "armenian"), (0x0590, 0x05FF, "hebrew"), (0x0600, 0x06FF, "arabic"),
    (0x0750, 0x077F, "arabic"), (0x0900, 0x097F, "devanagari"), (0x0980, 0x09FF, "bengali"),
    (0x0A80, 0x0AFF, "gujarati"), (0x0B80, 0x0BFF, "tamil"), (0x0C00, 0x0C7F, "telugu"),
    (0x0E00, 0x0E7F, "thai"), (0x10A0, 0x10FF, "georgian"), (0x1100, 0x11FF, "hangul"),
    (0x1E00, 0x1EFF, "latin"), (0x1F00, 0x1FFF, "greek"), (0x2E80, 0x2FDF, "han"), (0x3005, 0x3007, "han"),
    (0x3041, 0x30FF, "kana"), (0x3105, 0x312F, "han"), (0x3130, 0x318F, "hangul"), (0x31F0, 0x31FF, "kana"),
    (0x3400, 0x4DBF, "han"), (0x4E00, 0x9FFF, "han"), (0xAC00, 0xD7AF, "hangul"), (0xF900, 0xFAFF, "han"),
    (0xFF21, 0xFF3A, "latin"), (0xFF41, 0xFF5A, "latin"), (0xFF66, 0xFF9F, "kana"), (0x20000, 0x323AF, "han"),
)  # fmt: skip
_STARTS = [low for low, _, _ in _RANGES]

_DEFAULT = {
    "latin": "en", "greek": "el", "cyrillic": "ru", "armenian": "hy", "hebrew": "he", "arabic": "ar",
    "devanagari": "hi", "bengali": "bn", "gujarati": "gu", "tamil": "ta", "telugu": "te", "thai": "th",
    "georgian": "ka", "hangul": "ko", "han": "zh", "kana": "ja", "gurmukhi": "pa", "oriya": "or",
    "kannada": "kn", "malayalam": "ml", "sinhala": "si", "myanmar": "my", "ethiopic": "am", "khmer": "km",
    "lao": "lo", "tibetan": "bo", "cherokee": "chr", "other": "und",
}  # fmt: skip
_ALSO = {
    "cyrillic": {"ru", "uk", "bg", "sr", "be", "mk", "kk", "ky", "mn", "tt"},
    "arabic": {"ar", "fa", "ur"},
    "devanagari": {"hi", "mr", "ne"},
    "hebrew": {"he", "yi"},
    "han": {"zh", "yue", "ja", "cmn"},
}
_UKRAINIAN = frozenset("іїєґІЇЄҐ")
_OPENING = frozenset("([{<“‘「『《〈【（［｛«¿¡$€£¥￥#+@")


@functools.lru_cache(maxsize=8192)
def script_of(ch: str) -> str:
    """The script of a letter (`latin`, `han`, `kana` ...); "" for digits, marks, punctuation and the rest.

    A letter of a script that is not listed is `other`: an engine must see it as foreign, not lose it.
    """
    cp = ord(ch)
    i = bisect.bisect_right(_STARTS, cp) - 1
    if i < 0 or cp > _RANGES[i][1]:
        return _rare(ch) if cp > 0x02FF else ""
    return _RANGES[i][2] if unicodedata.category(ch)[0] in "LN" else ""


@functools.cache
def _rare(ch: str) -> str:
    """The script of a character outside the ranges; styled letters have the script of their plain form."""
    plain = unicodedata.normalize("NFKC", ch)[0]
    if plain != ch:
        return script_of(plain)
    if unicodedata.category(ch) not in ("Lu", "Ll", "Lt", "Lo"):
        return ""
    name = unicodedata.name(ch, "").split(" ")[0].lower()
    return name if name in _DEFAULT else "other"


def primary(language: str) -> str:
    """`zh` of `zh-Hant-TW`, lower case; "" for `auto`; Mandarin's `cmn` is `zh`."""
    tag = language.replace("_", "-").split("-")[0].lower()
    return {"auto": "", "cmn": "zh"}.get(tag, tag)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch `text == whole[start:end]` in one language (BCP-47 primary tag)."""

    text: str
    language: str
    start: int
    end: int


def _language_of(script: str, wanted: str, kana: bool, ukrainian: bool) -> str:
    """What a script means here: the language asked for where it is written so, else the usual one."""
    if script == "latin":
        # A language with a script of its own is not what these letters are; the rest are written in Latin.
        foreign = set(_DEFAULT.values()) - {"en"} | set().union(*_ALSO.values())
        return wanted if wanted and wanted not in foreign else "en"
    if wanted in _ALSO.get(script, ()):
        return wanted
    if script == "han" and kana:
        return "ja"
    if script == "cyrillic" and ukrainian:
        return "uk"
    return _DEFAULT[script]


def detect(text: str, language: str = "auto") -> str:
    """The language most of `text` is in; the one asked for when there is no letter, else English.

    A Han character or a kana counts for three letters, being about a syllable. One kana in twenty
    characters makes Han Japanese.
    """
    characters = Counter(text)
    counts: Counter[str] = Counter()
    for ch, count in characters.items():
        counts[script_of(ch)] += count
    del counts[""]
    wanted = primary(language)
    if not counts:
        return wanted or "en"
    kana = counts["kana"] * 20 > counts["han"]
    weights: Counter[str] = Counter()
    for script, count in counts.items():
        tongue = _language_of(script, wanted, kana, not _UKRAINIAN.isdisjoint(characters))
        weights[tongue] += count * (3 if script in ("han", "kana", "hangul") else 1)
    return weights.most_common(1)[0][0]


def split_runs(text: str, language: str = "auto") -> list[Run]:
    """Runs that together are `text`, neighbours in different languages.

    Digits and signs go with their neighbours: with Han where either side is Han ("存储256GB" is Chinese up to
    the letters), else with the run before. A text without letters is in the language asked for, else English.
    """
    if not text:
        return []
    wanted = primary(language)
    scripts = [script_of(ch) for ch in text]
    found = set(scripts)
    kana = "kana" in found and wanted not in ("zh", "yue")
    ukrainian = bool(_UKRAINIAN & set(text))
    tongues = {script: _language_of(script, wanted, kana, ukrainian) for script in found - {""}}
    if not tongues:
        return [Run(text, wanted or "en", 0, len(text))]
    labels: list[str] = []
    at = 0
    while at < len(text):
        end = at
        if scripts[at]:
            while end < len(text) and scripts[end] and tongues[scripts[end]] == tongues[scripts[at]]:
                end += 1
            labels += [tongues[scripts[at]]] * (end - at)
        else:
            while end < len(text) and not scripts[end]:
                end += 1
            before = labels[-1] if labels else ""
            after = tongues[scripts[end]] if end < len(text) else ""
            labels += _neutral(text[at:end], before, after)
        at = end
    runs: list[Run] = []
    start = 0
    for i in range(1, len(labels) + 1):
        if i == len(labels) or labels[i] != labels[start]:
            runs.append(Run(text[start:i], labels[start], start, i))
            start = i
    return runs


def _neutral(gap: str, before: str, after: str) -> list[str]:
    """Languages for the characters between two runs ("" where there is none)."""
    if before == after or not after:
        return [before] * len(gap)
    if not before:
        return [after] * len(gap)
    cjk = ("zh", "yue", "ja")
    if any(ch.isdigit() for ch in gap) and (before in cjk or after in cjk):
        return [before if before in cjk else after] * len(gap)
    cut = len(gap.rstrip("".join(_OPENING)))  # an opening bracket belongs to what it opens
    return [before] * cut + [after] * (len(gap) - cut)
