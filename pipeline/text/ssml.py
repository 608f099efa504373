"""Tags and entities: HTML that came along, and the part of SSML that is understood. Pure, linear time.

Honoured everywhere: `break`. With markup `ssml` also `sub`, `phoneme` (pinyin, ARPAbet, IPA of English) and
`say-as` (characters, digits, telephone, cardinal, ordinal, fraction as usual). Other tags go and leave their
words, blocks become lines. `<strong>` and `<laughter>` stay: they are CosyVoice's own (`pipeline.text.markup`).
What is honoured becomes markup in the text (`[pause 0.5s]`, `[h][ào]`), so that there is one way further on.
Source: https://www.w3.org/TR/speech-synthesis11/
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from pipeline.text import numbers_en, numbers_zh
from pipeline.text.markup import PAUSE_LONGEST_S
from pipeline.text.spoken import Edit
from pipeline.text.tokens import ARPABET, FINALS, INITIALS, TAGS

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,40})(\s[^<>]{0,500})?(/?)>|<!--(?:[^-]|-(?!->)){0,2000}-->")
_DOCUMENT = re.compile(r"<(?:\?xml|!DOCTYPE)[^<>]{0,500}>", re.I)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_ATTRIBUTE = re.compile(r"([\w:-]{1,40})\s{0,8}=\s{0,8}(?:\"([^\"]{0,400})\"|'([^']{0,400})')")
_TIME = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s?(ms|s)")
_BLOCKS = frozenset(
    "p br s div li tr ul ol table h1 h2 h3 h4 h5 h6 hr blockquote pre section article".split()
)
_KNOWN = _BLOCKS | frozenset(
    "a abbr b big body code del dd dl dt em figure font head html i img ins kbd label mark q ruby rt rp samp small span"
    " strike sub sup td th thead tbody title u var speak break say-as phoneme emphasis prosody voice audio lang w token"
    " mstts:express-as amazon:effect desc details summary tt center input button".split()
)
_STRENGTH = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7, "x-strong": 1.2}
_CONTENT = 2000  # characters that an element with a reading of its own may hold


def tag_edits(text: str, *, ssml: bool, language: str = "auto") -> list[Edit]:
    """Edits that take the tags out and read the entities. Outside of SSML only tags that exist count."""
    edits: list[Edit] = [(m.start(), m.end(), "") for m in _DOCUMENT.finditer(text)]
    for match in _TAG.finditer(text):
        name = (match[2] or "").lower()
        if match[2] is None:
            edits.append((match.start(), match.end(), ""))
        elif name in TAGS and not match[3]:
            continue
        elif name == "break" and not match[1]:
            edits.append((match.start(), match.end(), _pause(_attributes(match[3]))))
        elif ssml and name in ("sub", "phoneme", "say-as") and not match[1] and not match[4]:
            edits.append(_element(text, match, name, language))
        elif ssml or (name in _KNOWN and (not match[3] or "=" in match[3])):
            edits.append((match.start(), match.end(), "\n" if name in _BLOCKS else ""))
    for match in _ENTITY.finditer(text):
        if (meant := html.unescape(match[0])) != match[0]:
            edits.append((match.start(), match.end(), meant))
    return edits


def _attributes(text: str | None) -> Mapping[str, str]:
    found = _ATTRIBUTE.findall(text or "")
    return {name.lower(): html.unescape(double or single) for name, double, single in found}


def _pause(attributes: Mapping[str, str]) -> str:
    time = _TIME.fullmatch(attributes.get("time", "").strip())
    if time is not None:
        seconds = float(time[1]) / (1000 if time[2] == "ms" else 1)
    else:
        seconds = _STRENGTH.get(attributes.get("strength", "medium"), 0.4)
    seconds = min(seconds, PAUSE_LONGEST_S)
    return f"[pause {seconds:.3f}s]" if seconds >= 0.001 else ""


def _element(text: str, opening: re.Match[str], name: str, language: str) -> Edit:
    """An element whose words are replaced by its reading; only its tag goes where it says nothing useful."""
    inside = text.find(f"</{name}", opening.end(), opening.end() + _CONTENT)
    close = text.find(">", inside) + 1 if inside >= 0 else 0
    words = text[opening.end() : inside]
    attributes = _attributes(opening[3])
    said: str | None = None
    if inside >= 0 and close and "<" not in words:
        if name == "sub":
            said = attributes.get("alias")
        elif name == "phoneme":
            said = _phonemes(attributes.get("ph", ""), attributes.get("alphabet", "ipa").lower())
        else:
            said = _say_as(html.unescape(words), attributes.get("interpret-as", "").lower(), language)
    return (opening.start(), close, said) if said is not None else (opening.start(), opening.end(), "")


def _say_as(words: str, how: str, language: str) -> str | None:
    chinese = language.lower().startswith(("zh", "yue", "cmn")) or bool(re.search("[一-鿿]", words))
    digits = re.sub(r"[^0-9]", "", words)
    if how in ("characters", "spell-out", "verbatim", "letters"):
        spelled = [
            (numbers_zh.one_by_one(ch) if chinese else numbers_en.one_by_one(ch))
            if ch in "0123456789"
            else ch
            for ch in words
            if not ch.isspace()
        ]
        return " ".join(spelled)
    if how in ("digits", "telephone", "number:digits") and digits:
        return (
            numbers_zh.one_by_one(digits, telephone=how == "telephone")
            if chinese
            else numbers_en.one_by_one(digits)
        )
    if how in ("cardinal", "number") and digits:
        return numbers_zh.decimal(words.strip()) if chinese else numbers_en.decimal(words.strip())
    if how == "ordinal" and digits:
        return "第" + numbers_zh.cardinal(digits) if chinese else numbers_en.ordinal(digits)
    return None


_MARKS = {"1": "\u0304", "2": "\u0301", "3": "\u030c", "4": "\u0300"}
_IPA = {
    "tʃ": "CH", "dʒ": "JH", "aɪ": "AY", "aʊ": "AW", "eɪ": "EY", "oʊ": "OW", "əʊ": "OW", "ɔɪ": "OY", "ɜːr": "ER",
    "ɝ": "ER", "ɚ": "ER0", "ɜː": "ER", "ɜ": "ER", "ɑː": "AA", "ɑ": "AA", "æ": "AE", "ʌ": "AH", "ɔː": "AO", "ɔ": "AO",
    "ɒ": "AA", "ɛ": "EH", "e": "EH", "ɪ": "IH", "iː": "IY", "i": "IY", "ʊ": "UH", "uː": "UW", "u": "UW", "ə": "AH0",
    "b": "B", "d": "D", "ð": "DH", "f": "F", "ɡ": "G", "g": "G", "h": "HH", "k": "K", "l": "L", "m": "M", "n": "N",
    "ŋ": "NG", "p": "P", "ɹ": "R", "r": "R", "s": "S", "ʃ": "SH", "t": "T", "θ": "TH", "v": "V", "w": "W", "j": "Y",
    "z": "Z", "ʒ": "ZH",
}  # fmt: skip
_IPA_PIECE = re.compile("|".join(sorted(map(re.escape, _IPA), key=len, reverse=True)) + r"|[ˈˌ.\s‿]")
_VOWELS = frozenset("AEIOU")


def _phonemes(ph: str, alphabet: str) -> str | None:
    """Pronunciation markup for the attribute `ph`; None where it cannot be written in tokens."""
    if alphabet in ("py", "pinyin", "x-pinyin", "x-amazon-pinyin", "sapi"):
        return pinyin_markup(ph)
    if alphabet in ("x-arpabet", "arpabet", "cmu", "x-cmu"):
        names = ph.upper().split()
        return "".join(f"[{n}]" for n in names) if names and all(n in ARPABET for n in names) else None
    return _ipa_markup(ph)


def _ipa_markup(ph: str) -> str | None:
    said, at, stress = "", 0, "0"
    while at < len(ph):
        piece = _IPA_PIECE.match(ph, at)
        if piece is None:
            return None
        at = piece.end()
        if piece[0] in ("ˈ", "ˌ"):
            stress = "1" if piece[0] == "ˈ" else "2"
        elif name := _IPA.get(piece[0]):
            if name[0] in _VOWELS and not name.endswith("0"):
                name, stress = name + stress, "0"
            said += f"[{name}]"
    return said or None


def pinyin_markup(ph: str) -> str | None:
    """`hao4 xue2`, `hàoxué` is not cut; as `[h][ào][x][ué]`. None where a syllable has no tokens."""
    import unicodedata

    said = ""
    for syllable in ph.split():
        match = re.fullmatch(
            r"(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw])?(\D+?)([1-5])?", unicodedata.normalize("NFC", syllable)
        )
        if match is None:
            return None
        final = match[2].replace("v", "ü").replace("u:", "ü")
        if match[3] in _MARKS:
            final = _toned(final, _MARKS[match[3]])
        if ((match[1] or "") and match[1] not in INITIALS) or final not in FINALS:
            return None
        said += (f"[{match[1]}]" if match[1] else "") + f"[{final}]"
    return said or None


def _toned(final: str, mark: str) -> str:
    """The tone mark on the vowel that carries it: a, o or e, else the last."""
    import unicodedata

    vowels = [i for i, ch in enumerate(final) if ch in "aoeiuü"]
    if not vowels:
        return final
    at = next((i for letter in "aoe" for i in vowels if final[i] == letter), vowels[-1])
    return unicodedata.normalize("NFC", final[: at + 1] + mark + final[at + 1 :])
