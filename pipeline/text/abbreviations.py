"""English abbreviations that are read as the word they stand for, or letter by letter. Pure.

Those with two meanings are told apart by what follows: `St. Mary` is Saint, `Main St.` is Street.
"""

from __future__ import annotations

import re

MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December|Jan|Feb|Mar|Apr|Jun|Jul|Aug"
    "|Sept|Sep|Oct|Nov|Dec"
)

DAYS = "Mon|Tues|Tue|Wed|Thurs|Thur|Thu|Fri|Sat|Sun"
STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DC|DE|FL|GA|HI|IA|ID|IL|IN|KS|KY|LA|MA|MD|ME|MI|MN|MO|MS|MT|NC|ND|NE|NH|NJ|NM|NV|NY|OH|OK|OR"
    "|PA|PR|RI|SC|SD|TN|TX|UT|VA|VT|WA|WI|WV|WY"
)
"""Postal; a ZIP code follows."""

_TITLES = {
    "Dr": "Doctor", "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Gen": "General",
    "Sgt": "Sergeant", "Capt": "Captain", "Lt": "Lieutenant", "Col": "Colonel", "Maj": "Major", "Cmdr": "Commander",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Rev": "Reverend", "Hon": "Honorable",
    "Pres": "President", "St": "Saint", "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
"""Before a name in capitals."""

_STREETS = {"St": "Street", "Dr": "Drive", "Rd": "Road", "Ave": "Avenue", "Blvd": "Boulevard", "Ln": "Lane",
            "Hwy": "Highway", "Pkwy": "Parkway", "Sq": "Square", "Ct": "Court"}  # fmt: skip
"""After a name."""

_WORDS = {
    "Mr": "Mister", "Mrs": "Missus", "Prof": "Professor",
    "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company",
    "Bros": "Brothers", "vs": "versus", "etc": "et cetera", "approx": "approximately", "Dept": "Department",
    "dept": "department", "Assn": "Association", "Univ": "University", "govt": "government", "Govt": "Government",
    "apt": "apartment", "Apt": "Apartment", "est": "estimated", "misc": "miscellaneous", "min": "minute",
    "max": "maximum", "avg": "average", "temp": "temperature", "tel": "telephone", "Tel": "Telephone",
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Thur": "Thursday",
    "Thurs": "Thursday", "Fri": "Friday", "Jan": "January", "Feb": "February", "Apr": "April", "Aug": "August",
    "Sept": "September", "Sep": "September", "Oct": "October", "Nov": "November", "Dec": "December",
    "hr": "hour", "hrs": "hours", "mins": "minutes", "secs": "seconds", "yrs": "years",
}  # fmt: skip
"""With a dot."""

_NUMBERED = {
    "No": "number", "Nos": "numbers", "no": "number", "Fig": "figure", "fig": "figure", "Figs": "figures",
    "figs": "figures", "p": "page", "pp": "pages", "pg": "page", "vol": "volume", "Vol": "Volume", "ch": "chapter",
    "Ch": "Chapter", "Chap": "Chapter", "sec": "section", "Sec": "Section", "eq": "equation", "Eq": "Equation",
    "ed": "edition", "ext": "extension", "Art": "Article", "art": "article", "Rm": "room", "Bldg": "building",
    "Apt": "apartment", "apt": "apartment", "Ste": "suite", "Lv": "level", "Lvl": "level", "Rev": "revision",
}  # fmt: skip
"""Only before a number."""

_DOTTED = {
    "e.g": "for example", "i.e": "that is", "a.m": "A M", "p.m": "P M", "a.k.a": "also known as", "c.f": "compare",
    "Ph.D": "P H D", "vs": "versus", "et al": "and others",
}  # fmt: skip

_DOTS = re.compile(r"\.")


def day_name(short: str) -> str:
    """`Tues`: Tuesday"""
    return {"Sat": "Saturday", "Sun": "Sunday"}.get(short) or _WORDS[short]


def _alternatives(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: -len(word)))


ABBREVIATIONS = (
    r"(?:(?P<dotted>" + _alternatives(_DOTTED) + r")\.(?![A-Za-z0-9])"
    r"|(?P<initials>(?:[A-Z]\.){2,6})(?![A-Za-z])"
    r"|(?P<numbered>" + _alternatives(_NUMBERED) + r")\. ?(?=[0-9#IVX])"
    r"|(?P<title>" + _alternatives(_TITLES) + r")\.? (?=[A-Z][a-z])"
    r"|(?P<street>" + _alternatives(_STREETS) + r")\.?(?![A-Za-z0-9])"
    r"|(?P<word>" + _alternatives(_WORDS) + r")\.(?![A-Za-z0-9])"
    r"|(?P<bare>vs)(?= ))"
)


def expand(m: re.Match[str]) -> str | None:
    """The words for the abbreviation that matched; None where it is none here."""
    lead = m.string[max(0, m.start() - 24) : m.start()]
    if m["dotted"]:
        return _DOTTED[m["dotted"]]
    if m["initials"]:
        return " ".join(_DOTS.split(m["initials"])).strip()
    if m["numbered"]:
        return _NUMBERED[m["numbered"]] + " "
    if m["title"]:
        dotted = "." in m[0]
        if (
            m["title"] in _STREETS
            and re.search(r"[A-Z][a-z]+ $", lead)
            and re.search(r"[0-9]", lead)
            and not dotted
        ):
            return _STREETS[m["title"]] + " "
        if not dotted and m["title"] not in ("Dr", "Mr", "Mrs", "Ms", "Prof", "St", "Mt"):
            return None
        return _TITLES[m["title"]] + " "
    if m["street"]:
        if not re.search(r"(?:[A-Z][A-Za-z]+|[0-9](?:st|nd|rd|th)) $", lead):
            return None
        if "." not in m[0] and not re.search(r"[0-9]", lead):
            return None
        return _STREETS[m["street"]]
    if m["bare"]:
        return "versus"
    return _WORDS[m["word"]]
