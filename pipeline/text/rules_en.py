"""How English reads what is written in digits, signs and abbreviations: the families, in order. Pure.

Used by `pipeline.text.normalize` on a text's `signs.view`; what is said is in `readings_en`.
"""

from __future__ import annotations

import re

from pipeline.text import readings_en as say
from pipeline.text.abbreviations import ABBREVIATIONS, DAYS, MONTHS, STATES, day_name, expand
from pipeline.text.links import link_rules
from pipeline.text.numbers_en import cardinal, decimal, one_by_one, ordinal
from pipeline.text.rule import NUMBER, SCIENTIFIC, Rules, rule
from pipeline.text.signs import read_sign
from pipeline.text.units import EN_MONEY, EN_UNITS, alternatives, firsts

_N = NUMBER
_S = r"(?<![0-9])(?<![0-9][.,])"
_NS = r"(?<![0-9A-Za-z])(?<![0-9][.,])"
_SIGNED = r"[-+]?" + _N
_TO = r"(?:[-~–—]| [-–—~] )"
_END = r"(?![A-Za-z0-9])"
_CUR = alternatives({k: "" for k in EN_MONEY if not k.isalpha()})
_CODES = alternatives({k: "" for k in EN_MONEY if k.isalpha()})
_UNITS = alternatives(dict.fromkeys(EN_UNITS, ""))
_LONG_UNITS = alternatives({name: "" for name in EN_UNITS if len(name) > 1})
_PER = alternatives(dict.fromkeys([*EN_UNITS, *say.PER], ""))
_HALF = r"(?P<half>[AaPp]\.? ?[Mm]\b\.?)"
_SCALE = r"(?P<scale> (?:hundred|thousand|million|billion|trillion)\b|(?:bn|mn|[kKmMbBT])(?![A-Za-z0-9]))?"
_DEGREE = r"(?P<sign>℃|° ?C(?![A-Za-z])|℉|° ?F(?![A-Za-z])|°)"
_YEAR = r"(?P<y>1[0-9]{3}|20[0-9]{2})(?![0-9])"

_SIGNS = {
    "+": "plus", "=": "equals", "≠": "is not equal to", "≈": "approximately", "±": "plus or minus", "×": "times",
    "÷": "divided by", "√": "square root of", "∞": "infinity", "≤": "less than or equal to",
    "≥": "greater than or equal to", "<": "less than", ">": "greater than", "%": "percent", "℃": "degrees Celsius",
    "℉": "degrees Fahrenheit", "°": "degrees", "&": "and", "@": "at", "$": "dollars", "€": "euros", "£": "pounds",
    "¥": "yen", "№": "number", "→": "to", "§": "section", "¢": "cents", "∑": "sum of", "∴": "therefore",
}  # fmt: skip


def _sign(m: re.Match[str]) -> str | None:
    ch = m[0]
    if ch in _SIGNS:
        return f" {_SIGNS[ch]} "
    if ch in "*/\\|_^#~`{}":
        return " "
    return read_sign(ch)


