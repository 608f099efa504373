"""What the rules of English say for a match. Pure; the patterns are in `rules_en`."""

from __future__ import annotations

import re

from pipeline.text.numbers_en import cardinal, decimal, one_by_one, ordinal, plural, roman, year
from pipeline.text.readings_zh import POWER, after, before, maybe
from pipeline.text.signs import SUBSCRIPTS, SUPERSCRIPTS, fraction_sign, number_sign
from pipeline.text.units import EN_MONEY, EN_UNITS

Match = re.Match[str]

MONTHS = "January February March April May June July August September October November December".split()
_MONTH = {name[:3].lower(): name for name in MONTHS}
_MONTH_NUMBER = {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}
_ERA = re.compile(r" ?(?:AD|BC|CE|BCE)\b")
_BEFORE_YEAR = re.compile(
    r"(?:\b(?:in|since|from|by|until|till|of|year|before|after|during|circa|around|early|late|mid)[- ]|©)$",
    re.I,
)
_THE = re.compile(r"\b[Tt]he $")
_DIGITS = re.compile(r"[0-9]+")
_EXTENSION = re.compile(r"(?:x|ext\.?) ?([0-9]+)$")
_LETTER_GOES_ON = re.compile(r"-[a-z]")
_EQUALS = re.compile(r" ?=")
_YEAR = re.compile(r"1[1-9][0-9]{2}|20[0-9]{2}")
_CALL = re.compile(
    r"(?:[Cc]all(?:ed|ing)?|[Dd]ial(?:ed|ing)?|[Tt]ext|[Pp]hone|[Rr]ing)(?: us at| at| me at)?[: ]+$"
)
_NAMED = re.compile(
    r"(?:\b(?:code|pin|passcode|password|id|account|acct|serial|confirmation|tracking|order|invoice|ticket|case|flight"
    r"|zip|zip ?code|postal code|card|ending in|extension|ext|isbn|model|booking|reference|ref|passport|license|plate"
    r"|ssn|routing|otp)(?: (?:number|no|code|is|was|of|in))*[.:#]*|#) ?$",
    re.I,
)
# How the two end, as a place can look behind itself: most numbers need no closer look at the words before them.
AFTER_CALL = r"(?:(?<=[: ] )|(?<=[:\n])|(?<=(?:all|led|ing|ial|ext|one| at) ))"
AFTER_NAME = (
    r"(?:(?<=[.:#\n]|[^\x00-\x7f])|(?<=[.:#] )|(?<=(?i:\bid) )"
    r"|(?<=(?i:ode|pin|ord|unt|cct|ial|ion|ing|der|ice|ket|ase|ght|zip|ard|ext|sbn|del|nce|ref|ort|nse|ate|ssn|otp"
    r"|ber| no| is|was| of| in) ))"
)
_COUNTS = re.compile(
    r" (?:people|men|women|children|copies|times|more|different|dollars|miles|years|days|[a-z]{3,}s\b)"
)
_ORDINAL_NAMES = frozenset(
    "Henry Louis Elizabeth George Charles William Edward James Richard Mary Philip Napoleon Pius Paul Benedict Gregory "
    "Leo Catherine Peter Nicholas Alexander Frederick Wilhelm Ferdinand Francis Ramses Ptolemy Otto Constantine "
    "Innocent Urban Clement Victor Albert Leopold Gustav Christian Ivan Carl Olav Haakon Harald Malcolm David Felipe "
    "Juan Pope King Queen Emperor Tsar Rama Umberto Margrethe Xerxes Darius Theodosius Sixtus Julius Mehmed Murad "
    "Joseph Robert Alfonso Sancho Casimir Sigismund".split()
)
_NUMBERED = frozenset(
    "Chapter Part Section Volume Book Act Scene War Type Phase Class Level Figure Table Appendix Step Stage Grade Mark "
    "Title Article Division Category Group Unit Lesson Module Episode Season Round Game Symphony Sonata Opus Tier "
    "chapter part section volume book act scene type phase class level figure table step stage grade".split()
)
_BELOW = {2: ("half", "halves"), 4: ("quarter", "quarters")}


def _date_words(m: Match, month: int, day: str, year_: str | None) -> str | None:
    if not (1 <= month <= 12 and 1 <= int(day) <= 31):
        return None
    said = f"{MONTHS[month - 1]} {ordinal(day)}"
    return said + (f", {year(year_)}" if year_ else "")


