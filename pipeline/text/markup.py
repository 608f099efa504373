"""Pronunciation and sounds inside a text: `[h][ào]`, `[M][AY0]`, `[breath]`, `<strong>`, `[pause 0.5s]`. Pure.

`check_markup` refuses a mistake when a request comes in; `find_marks` never raises: by then a mistake is text.
What only looks like markup (`[1]`, `[see below]`, a link) is text from the start. Control tokens (`<|...|>`)
are never instructions: `control_edits` takes their signs away and leaves their words.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from pipeline.codes import CosydError
from pipeline.text.spoken import Edit
from pipeline.text.tokens import ALL, ARPABET, EVENTS, FINALS, INITIALS, PINYIN, TAGS

Kind = Literal["pinyin", "arpabet", "event", "tag", "pause"]

PAUSE_DEFAULT_S = 0.5
PAUSE_LONGEST_S = 10.0

_RUN = re.compile(r"(?:\[[^\[\]\n]{1,24}\]){1,200}")
_ITEM = re.compile(r"\[([^\[\]\n]{1,24})\]")
_PAUSE = re.compile(
    r"\s*(?:pause|停顿|暂停)\s*(?:[:=：]?\s*([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*(ms|毫秒|seconds?|secs?|s|秒)?)?\s*",
    re.I,
)
_PAUSE_LIKE = re.compile(r"\s*(?:pause|停顿|暂停)\b", re.I)
_TAG = re.compile(r"<(/?)([a-z]{2,12})>")
_CONTROL = re.compile(r"<\|+|\|+>")
_NOT_MEANT = frozenset("sight sights couch nose noises breathe breathes couched laugher".split())
_NEAR = 0.8


@dataclass(frozen=True, slots=True)
class Mark:
    """`text[start:end]` is markup. `tokens` are the names in the brackets; `seconds` only for a pause."""

    start: int
    end: int
    kind: Kind
    tokens: tuple[str, ...] = ()
    seconds: float = 0.0


def control_edits(text: str) -> list[Edit]:
    """Edits after which no control token is left; the words inside stay."""
    return [(m.start(), m.end(), " ") for m in _CONTROL.finditer(text)]


def find_marks(text: str) -> list[Mark]:
    """The markup in `text`, in order. Never raises."""
    marks: list[Mark] = []
    for run in _RUN.finditer(text):
        marks += _run_marks(text, run.start(), run.end())
    marks += _tag_marks(text)
    return sorted(marks, key=lambda mark: mark.start)


def check_markup(text: str) -> None:
    """Raise CosydError(bad_value, reason="markup") for the first mistake: its text, the position of its first
    character (from 1) and the nearest that is right."""
    for run in _RUN.finditer(text):
        items = list(_ITEM.finditer(text, run.start(), run.end()))
        names = [_name(item[1]) for item in items]
        known = [
            _kind(name) is not None or _seconds(item[1]) is not None
            for name, item in zip(names, items, strict=True)
        ]
        meant = any(known) and len(items) > 1 and not any(re.search(r"^[0-9]|\s", name) for name in names)
        for item, name, right in zip(items, names, known, strict=True):
            if right:
                continue
            if _PAUSE_LIKE.match(item[1]):
                raise _mistake(item[0], item.start(), "[pause 0.5s]")
            event = (
                difflib.get_close_matches(name, sorted(EVENTS), 1, _NEAR) if name not in _NOT_MEANT else []
            )
            if event or meant:
                near = event or difflib.get_close_matches(name, sorted(ALL), 1, 0.0)
                raise _mistake(item[0], item.start(), f"[{near[0]}]")
    for tag in _TAG.finditer(text):
        if tag[2] not in TAGS and (near := difflib.get_close_matches(tag[2], sorted(TAGS), 1, _NEAR)):
            raise _mistake(tag[0], tag.start(), f"<{tag[1]}{near[0]}>")


def _mistake(value: str, at: int, nearest: str) -> CosydError:
    return CosydError(
        "bad_value", field="text", reason="markup", value=value, position=at + 1, nearest=nearest
    )


def _name(inside: str) -> str:
    """As the token list writes it: composed, events in lower case."""
    name = unicodedata.normalize("NFC", inside.strip())
    return name.lower() if name.lower().replace(" ", "_") in EVENTS and name not in ARPABET else name


def _kind(name: str) -> Kind | None:
    if name in EVENTS:
        return "event"
    if name in ARPABET:
        return "arpabet"
    return "pinyin" if name in PINYIN else None


def _seconds(inside: str) -> float | None:
    match = _PAUSE.fullmatch(inside)
    if match is None:
        return None
    if match[1] is None:
        return PAUSE_DEFAULT_S
    unit = (match[2] or "s").lower()
    seconds = float(match[1]) / (1000 if unit in ("ms", "毫秒") else 1)
    return seconds if 0 < seconds <= PAUSE_LONGEST_S else None


def _run_marks(text: str, start: int, end: int) -> list[Mark]:
    """The marks of one run of brackets: pauses and events one by one, phonemes as words."""
    marks: list[Mark] = []
    word: list[tuple[int, int, str, Kind]] = []

    def close() -> None:
        if word and _is_word([name for _, _, name, _ in word]):
            marks.append(Mark(word[0][0], word[-1][1], word[0][3], tuple(name for _, _, name, _ in word)))
        word.clear()

    for item in _ITEM.finditer(text, start, end):
        name, seconds = _name(item[1]), _seconds(item[1])
        kind = _kind(name)
        if seconds is not None:
            close()
            marks.append(Mark(item.start(), item.end(), "pause", (), seconds))
        elif kind == "event":
            close()
            marks.append(Mark(item.start(), item.end(), "event", (name,)))
        elif kind is None:
            close()
        else:
            if word and word[0][3] != kind:
                close()
            word.append((item.start(), item.end(), name, kind))
    close()
    return marks


def _is_word(names: list[str]) -> bool:
    """Not a lone letter in brackets, as `[a]` in a list of choices: that is text."""
    if len(names) > 1:
        return True
    name = names[0]
    return name[-1].isdigit() or (name in FINALS and not name.isascii())


def _tag_marks(text: str) -> list[Mark]:
    """`<strong>` and `<laughter>` that are closed again; a lone one is none."""
    marks: list[Mark] = []
    open_: dict[str, re.Match[str]] = {}
    for tag in _TAG.finditer(text):
        if tag[2] not in TAGS:
            continue
        if not tag[1]:
            open_[tag[2]] = tag
        elif (first := open_.pop(tag[2], None)) is not None:
            marks += [Mark(t.start(), t.end(), "tag", (t[0],)) for t in (first, tag)]
    return marks


_TONES = {"\u0304": "1", "\u0301": "2", "\u030c": "3", "\u0300": "4"}


def syllables(tokens: tuple[str, ...]) -> list[str]:
    """Pinyin tokens as syllables with tone numbers: ("h", "ào", "x", "ué") as ["hao4", "xue2"]; 5 is neutral.
    v stands for ü."""
    found: list[str] = []
    initial = ""
    for token in tokens:
        if token in INITIALS:
            if initial:
                found.append(initial + "5")
            initial = token
            continue
        letters, tone = "", "5"
        for ch in unicodedata.normalize("NFD", token):
            if ch in _TONES:
                tone = _TONES[ch]
            elif ch == "\u0308":
                letters = letters[:-1] + "v"
            else:
                letters += ch
        found.append(initial + letters + tone)
        initial = ""
    return [*found, initial + "5"] if initial else found


_IPA = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "IH": "ɪ",
    "IY": "i", "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u", "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f",
    "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s",
    "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_KIRSHENBAUM = {
    "AA": "A:", "AE": "a", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "EH": "E", "ER": "3:", "EY": "eI", "IH": "I",
    "IY": "i:", "OW": "oU", "OY": "OI", "UH": "U", "UW": "u:", "B": "b", "CH": "tS", "D": "d", "DH": "D", "F": "f",
    "G": "g", "HH": "h", "JH": "dZ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "N", "P": "p", "R": "r", "S": "s",
    "SH": "S", "T": "t", "TH": "T", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip
_STRESS = {"1": "ˈ", "2": "ˌ"}


def misaki(tokens: tuple[str, ...]) -> str:
    """ARPAbet tokens in misaki's American alphabet, which hibari speaks: ("L", "IY1", "D") as lˈid."""
    said = ""
    for token in tokens:
        base, stress = token.rstrip("012"), token[-1]
        if base == "AH" and stress == "0":
            said += "ə"
        elif base == "ER" and stress == "0":
            said += "əɹ"
        else:
            said += _STRESS.get(stress, "") + _IPA[base]
    return said


def espeak(tokens: tuple[str, ...]) -> str:
    """ARPAbet tokens in espeak-ng's ASCII phonemes for `[[...]]`: l'i:d."""
    said = ""
    for token in tokens:
        base, stress = token.rstrip("012"), token[-1]
        if stress == "0" and base in ("AH", "ER"):
            said += "@" if base == "AH" else "3"
        else:
            said += {"1": "'", "2": ","}.get(stress, "") + _KIRSHENBAUM[base]
    return said