EN = Rules(
    [
        *link_rules(chinese=False),
        rule(
            "d",
            r"(?<![^\n])(?P<n>[0-9]{1,3})(?:\)|\.(?![0-9]))[ \t]*(?=\S)",
            lambda m: cardinal(m["n"]) + ". ",
            then="[).]",
        ),
        rule("s", r"[(](?P<n>[0-9]{1,2})[)][ \t]+", lambda m: cardinal(m["n"]) + ", "),
        # dates and times
        rule(
            "d",
            _S + r"(?P<y>1[0-9]{3}|2[01][0-9]{2})(?P<s>[-/.])(?P<m>[01]?[0-9])(?P=s)(?P<d>[0-3]?[0-9])"
            r"(?![0-9]|[-/.][0-9])(?:T(?=[0-9]{2}:))?",
            say.iso_date,
            then="[-/.]",
        ),
        rule(
            "d",
            _S + r"(?P<a>[0-3]?[0-9])/(?P<b>[0-3]?[0-9])/(?P<y>[0-9]{4}|[0-9]{2})(?![0-9/])",
            say.slash_date,
            then="/",
        ),
        rule(
            "l",
            r"(?P<a>" + DAYS + r")\.?[-–—](?P<b>" + DAYS + r")\b\.?",
            lambda m: f"{day_name(m['a'])} to {day_name(m['b'])}",
        ),
        rule(
            "l",
            r"(?P<a>" + MONTHS + r")\.?[-–—](?P<b>" + MONTHS + r")\b\.?(?:,? " + _YEAR + r")?",
            say.months,
        ),
        rule(
            "l",
            r"(?P<mon>" + MONTHS + r")\.? (?P<d>[0-3]?[0-9])(?:st|nd|rd|th)?(?![0-9A-Za-z:.]*[0-9:])"
            r"(?:,? " + _YEAR + r")?",
            say.month_day,
        ),
        rule(
            "d",
            _NS + r"(?P<d>[0-3]?[0-9])(?:st|nd|rd|th)? (?P<mon>" + MONTHS + r")\b\.?(?:,? " + _YEAR + r")?",
            say.day_month,
            then="[ A-Za-z]",
        ),
        rule("l", r"(?P<mon>" + MONTHS + r")\.?,? " + _YEAR, say.month_year),
        rule(
            "l",
            r"(?P<mon>" + MONTHS + r")\.? ['’](?P<n>[0-9]{2})(?![0-9])",
            lambda m: f"{say.month_name(m['mon'])} {cardinal(m['n'])}",
        ),
        rule(
            "d",
            _NS + r"(?P<d>[0-3]?[0-9])-(?P<mon>" + MONTHS + r")-(?P<y>(?:1[0-9]|20)[0-9]{2})(?![0-9-])",
            say.day_month,
            then="-",
        ),
        rule(
            "d",
            _NS + r"(?P<d>[0-3]?[0-9])\.(?P<m>[01]?[0-9])\.(?P<y>(?:19|20)[0-9]{2})(?![0-9]|\.[0-9])",
            say.iso_date,
            then="[.]",
        ),
        rule(
            "d",
            _S
            + r"(?<!:)(?P<h>[0-9]{1,2}):(?P<min>[0-5][0-9]) ?(?P<half>[AaPp]\.?[Mm]\b\.?)?"
            + _TO
            + r"(?P<h2>[0-9]{1,2}):(?P<min2>[0-5][0-9])(?![0-9:])(?: ?(?P<half2>[AaPp]\.?[Mm]\b))?",
            say.time_range,
            then=":",
        ),
        rule("d", _NS + r"(?P<h>[0-9]{1,2})\.(?P<min>[0-5][0-9]) ?" + _HALF + _END, say.time, then="[.]"),
        rule("s", r"[-–—](?=(?:noon|midnight|midday)\b)", " to "),
        rule(
            "d",
            _NS
            + r"(?P<h>[0-9]{1,2})(?::(?P<min>[0-5][0-9]))? ?(?P<half>[AaPp]\.? ?[Mm]\b\.?)?"
            + _TO
            + r"(?P<h2>[0-9]{1,2})(?::(?P<min2>[0-5][0-9]))? ?(?P<half2>[AaPp]\.? ?[Mm]\b\.?)"
            + _END,
            say.half_range,
            then="[: A-Za-z~–—-]",
        ),
        rule(
            "d",
            _S + r"(?<!:)(?P<min>[0-9]{1,2}):(?P<sec>[0-5][0-9]\.[0-9]{1,3})(?![0-9:])" + _END,
            lambda m: f"{cardinal(m['min'])} minutes {decimal(m['sec'].lstrip('0'))} seconds",
            then=":",
        ),
        rule(
            "d",
            _S + r"(?<!:)(?P<h>[0-9]{1,2}):(?P<min>[0-5][0-9])(?::(?P<sec>[0-5][0-9])(?:\.[0-9]{1,6})?)?"
            r"(?![0-9:])(?: ?" + _HALF + r")?Z?" + _END,
            say.time,
            then=":",
        ),
        rule("d", _NS + r"(?P<h>[0-9]{1,2}) ?" + _HALF + _END, say.hour_half, then="[ A-Za-z]"),
        rule("d", _S + r"(?<!:)" + _N + r"(?: ?: ?" + _N + r"){1,3}(?!:)", say.ratio, past=":"),
        rule(
            "ds",
            r"(?:(?<![0-9A-Za-z$.,])(?P<n>(?:1[0-9]|20)[0-9]0)|['’](?P<a>[0-9]0)|(?<=[Tt]he )(?P<b>[2-9]0))"
            r"['’]?s\b(?P<to>[-–—](?=['’]?[0-9]{2,4}s\b))?",
            say.decade,
            then="['’A-Za-z]",
        ),
        # telephone and other numbers that name something
        rule(
            "s",
            r"(?<![0-9A-Za-z])\+[0-9]{1,3}[- .]?(?:\([0-9]{1,4}\)|[0-9]{1,4})(?:[- .]?[0-9]{2,8}){1,4}"
            r"(?![0-9])(?: ?(?:x|ext\.?) ?[0-9]{1,6})?",
            say.phone,
        ),
        rule(
            "ds",
            r"(?<![0-9A-Za-z-])(?:1[- .])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[- .])[0-9]{3}[- .][0-9]{4}(?![0-9-])"
            r"(?:,? ?(?:x|ext\.?) ?[0-9]{1,6})?",
            say.phone,
            then="[- .]",
        ),
        rule("d", r"(?<![0-9A-Za-z-])[2-9][0-9]{2}-[0-9]{4}(?![0-9-])", say.phone, then="-"),
        rule("d", _NS + r"[0-9]{3}-[0-9]{2}-[0-9]{4}(?![0-9-])", say.phone, then="-"),
        rule("d", _NS + r"[0-9]{4}(?:[ -][0-9]{4}){2,4}(?![0-9])", say.phone, then="[- ]"),
        rule(
            "d",
            _NS + r"1-8(?P<n>00|88|77|66|55|44|33)-(?P<w>[A-Z]{2}[A-Z-]{2,9})(?![A-Za-z0-9])",
            lambda m: "one, eight " + ("hundred" if m["n"] == "00" else one_by_one(m["n"])) + f", {m['w']}",
            then="-",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]{1,3}(?: [0-9]{3}){2,4})(?![0-9])",
            lambda m: cardinal(m["n"].replace(" ", "")),
            then=" ",
        ),
        rule("d", _NS + r"(?P<n>480|720|1080|1440|2160)(?P<l>[pi])" + _END, say.lines, then="[pi]"),
        rule(
            "d",
            _NS + r"802\.(?P<n>[0-9]{1,2})(?![0-9]|\.[0-9])",
            lambda m: "eight oh two point " + cardinal(m["n"]),
            then="[.]",
        ),
        rule("d", _NS + say.AFTER_CALL + r"[0-9]{3,6}(?![0-9%]|[-.,][0-9])", say.short_phone, then="[^%]?"),
        rule(
            "dl",
            r"(?<![0-9A-Za-z])"
            + say.AFTER_NAME
            + r"(?=[A-Za-z-]{0,6}[0-9])[0-9A-Za-z]+(?:-[0-9A-Za-z]+){0,6}(?![.%][0-9]|%)",
            say.named,
        ),
        rule(
            "l",
            r"(?<![A-Za-z])(?P<s>" + STATES + r") (?P<n>[0-9]{5}(?:-[0-9]{4})?)(?![0-9-])",
            lambda m: m["s"] + " " + ", ".join(map(one_by_one, m["n"].split("-"))),
        ),
        # money
        rule(
            "sl",
            r"(?<![A-Za-z])(?P<neg>-)?(?P<cur>"
            + _CUR
            + r") ?(?P<neg2>-)?(?P<n>"
            + _N
            + r"|\.[0-9]{1,2}(?![0-9]))(?:"
            + _TO
            + r"(?:"
            + _CUR
            + r")?(?P<n2>"
            + _N
            + r"))?"
            + _SCALE,
            say.money,
        ),
        rule("l", r"(?P<cur>" + _CODES + r") ?(?P<n>" + _N + r")" + _SCALE, say.money),
        rule(
            "d",
            _NS + r"(?P<n>" + _N + r") ?(?P<cur>€|£|" + _CODES + r")" + _END,
            say.money_after,
            past="[€£A-Za-z]",
        ),
        rule("d", _NS + r"(?P<n>[0-9]{1,3})¢", lambda m: cardinal(m["n"]) + " cents", then="¢"),
        # percent, temperature, fractions
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>"
            + _SIGNED
            + r") ?%?"
            + _TO
            + r"(?P<n2>"
            + _SIGNED
            + r") ?(?P<sign>[%‰])",
            say.percent,
            past="[ %~–—-]",
        ),
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>" + _SIGNED + r") ?(?P<sign>[%‰])",
            say.percent,
            past="[%‰]",
        ),
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>"
            + _SIGNED
            + r") ?(?:℃|°C?)?(?:"
            + _TO
            + r"| to )(?P<n2>"
            + _SIGNED
            + r") ?"
            + _DEGREE,
            say.degrees,
            past="[ t℃°~–—-]",
        ),
        rule(
            "d",
            _NS
            + r"(?P<d>[0-9]{1,3})° ?(?P<min>[0-5]?[0-9])['′’] ?(?:(?P<sec>[0-5]?[0-9](?:\.[0-9]+)?)[\"″”] ?)?"
            r"(?P<dir>[NSEW](?![A-Za-z]))?",
            say.arc,
            then="°",
        ),
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>"
            + _SIGNED
            + r") ?"
            + _DEGREE
            + r"(?: ?(?P<dir>[NSEW])(?![A-Za-z]))?",
            say.degrees,
            past="[℃°℉]",
        ),
        rule(
            "d",
            _NS + r"(?<!/)(?:(?P<w>[0-9]{1,3})[ -])?(?P<a>[0-9]{1,4})/(?P<b>[0-9]{1,4})(?![0-9/]|\.[0-9])"
            r"(?: (?P<unit>" + _LONG_UNITS + r")" + _END + r")?",
            say.fraction,
            then="[ /-]",
        ),
        rule("ds", r"(?P<w>[0-9]{1,4})? ?(?P<f>[¼-¾⅐-⅞])", say.fraction_mark, then="[ ¼-¾⅐-⅞]"),
        # quantities
        rule(
            "ds",
            SCIENTIFIC,
            lambda m: f"{decimal(m['n'])} times ten to the power of {decimal(m['exp'].lstrip('+'))}",
            past="[eE]",
        ),
        rule(
            "d",
            _NS + r"(?P<f>[0-9]) ?ft\.? (?P<i>[0-9]{1,2}) ?in\b\.?",
            lambda m: f"{cardinal(m['f'])} feet {cardinal(m['i'])} inches",
            then="[ f]",
        ),
        rule(
            "d",
            _NS
            + r"(?P<all>"
            + _N
            + r"(?: ?[×xX*] ?"
            + _N
            + r"){1,3})(?: ?(?P<unit>"
            + _UNITS
            + r")"
            + _END
            + r")?"
            + r"(?![A-Za-z0-9^²³¹⁰⁴-⁹])",
            say.dimensions,
            past="[×*A-Za-z]",
        ),
        rule(
            "ds",
            r"(?<![0-9A-Za-z])(?<![0-9][.,])(?P<neg>[-+])?(?P<n>"
            + _N
            + r")(?:"
            + _TO
            + r"(?P<n2>"
            + _N
            + r"))?[ -]?(?P<unit>"
            + _UNITS
            + r")"
            + _END
            + r"(?!['’])(?:\.(?= [a-z]))?",
            say.unit,
            past="[" + firsts(EN_UNITS) + "A-Za-z~–—-]",
        ),
        rule("d", _NS + r"(?P<n>" + _N + r")[\"″](?= [a-z])", say.inches, past='["″]'),
        rule("d", _NS + r"(?P<f>[0-9])['′](?: ?(?P<i>[0-9]{1,2})[\"″])", say.feet_inches, then="['′]"),
        rule("d", _S + r"(?P<n>[0-9]{1,4}(?:\.[0-9]{1,5}){2,4})(?![0-9])", say.version, then="[.]"),
        rule(
            "l",
            r"(?P<v>[vV]|[Vv]ersion (?=[0-9.]+\.[0-9]))(?P<n>[0-9]{1,4}(?:\.[0-9]{1,5}){1,4})(?![0-9])",
            say.version,
        ),
        rule(
            "dl",
            r"(?<![0-9A-Za-z])(?P<base>[A-Za-z]{1,3}|[0-9]+(?:\.[0-9]+)?)(?:(?P<sup>[⁰¹²³⁴-⁹⁺⁻ⁿ]+)"
            r"|(?:\^|\*\*)(?P<exp>-?[0-9]{1,4}|n))(?: ?(?P<unit>"
            + _UNITS
            + r")"
            + _END
            + r")?(?P<op> ?[-–−] ?(?=[0-9A-Za-z]))?",
            say.power,
            past=r"[\^*⁰¹²³⁴-⁹⁺⁻ⁿ]",
        ),
        rule("d", _NS + r"[0-9]{1,8}(?:-[0-9]{1,8}){2,6}(?![0-9])", lambda m: one_by_one(m[0]), then="-"),
        rule(
            "d",
            _NS + r"(?P<n>" + _N + r")(?P<sep>" + _TO + r")(?P<n2>" + _N + r")(?![:/]|-[0-9])",
            say.span,
            past="[~–—-]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]{1,3}(?:,[0-9]{3})*)(?:st|nd|rd|th)\b(?P<to>[-–](?=[0-9]+(?:st|nd|rd|th)\b))?",
            lambda m: ordinal(m["n"].replace(",", "")) + (" to " if m["to"] else ""),
            then="[,A-Za-z]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]+)[xX](?![A-Za-z0-9]| ?[-+=*/^)])",
            lambda m: cardinal(m["n"]) + " times",
            then="[A-Za-z]",
        ),
        rule("d", _NS + r"(?P<n>" + _N + r")k\b", lambda m: decimal(m["n"]) + " thousand", past="[A-Za-z]"),
        rule("d", _NS + r"(?P<n>" + _N + r")M\b", lambda m: decimal(m["n"]) + " million", past="[A-Za-z]"),
        rule("l", r"[Mm]id-(?P<n>[0-9]{4})s\b", lambda m: "mid " + say.decade_words(m["n"])),
        rule("d", _NS + r"(?P<n>[0-9]{1,4})-(?=[a-z])", lambda m: say.number(m) + " ", then="-"),
        rule(
            "l",
            r"(?P<l>[A-Za-z]{1,8}[0-9]{1,2})-(?P<n>[0-9]{3,6})(?![0-9])",
            lambda m: say.spell_digits(m[0]),
        ),
        rule("l", r"(?P<l>[A-Za-z]{1,12})-?(?P<n>[0-9]{1,6}(?:\.[0-9]{1,3})?)(?![0-9]|\.[0-9])", say.model),
        rule("d", _NS + r"(?P<n>[0-9]+)(?=[A-Za-z])", lambda m: say.number(m) + " ", then="[A-Za-z]"),
        # words
        rule(
            "l",
            r"(?P<w>[A-Z][a-z]+|chapter|part|section|volume|book|act|scene|type|phase|class|level|stage|grade"
            r"|figure|table|step) (?P<r>[IVXLC]{1,7})" + _END,
            say.roman_number,
        ),
        rule("l", ABBREVIATIONS, expand),
        rule("l", r"[xX](?= [0-9])", lambda m: "times" if re.search(r"[0-9] $", say.before(m)) else None),
        rule("l", r"w/(?:o(?![a-z]))? ?(?=[A-Za-z])", lambda m: "without " if "o" in m[0] else "with "),
        rule("s", r"(?<=[CF])#", " sharp "),
        rule("s", r"#(?P<n>[0-9]{1,6})(?![0-9])", lambda m: "number " + cardinal(m["n"])),
        rule("s", r"/(?P<n>100|1000|1,000)? ?(?P<unit>" + _PER + r")" + _END, say.per),
        rule(
            "s",
            r"/(?= ?[0-9(].{0,20}=)",
            lambda m: " divided by " if re.search(r"[0-9)] $", say.before(m)) else None,
        ),
        rule("s", r"[~≈](?=[0-9$])", "about "),
        rule("s", r"[-=]>|→|⇒", " to "),
        rule(
            "ds",
            r"(?<![0-9A-Za-z])(?<![0-9][.,])(?P<neg>(?<![0-9A-Za-z)])[-+])?(?P<n>" + _N + r")",
            say.number,
        ),
        rule("d", r"(?P<n>" + _N + r")", say.number),
        rule(
            "s",
            r"\.(?P<n>[0-9]+)(?![0-9])",
            lambda m: None if re.search(r"[0-9A-Za-z.]$", say.before(m)) else "point " + one_by_one(m["n"]),
        ),
        # signs
        rule("s", r"!=", " is not equal to "),
        rule("s", r">=", " greater than or equal to "),
        rule("s", r"<=", " less than or equal to "),
        rule("s", r"==", " equals "),
        rule("s", r"[²³¹⁰⁴-⁹⁺⁻ⁿ]+", say.superscripts),
        rule("s", r"[₀-₉]+", say.subscripts),
        rule("s", r"[①-⓿❶-➓Ⅰ-ⅿ㈠-㈩⑴-⒛]", say.circled),
        rule("s", r"[^\w\s]|_", _sign),
    ]
)