def iso_date(m: Match) -> str | None:
    """2025-09-28"""
    return _date_words(m, int(m["m"]), m["d"], m["y"])


def slash_date(m: Match) -> str | None:
    """9/28/2025; day first where the first number is no month"""
    first, second = int(m["a"]), int(m["b"])
    number = m["y"]
    full = number if len(number) == 4 else ("20" if int(number) < 60 else "19") + number
    if first > 12:
        return _date_words(m, second, m["a"], full)
    return _date_words(m, first, m["b"], full)


def month_day(m: Match) -> str | None:
    """Sept. 28, 2025; March 5"""
    month = _MONTH_NUMBER[m["mon"][:3].lower()]
    return _date_words(m, month, m["d"], maybe(m, "y"))


def day_month(m: Match) -> str | None:
    """5 March 2024"""
    month = _MONTH_NUMBER[m["mon"][:3].lower()]
    if not 1 <= int(m["d"]) <= 31:
        return None
    the = "" if _THE.search(before(m)) else "the "
    tail = f" {year(m['y'])}" if maybe(m, "y") else ""
    return f"{the}{ordinal(m['d'])} of {MONTHS[month - 1]}{tail}"


def month_name(short: str) -> str:
    """Oct: October"""
    return _MONTH[short[:3].lower()]


def lines(m: Match) -> str:
    """1080p: ten eighty p"""
    return f"{cardinal(m['n'][:-2])} {cardinal(m['n'][-2:])} {m['l']}"


def months(m: Match) -> str:
    """Jan-Mar 2024"""
    first, last = (_MONTH[m[name][:3].lower()] for name in "ab")
    return f"{first} to {last}" + (f" {year(m['y'])}" if maybe(m, "y") else "")


def month_year(m: Match) -> str:
    """Dec. 2020"""
    return f"{_MONTH[m['mon'][:3].lower()]} {year(m['y'])}"


def _half(text: str) -> str:
    return f" {text[0].upper()} M" if text else ""


def _clock(hour: str, minute: str, half: str) -> str | None:
    if int(hour) > 24:
        return None
    low = int(minute)
    if low == 0:
        return cardinal(hour) + (
            _half(half) if half else " o'clock" if 1 <= int(hour) <= 12 else " hundred hours"
        )
    return f"{cardinal(hour)} {'oh ' + cardinal(minute) if low < 10 else cardinal(minute)}{_half(half)}"


def time(m: Match) -> str | None:
    """9:05 p.m., 14:30, 12:30:45"""
    half = maybe(m, "half")
    said = _clock(m["h"], m["min"], "" if maybe(m, "sec") else half)
    if said and maybe(m, "sec"):
        said = said.replace(" o'clock", "") + f" and {cardinal(m['sec'])} seconds" + _half(half)
    return said


def time_range(m: Match) -> str | None:
    """8:30-17:00"""
    first = _clock(m["h"], m["min"], maybe(m, "half"))
    last = _clock(m["h2"], m["min2"], maybe(m, "half2"))
    return f"{first} to {last}" if first and last else None


def half_range(m: Match) -> str | None:
    """9am-5pm, 8:30-10 a.m."""
    if not (1 <= int(m["h"]) <= 12 and 1 <= int(m["h2"]) <= 12):
        return None
    ends = []
    for hour, minute, half in (("h", "min", "half"), ("h2", "min2", "half2")):
        said = maybe(m, minute) and int(m[minute])
        ends.append((_clock(m[hour], m[minute], "") if said else cardinal(m[hour])) or "")
        ends[-1] += _half(maybe(m, half))
    return " to ".join(ends)


def hour_half(m: Match) -> str | None:
    """9 a.m."""
    return cardinal(m["h"]) + _half(m["half"]) if 1 <= int(m["h"]) <= 12 else None


def ratio(m: Match) -> str:
    """3:2, 100:1"""
    return " to ".join(decimal(part) for part in re.split(r" ?: ?", m[0]))


def phone(m: Match) -> str:
    """Groups of digits, a short break between them."""
    said = ", ".join(one_by_one(group) for group in _DIGITS.findall(m[0].split("x")[0].split("ext")[0]))
    if extension := _EXTENSION.search(m[0]):
        said += f", extension {one_by_one(extension[1])}"
    return ("plus " if m[0].startswith("+") else "") + said


