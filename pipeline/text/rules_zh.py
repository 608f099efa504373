"""How Chinese reads what is written in digits and signs: the families, in order of precedence. Pure.

Used by `pipeline.text.normalize` on a text's `signs.view`; what is said is in `readings_zh`. Families: links,
list numbers, dates, times, ratios and scores, telephone and named numbers, money, percent, temperature,
fractions, dimensions, units, ranges, powers, versions, models, signs.
"""

from __future__ import annotations

import re

from pipeline.text import readings_zh as say
from pipeline.text.links import link_rules
from pipeline.text.numbers_zh import cardinal, decimal, one_by_one
from pipeline.text.rule import NUMBER, SCIENTIFIC, Rules, rule
from pipeline.text.signs import read_sign
from pipeline.text.units import ZH_MONEY, ZH_UNITS, alternatives, firsts

_N = NUMBER
_S = r"(?<![0-9])(?<![0-9][.,])"  # a number begins here
_NS = r"(?<![0-9A-Za-z])(?<![0-9][.,])"  # .. and no letter stands before it
_SIGNED = r"[-+]?" + _N
_TO = r" ?[-~–—至到] ?"
_NOT_LETTER = r"(?![A-Za-z0-9])"
_CUR = alternatives({k: v for k, v in ZH_MONEY.items() if not k.isalpha()})
_CODES = alternatives({k: v for k, v in ZH_MONEY.items() if k.isalpha()})
_UNITS = alternatives(ZH_UNITS)
_SCALE = r"[十百千万亿]{0,3}"
_EXT = r"(?: ?(?:转|-|分机) ?[0-9]{1,6}(?![0-9]))?"
_DEGREE = r"(?P<sign>℃|° ?C(?![A-Za-z])|℉|° ?F(?![A-Za-z])|°)"
_EVENTS = "事件|事变|大?地震|晚会|起义|惨案|运动|大促|购物节|年中|狂欢|恐怖袭击|国际消费者|表白|购物"
_EVENT = '[”"' + firsts(_EVENTS.replace("?", "").split("|")) + "地]"
_TOS = "~–—至到-"
_SCALES = "十百千万亿"
_DATE = r"(?P<y>1[0-9]{3}|2[01][0-9]{2})"


_SIGNS = {
    "+": "加", "=": "等于", "≠": "不等于", "≈": "约等于", "≡": "恒等于", "±": "正负", "×": "乘", "÷": "除以", "√": "根号",
    "∞": "无穷大", "≤": "小于等于", "≥": "大于等于", "≦": "小于等于", "≧": "大于等于", "<": "小于", ">": "大于", "∑": "求和",
    "%": "百分号", "‰": "千分号", "℃": "摄氏度", "℉": "华氏度", "°": "度", "&": "和", "@": "艾特", "$": "美元",
    "€": "欧元", "£": "英镑", "¥": "元", "№": "第", "→": "到", "⇒": "推出", "∵": "因为", "∴": "所以", "∈": "属于",
    "∪": "并", "∩": "交", "∠": "角", "⊥": "垂直于", "∥": "平行于", "△": "三角形", "Ω": "欧姆",
}  # fmt: skip


def _sign(m: re.Match[str]) -> str | None:
    ch = m[0]
    if ch in _SIGNS:
        return _SIGNS[ch]
    if ch in "*/\\|_^#~`{}":
        return " "
    return read_sign(ch)