def short_phone(m: Match) -> str | None:
    """911 after a word of calling"""
    return one_by_one(m[0]) if _CALL.search(before(m, 24)) else None


def named(m: Match) -> str | None:
    """Digits and letters after code, PIN, order number ..: one by one"""
    if not _NAMED.search(before(m, 40)) or not re.search("[0-9]{3}", m[0]):
        return None
    return spell_digits(m[0])


def spell_digits(text: str) -> str:
    """Letters stay, digits one by one, hyphens are silent."""
    said = re.sub(r"[0-9]+", lambda d: f" {one_by_one(d[0])} ", re.sub(r"[-_]+", " ", text))
    return " ".join(said.split())


def model(m: Match) -> str:
    """RTX4090, H200, MP3"""
    digits = m["n"]
    if m["l"] in ("FY", "CY") and _YEAR.fullmatch(digits):
        return f"{m['l']} {year(digits)}"
    bare = "." not in digits and (len(digits) > 2 or (digits[0] == "0" and len(digits) > 1))
    return f"{m['l']} {one_by_one(digits) if bare else decimal(digits)}"


def _sum(number: str, cur: str) -> str:
    one, many, cent, cents = EN_MONEY[cur]
    whole, _, part = number.replace(",", "").partition(".")
    if cent and len(part) == 2:
        units, hundredths = int(whole or 0), int(part)
        major = f"{cardinal(whole)} {one if units == 1 else many}"
        if not hundredths:
            return major
        minor = f"{cardinal(part)} {cent if hundredths == 1 else cents}"
        return f"{major} and {minor}" if units else minor
    return f"{decimal(number)} {one if number == '1' else many}"


_SCALES = {"k": "thousand", "K": "thousand", "M": "million", "m": "million", "B": "billion", "b": "billion",
           "bn": "billion", "T": "trillion", "mn": "million"}  # fmt: skip


def money(m: Match) -> str:
    """$1,299.99, $1.5 million, £5-£10, -$3, $5k"""
    cur = m["cur"]
    sign = "minus " if maybe(m, "neg") or maybe(m, "neg2") else ""
    scale = maybe(m, "scale").strip()
    scale = _SCALES.get(scale, scale)
    many = EN_MONEY[cur][1]
    if maybe(m, "n2"):
        first = decimal(m["n"])
        return f"{sign}{first} to {decimal(m['n2'])}{' ' + scale if scale else ''} {many}"
    if scale:
        return f"{sign}{decimal(m['n'])} {scale} {many}"
    return sign + _sum(m["n"], cur)


def money_after(m: Match) -> str:
    """500 USD"""
    return _sum(m["n"], m["cur"])


def percent(m: Match) -> str:
    """8%, 5-10%, -3%"""
    sign = "percent" if m["sign"] == "%" else "per mille"
    return _signed(m["n"]) + (f" to {_signed(m['n2'])}" if maybe(m, "n2") else "") + f" {sign}"


def _signed(text: str) -> str:
    return ("plus " if text[0] == "+" else "") + decimal(text)


def degrees(m: Match) -> str:
    """-3℃, 72°F, 45°"""
    sign = m["sign"].replace(" ", "")
    name = {"°F": " Fahrenheit", "℉": " Fahrenheit", "℃": " Celsius", "°C": " Celsius"}.get(sign, "")
    last = maybe(m, "n2")
    count = (last or m["n"]).lstrip("+-")
    word = "degree" if count == "1" and not last else "degrees"
    where = maybe(m, "dir")
    return (
        _signed(m["n"]) + (f" to {_signed(last)}" if last else "")
        + f" {word}{name}" + (f" {_WAYS[where]}" if where else "")
    )  # fmt: skip


_WAYS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def arc(m: Match) -> str:
    """40°26'46\"N"""
    said = f"{cardinal(m['d'])} degrees {cardinal(m['min'])} minutes"
    said += f" {decimal(m['sec'])} seconds" if maybe(m, "sec") else ""
    return said + (f" {_WAYS[m['dir']]}" if maybe(m, "dir") else "")


def _parts(above: int, below: int) -> str:
    one, many = _BELOW.get(below) or (ordinal(str(below)), plural(ordinal(str(below))))
    return f"{cardinal(str(above))} {one if above == 1 else many}"


def fraction(m: Match) -> str | None:
    """1/2, 1 1/2, 9/11, 24/7"""
    above, below = int(m["a"]), int(m["b"])
    if m[0] in ("9/11", "24/7", "7/11", "50/50", "20/20"):
        return f"{cardinal(m['a'])} {cardinal(m['b'])}"
    if below == 0 or m["b"][0] == "0":
        return None
    unit_ = maybe(m, "unit") and " " + EN_UNITS[m["unit"]][1 if maybe(m, "w") else 0]
    if maybe(m, "w"):
        return f"{cardinal(m['w'])} and {_parts(above, below).replace('one half', 'a half')}{unit_}"
    if above < below <= 100 and below != 1:
        return _parts(above, below) + unit_
    return f"{cardinal(m['a'])} over {cardinal(m['b'])}{unit_}"


def fraction_mark(m: Match) -> str | None:
    """½, 3½"""
    parts = fraction_sign(m["f"])
    if parts is None:
        return None
    said = _parts(*parts)
    return f"{cardinal(m['w'])} and {said.replace('one half', 'a half')}" if maybe(m, "w") else said


def dimensions(m: Match) -> str:
    """120×60 cm"""
    parts = [decimal(n) for n in re.findall(r"[0-9]+(?:\.[0-9]+)?", m["all"])]
    word = " times " if _EQUALS.match(after(m)) else " by "
    unit_ = maybe(m, "unit")
    return word.join(parts) + (f" {EN_UNITS[unit_][1]}" if unit_ else "")


def unit(m: Match) -> str:
    """5 km, 3-5 kg, -2 m"""
    sign = "minus " if maybe(m, "neg") == "-" else ""
    one, many = EN_UNITS[m["unit"]]
    last = maybe(m, "n2")
    single = m["n"] == "1" and not last
    adjective = bool(_LETTER_GOES_ON.match(after(m)))
    name = one if single or adjective else many
    return sign + decimal(m["n"]) + (f" to {decimal(last)}" if last else "") + f" {name}"


PER = {
    "year": "year", "month": "month", "mo": "month", "wk": "week", "week": "week", "day": "day", "d": "day",
    "hour": "hour", "minute": "minute", "second": "second", "person": "person", "user": "user", "night": "night",
    "page": "page", "item": "item", "unit": "unit", "piece": "piece", "pc": "piece", "ea": "each",
}  # fmt: skip
"""What a price or rate is for, beside the units."""

_RATE = re.compile(r"[0-9](?: ?[A-Za-zμ°²³]{1,6}| thousand| million| billion)?$")


def per(m: Match) -> str | None:
    """$20/hr, 5 mg/kg, 6.5 L/100 km: after an amount"""
    if not _RATE.search(before(m, 12)):
        return None
    word, many = EN_UNITS.get(m["unit"]) or (PER[m["unit"]],) * 2
    count = maybe(m, "n")
    return f" per {cardinal(count)} {many}" if count else f" per {word}" if word != "each" else " each"


def feet_inches(m: Match) -> str:
    """5'10\""""
    inches = f" {cardinal(m['i'])}" if maybe(m, "i") else ""
    return f"{cardinal(m['f'])} foot{inches}" if inches else f"{cardinal(m['f'])} feet"


def inches(m: Match) -> str | None:
    """27\" monitor; not the end of what is quoted"""
    line = before(m, 300).rpartition("\n")[2]
    return None if len(re.findall(r'(?<![0-9])"', line)) % 2 else decimal(m["n"]) + " inch"


def span(m: Match) -> str:
    """5-10, 1914-1918, 9-5"""
    first, last, sep = m["n"], m["n2"], m["sep"]
    years = _YEAR.fullmatch(first) and (_YEAR.fullmatch(last) or len(last) == 2)
    if first == last == "50":
        return "fifty fifty"
    if _EQUALS.match(after(m)) or (sep == " - " and "-" in sep):
        return f"{decimal(first)} minus {decimal(last)}"
    if years and (len(last) == 2 or int(first) < int(last)):
        return f"{year(first)} to {year(last) if len(last) == 4 else cardinal(last)}"
    plain = (first + last).isdigit()
    if plain and (max(len(first), len(last)) > 5 or (first[0] == "0" and len(first) > 1)):
        return f"{one_by_one(first)}, {one_by_one(last)}"
    return f"{decimal(first)} to {decimal(last)}"