ZH = Rules(
    [
        *link_rules(chinese=True),
        rule(
            "d",
            r"(?<![^\n])(?P<n>[0-9]{1,3})(?:[、)]|\.(?![0-9]))[ \t]*(?=\S)",
            lambda m: cardinal(m["n"]) + "，",
            then="[、).]",
        ),
        rule("s", r"[(](?P<n>[0-9]{1,2})[)][ \t]*", lambda m: cardinal(m["n"]) + "，"),
        # dates and times
        rule(
            "d",
            _S + _DATE + r"(?P<s>[-/.])(?P<m>[01]?[0-9])(?P=s)(?P<d>[0-3]?[0-9])(?:" + _TO + r"|~)"
            r"(?:(?P<y2>1[0-9]{3}|2[01][0-9]{2})(?P=s))?(?P<m2>[01]?[0-9])(?P=s)(?P<d2>[0-3]?[0-9])(?![0-9]|[-/.][0-9])",
            say.date_range,
            then="[-/.]",
        ),
        rule(
            "d",
            _S + _DATE + r"(?P<s>[-/.])(?P<m>[01]?[0-9])(?P=s)(?P<d>[0-3]?[0-9])(?![0-9]|[-/.][0-9])"
            r"(?:T(?=[0-9]{2}:))?",
            say.date,
            then="[-/.]",
        ),
        rule(
            "d",
            _S + r"(?P<a>[0-3]?[0-9])/(?P<b>[0-3]?[0-9])/(?P<y>(?:19|20)[0-9]{2})(?![0-9/])",
            say.slash_date,
            then="/",
        ),
        rule(
            "d",
            _NS + r"(?P<y>(?:19|20)[0-9]{2}) ?(?P<k>[QH])(?P<q>[1-4])" + _NOT_LETTER,
            lambda m: say.quarter(m) if m["k"] == "Q" or m["q"] in "12" else None,
            then="[ QH]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>480|720|1080|1440|2160)(?P<l>[pPiI])" + _NOT_LETTER,
            lambda m: one_by_one(m["n"]) + m["l"],
            then="[pPiI]",
        ),
        rule(
            "d",
            _NS + r"802\.(?P<n>[0-9]{1,2})(?![0-9]|\.[0-9])",
            lambda m: "八零二点" + one_by_one(m["n"]),
            then="[.]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]{1,3}(?: [0-9]{3}){2,4})(?![0-9])",
            lambda m: decimal(m["n"].replace(" ", "")),
            then=" ",
        ),
        rule(
            "d",
            _NS + r"(?P<n>(?:1[0-9]|20)[0-9]0)['’]?s" + _NOT_LETTER,
            lambda m: one_by_one(m["n"]) + "年代",
            then="['’s]",
        ),
        rule(
            "d",
            _S + r"(?P<y>(?:19|20)[0-9]{2})[-/](?P<m>0[1-9]|1[0-2])(?![0-9./-])(?!年|赛季|学年|财年|元)",
            say.year_month,
            then="[-/]",
        ),
        rule(
            "d",
            _S + r"(?P<y>(?:19|20)[0-9]{2})(?P<m>0[1-9]|1[0-2])(?P<d>0[1-9]|[12][0-9]|3[01])"
            r"(?![0-9.,]|年|元|块|个|人)",
            lambda m: say.named(m) or say.date(m),
        ),
        rule(
            "d",
            _S
            + r"(?<!:)(?P<h>[0-9]{1,2}):(?P<min>[0-5][0-9])(?: ?(?P<half>[AaPp])\.?[Mm]\.?(?![A-Za-z]))?"
            + _TO
            + r"(?P<h2>[0-9]{1,2}):(?P<min2>[0-5][0-9])(?![0-9:])(?: ?(?P<half2>[AaPp])\.?[Mm]\.?(?![A-Za-z]))?",
            say.time_range,
            then=":",
        ),
        rule(
            "d",
            _S + r"(?<!:)(?P<h>[0-9]{1,2}):(?P<min>[0-5][0-9])(?::(?P<sec>[0-5][0-9])(?:\.[0-9]{1,6})?)?"
            r"(?![0-9:])(?: ?(?P<half>[AaPp]\.?[Mm]\.?)(?![A-Za-z]))?Z?" + _NOT_LETTER,
            say.time,
            then=":",
        ),
        rule(
            "d",
            _S + r"(?<!:)(?P<min>[0-9]{1,2}):(?P<sec>[0-5][0-9]\.[0-9]{1,3})(?![0-9:])" + _NOT_LETTER,
            lambda m: f"{cardinal(m['min'])}分{decimal(m['sec'].lstrip('0'))}秒",
            then=":",
        ),
        rule(
            "d",
            _S + r"(?P<h>[0-9]{1,2}) ?(?P<half>[AaPp]\.?[Mm])\.?" + _NOT_LETTER,
            say.hour_half,
            then="[ A-Za-z]",
        ),
        rule("d", _S + r"(?<!:)" + _N + r"(?: ?: ?" + _N + r"){1,3}(?!:)", say.ratio, past=":"),
        # numbers that name something
        rule(
            "s",
            r"(?<![0-9A-Za-z])\+[0-9]{1,3}[- ]?(?:\([0-9]{1,4}\)|[0-9]{1,4})(?:[- ]?[0-9]{2,8}){1,4}"
            r"(?![0-9])",
            say.grouped_phone,
        ),
        rule("d", _NS + r"(?<!-)1[3-9][0-9]{9}(?![0-9]|[-.][0-9])", say.phone),
        rule(
            "d",
            _NS + r"(?<!-)1[3-9][0-9](?P<s>[- ])[0-9]{4}(?P=s)[0-9]{4}(?![0-9]|[-.][0-9])",
            say.grouped_phone,
            then="[- ]",
        ),
        rule(
            "d",
            _NS + r"(?<!-)0[0-9]{2,3}[- ][0-9]{3,4}[- ]?[0-9]{4}(?![0-9])" + _EXT,
            say.grouped_phone,
            then="[- ]",
        ),
        rule("s", r"[(]0[0-9]{2,3}[)] ?[0-9]{3,4}[- ]?[0-9]{4}(?![0-9])" + _EXT, say.grouped_phone),
        rule("d", _NS + r"(?<!-)[48]00[- ]?[0-9]{3}[- ]?[0-9]{4}(?![0-9])" + _EXT, say.grouped_phone),
        rule(
            "d",
            _NS + r"(?<!-)[0-9]{3,4}-[0-9]{4}(?![0-9-]|[年元])(?: ?转 ?[0-9]{1,6})?",
            lambda m: (
                say.grouped_phone(m)
                if re.search(r"(?:电话|热线|拨打?|打|致电|号码)(?:[是为:]| )*$", say.before(m))
                else None
            ),
            then="-",
        ),
        rule("d", _NS + say.AFTER_EXTENSION + r"[0-9]{2,6}(?![0-9.])", say.extension, then="[^.]?"),
        rule(
            "d",
            _NS + "(?:" + say.AFTER_CALL + "|" + say.SHORT + ")" + r"[0-9]{3,8}(?![0-9%]|[-~.,][0-9])",
            say.short_phone,
            then="[^%]?",
        ),
        rule(
            "dl",
            r"(?<![0-9A-Za-z])"
            + say.AFTER_NAME
            + r"(?=[A-Za-z_-]{0,20}[0-9])[0-9A-Za-z]+(?:[-_][0-9A-Za-z]+){0,6}(?![.%][0-9]|%)",
            say.named,
        ),
        rule(
            "l",
            r"(?<=[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼])(?P<l>[A-Z])[·• ]?"
            r"(?=[A-Z0-9]{0,5}[0-9])(?P<n>[A-Z0-9]{5,6})" + _NOT_LETTER,
            lambda m: m["l"] + say.spell_digits(m["n"]),
        ),
        # days that became names: 9·11, 3.15晚会, 618
        rule("d", _NS + r"[0-9]{1,2}·[0-9]{1,2}(?![0-9])", lambda m: one_by_one(m[0]), then="·"),
        rule(
            "d",
            _NS + r"[0-9]{1,2}\.[0-9]{1,2}(?=[”\"]?(?:" + _EVENTS + "))",
            lambda m: one_by_one(m[0]),
            past=_EVENT,
        ),
        rule("d", _NS + r"[0-9]{2,3}(?=[”\"]?(?:" + _EVENTS + "))", lambda m: one_by_one(m[0]), then=_EVENT),
        rule("d", _NS + r"[0-9]{17}[0-9Xx]" + _NOT_LETTER, lambda m: say.spell_digits(m[0])),
        rule(
            "d",
            _NS + r"[0-9]{4}(?:[ -][0-9]{4}){2,4}(?![0-9])",
            lambda m: say.grouped_phone(m).replace("幺", "一"),
            then="[- ]",
        ),
        # money
        rule(
            "sl",
            r"(?<![A-Za-z])(?P<neg>-)?(?P<cur>"
            + _CUR
            + r") ?(?P<neg2>-)?(?P<n>"
            + _N
            + r")(?P<scale>(?:bn|[kKmMbB])(?![A-Za-z0-9])|"
            + _SCALE
            + r")(?:[-~–—至到](?:"
            + _CUR
            + r")?(?P<n2>"
            + _N
            + r")(?P<scale2>"
            + _SCALE
            + r"))?"
            r"(?:元|块钱|美元|欧元|英镑)?",
            say.money,
        ),
        rule(
            "l",
            r"(?P<cur>"
            + _CODES
            + r") ?(?P<n>"
            + _N
            + r")(?P<scale>"
            + _SCALE
            + r")(?:[-~](?P<n2>"
            + _N
            + r")(?P<scale2>"
            + _SCALE
            + r"))?元?",
            say.money,
        ),
        rule("d", _NS + r"[0-9]{1,8}(?:-[0-9]{1,8}){2,6}(?![0-9])", lambda m: one_by_one(m[0]), then="-"),
        rule(
            "d",
            _NS
            + r"(?P<n>"
            + _N
            + r")(?P<scale>"
            + _SCALE
            + r") ?(?P<cur>"
            + _CUR
            + "|"
            + _CODES
            + r")"
            + r"(?![A-Za-z0-9$])",
            say.money_after,
            past="[" + _SCALES + firsts(ZH_MONEY) + "A-Za-z" + "]",
        ),
        # percent, temperature, fractions
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>"
            + _SIGNED
            + r") ?[%‰]?"
            + _TO
            + r"(?P<n2>"
            + _SIGNED
            + r") ?(?P<sign>[%‰])",
            say.percent,
            past="[ %‰" + _TOS + "]",
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
            + r") ?(?:℃|°C?)?"
            + _TO
            + r"(?P<n2>"
            + _SIGNED
            + r") ?"
            + _DEGREE,
            say.degrees,
            past="[ ℃°" + _TOS + "]",
        ),
        rule(
            "ds",
            r"(?<![0-9])(?<![0-9][.,-])(?P<n>" + _SIGNED + r") ?" + _DEGREE,
            say.degrees,
            past="[℃°℉]",
        ),
        rule(
            "d",
            _NS + r"(?<!/)(?:(?P<w>[0-9]{1,3}) )?(?P<a>[0-9]{1,4})/(?P<b>[0-9]{1,9})(?![0-9/]|\.[0-9])",
            say.fraction,
            then="[ /]",
        ),
        rule("ds", r"(?P<w>[0-9]{1,4})? ?(?P<f>[¼-¾⅐-⅞])", say.fraction_mark, then="[ ¼-¾⅐-⅞]"),
        # quantities
        rule(
            "ds",
            SCIENTIFIC,
            lambda m: f"{decimal(m['n'])}乘以十的{decimal(m['exp'].lstrip('+'))}次方",
            past="[eE]",
        ),
        rule("s", r"/(?P<n>100|1000) ?(?P<unit>" + _UNITS + r")" + _NOT_LETTER, say.per),
        rule(
            "d",
            _NS
            + r"(?P<all>"
            + _N
            + r"(?: ?[×xX*✕] ?"
            + _N
            + r"){1,3}) ?(?P<unit>"
            + _UNITS
            + r")?"
            + r"(?![A-Za-z0-9^²³¹⁰⁴-⁹])",
            say.dimensions,
            past="[×*✕A-Za-z]",
        ),
        rule(
            "ds",
            r"(?<![0-9A-Za-z])(?<![0-9][.,])(?P<neg>[-+])?(?P<n>"
            + _N
            + r")(?:"
            + _TO
            + r"(?P<n2>"
            + _N
            + r"))? ?(?P<unit>"
            + _UNITS
            + r")"
            + _NOT_LETTER,
            say.unit,
            past="[" + firsts(ZH_UNITS) + "A-Za-z" + _TOS + "]",
        ),
        rule("d", _S + r"(?P<n>[0-9]{1,4}(?:\.[0-9]{1,5}){2,4})(?![0-9])", say.version, then="[.]"),
        rule("l", r"(?P<v>[vV])(?P<n>[0-9]{1,4}(?:\.[0-9]{1,5}){1,4})(?![0-9])", say.version),
        rule(
            "dl",
            r"(?<![0-9A-Za-z])(?P<base>[A-Za-z]{1,3}|[0-9]+(?:\.[0-9]+)?)(?:(?P<sup>[⁰¹²³⁴-⁹⁺⁻ⁿ]+)"
            r"|(?:\^|\*\*)(?P<exp>-?[0-9]{1,4}|n))(?: ?(?P<unit>"
            + _UNITS
            + r")"
            + _NOT_LETTER
            + r")?(?P<op> ?[-–−] ?(?=[0-9A-Za-z]))?",
            say.power,
            past=r"[\^*⁰¹²³⁴-⁹⁺⁻ⁿ]",
        ),
        rule(
            "d",
            _NS
            + r"(?P<n>"
            + _N
            + r")(?P<scale>[十百千万亿]{0,2})(?P<sep>"
            + _TO
            + r")(?P<n2>"
            + _N
            + r")(?![:/]|-[0-9])",
            say.span,
            past="[" + _SCALES + _TOS + "]",
        ),
        rule(
            "l",
            r"(?P<l>RTX|GTX|RX|GT) (?P<n>[0-9]{3,4})(?![0-9])",
            lambda m: f"{m['l']} {one_by_one(m['n'])}",
        ),
        rule(
            "l",
            r"(?P<l>[A-Za-z]{1,8}[0-9]{1,2})-(?P<n>[0-9]{3,6})(?![0-9])",
            lambda m: say.spell_digits(m[0]),
        ),
        rule(
            "l",
            r"(?P<l>[A-Za-z][A-Za-z]{0,11})[- ]?(?<! )(?P<n>[0-9]{1,6}(?:\.[0-9]{1,3})?)(?![0-9]|\.[0-9])",
            say.model,
        ),
        rule("d", _NS + r"(?P<n>" + _N + r")\"(?=[屏显电])", lambda m: decimal(m["n"]) + "英寸", past='"'),
        rule("l", r"(?<=第)(?P<r>[IVXLCM]{1,7})" + _NOT_LETTER, say.roman_number),
        rule("l", r"(?P<r>[IVX]{1,6})(?= ?[世期型类级部卷])", say.roman_number),
        rule("l", r"(?<=[㐀-鿿])(?P<r>[IVX]{2,6})" + _NOT_LETTER, say.roman_number),
        rule("l", r"[Nn][Oo]\. ?(?P<n>[0-9]{1,5})(?![0-9])", lambda m: "第" + cardinal(m["n"])),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]{1,4})(?:st|nd|rd|th)" + _NOT_LETTER,
            lambda m: "第" + cardinal(m["n"]),
            then="[A-Za-z]",
        ),
        rule("s", r"#(?P<n>[0-9]{1,4})(?![0-9])", lambda m: cardinal(m["n"]) + "号"),
        rule("d", _NS + r"(?P<n>[0-9]{1,3})#", lambda m: cardinal(m["n"]) + "号", then="#"),
        rule(
            "s", r"/(?= ?[0-9(].{0,20}=)", lambda m: "除以" if re.search(r"[0-9)] $", say.before(m)) else None
        ),
        rule("s", r"~(?=[0-9])", say.tilde),
        rule("s", r"≈(?=[0-9])", "约"),
        rule("s", r"[-–](?=[0-9])", say.until),
        rule("s", r"[-=]>|→|⇒", "到"),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]+)\+(?= ?[年个人名家款种岁天条项位])",
            lambda m: decimal(m["n"]) + "多",
            then="[+]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]+(?:\.[0-9]+)?)[kK](?= ?\+?[个人粉赞次条名收阅]| ?[sS]tar)",
            lambda m: say.scaled(m["n"], "k"),
            past="[A-Za-z]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>[0-9]+(?:\.[0-9]+)?)(?:[wW])(?=[元块人个粉+，。]|$)",
            lambda m: decimal(m["n"]) + "万",
            past="[A-Za-z]",
        ),
        rule(
            "d",
            _NS + r"(?P<n>" + _N + r") ?- ?(?=[0-9].{0,12}=)",
            lambda m: decimal(m["n"]) + "减",
            past="-",
        ),
        rule(
            "ds",
            r"(?<![0-9A-Za-z])(?<![0-9][.,])(?P<neg>(?<![0-9A-Za-z)）])[-+])?(?P<n>" + _N + r")",
            say.number,
        ),
        rule("d", r"(?P<n>" + _N + r")", say.number),
        rule(
            "s",
            r"\.(?P<n>[0-9]+)(?![0-9])",
            lambda m: None if re.search(r"[0-9A-Za-z.]$", say.before(m)) else "零点" + one_by_one(m["n"]),
        ),
        # signs
        rule(
            "s",
            r"/[sS](?![A-Za-z0-9])",
            lambda m: "每秒" if re.search(r"[0-9] ?[KMGT]?[Bb]$", say.before(m)) else None,
        ),
        rule("s", r"!=", "不等于"),
        rule("s", r">=", "大于等于"),
        rule("s", r"<=", "小于等于"),
        rule("s", r"==", "等于"),
        rule("s", r"[²³¹⁰⁴-⁹⁺⁻ⁿ]+", say.superscripts),
        rule("s", r"[₀-₉]+", say.subscripts),
        rule("s", r"[①-⓿❶-➓Ⅰ-ⅿ㈠-㈩㊀-㊉⑴-⒛]", say.circled),
        rule("s", r"(?<=[CF])#", " sharp "),
        rule(
            "s",
            r"(?:(?<=元)|(?<=块)|(?<=次)|(?<=个)|(?<=人)|(?<=里)|(?<=斤)|(?<=吨)|(?<=度)|(?<=升)|(?<=天)|(?<=件)"
            r"|(?<=本)|(?<=份)|(?<=时)|(?<=钟)|(?<=米)|(?<=台))/(?=[月天年日周次人斤公吨小时分秒平米度升个件本份kKmMgLhs])",
            "每",
        ),
        rule("s", r"[^\w\s]|_", _sign),
    ]
)