def power(m: Match) -> str:
    """x², 10⁶, 2^8"""
    exponent = m["sup"].translate(SUPERSCRIPTS) if maybe(m, "sup") else m["exp"]
    base = m["base"]
    said = decimal(base) if base[0].isdigit() else base
    unit_ = " " + EN_UNITS[m["unit"]][1] if maybe(m, "unit") else ""
    if maybe(m, "op"):
        unit_ += " to " if POWER.match(after(m, 12)) else " minus "
    if exponent in ("2", "3"):
        return f"{said} {'squared' if exponent == '2' else 'cubed'}{unit_}"
    if exponent == "n":
        return f"{said} to the n{unit_}"
    return f"{said} to the power of {decimal(exponent)}{unit_}"


def superscripts(m: Match) -> str:
    """After what is no letter or digit."""
    digits = m[0].translate(SUPERSCRIPTS)
    return {"2": " squared", "3": " cubed"}.get(
        digits
    ) or f" {cardinal(digits) if digits.isdigit() else digits} "


def subscripts(m: Match) -> str:
    """H₂O"""
    return " " + " ".join(cardinal(ch) for ch in m[0].translate(SUBSCRIPTS)) + " "


def version(m: Match) -> str:
    """v2.10.3"""
    lead = maybe(m, "v")
    said = " point ".join(
        cardinal(part) if part[0] != "0" else one_by_one(part) for part in m["n"].split(".")
    )
    return f"{'version' if lead.lower() == 'version' else lead} {said}".strip()


def circled(m: Match) -> str | None:
    """① Ⅳ"""
    value = number_sign(m[0])
    if value is None:
        return None
    lead = "" if re.search(r"(?:^|\s)$", before(m)) else " "
    tail = ", " if re.match(r" ?[^\W\d]", after(m)) and re.search(r"(?:^|\n|[.!?;:] ?)$", before(m)) else " "
    return lead + cardinal(str(value)) + (tail if re.match(r"\S", after(m)) else "")


def decade(m: Match) -> str:
    """1990s, '90s, 80s"""
    return decade_words(m["n"] or m["a"] or m["b"]) + (" to " if m["to"] else "")


def decade_words(digits: str) -> str:
    """1980: nineteen eighties"""
    if len(digits) == 4 and digits[2:] == "00":
        return f"{cardinal(digits[:2])} hundreds" if digits[1] != "0" else "two thousands"
    words = year(digits) if len(digits) == 4 else cardinal(digits)
    *head, last = words.split()
    return " ".join([*head, plural(last)])


def roman_number(m: Match) -> str | None:
    """Henry VIII, Chapter IV, World War II"""
    word, letters = m["w"], m["r"]
    value = roman(letters)
    if not value:
        return None
    ends = re.match(
        r"(?:'s|’s)?(?: (?:was|of|had|ruled|reigned|died|became|and)\b|[,.;:)!?]|$)", after(m, 12)
    )
    if word in _NUMBERED:
        if letters == "I" and not ends and word.islower():
            return None
        return f"{word} {cardinal(str(value))}"
    if word in _ORDINAL_NAMES:
        if len(letters) == 1 and letters in "I" and not ends:
            return None
        return f"{word} the {ordinal(str(value))}"
    if len(letters) > 1 and value <= 60:
        return f"{word} {cardinal(str(value))}"
    return None


def number(m: Match) -> str:
    """Any other number: by how it begins, its length, what stands around."""
    text = m["n"]
    sign = {"-": "minus ", "+": "plus "}.get(maybe(m, "neg"), "")
    if text.isdigit():
        if (len(text) > 1 and text[0] == "0") or len(text) >= 10:
            return sign + one_by_one(text)
        if _YEAR.fullmatch(text) and not sign and _is_year(text, m):
            return year(text)
    return sign + decimal(text)


def _is_year(text: str, m: Match) -> bool:
    tail = after(m, 14)
    if _COUNTS.match(tail):
        return False
    if text[:2] in ("18", "19", "20") and text != "2000":
        return True
    return bool(_ERA.match(tail) or _BEFORE_YEAR.search(before(m, 14)))
