"""What the rules of Chinese say for a match. Pure; the patterns are in `rules_zh`.

Contexts (`号码` before, `胜` after) are only looked at, never changed.
"""

from __future__ import annotations

import re
from decimal import Decimal

from pipeline.text.numbers_en import roman
from pipeline.text.numbers_zh import cardinal, decimal, one_by_one, quantity, year
from pipeline.text.signs import SUBSCRIPTS, SUPERSCRIPTS, fraction_sign, number_sign
from pipeline.text.units import ZH_MONEY, ZH_UNITS

Match = re.Match[str]

_IS = r"(?:[是为:]| )*$"
_SCORE_BEFORE = re.compile(r"(?:比分|战胜|击败|[以胜负输赢平]|领先|落后|逆转|打成|战平)" + _IS)
_SCORE_AFTER = re.compile(
    r" ?(?:的?(?:比分|优势|成绩)|战胜|击败|[大险完惜]?胜|[惜]?负|获胜|领先|落后|战平|逆转|横扫|告负|取胜)"
)
_RATIO_BEFORE = re.compile(r"(?:比例|比率|配比|[按为]|按照|长宽比|宽高比|画幅|赔率)" + _IS)
_RATIO_AFTER = re.compile(r" ?(?:的?(?:比例|比率|配比|画面|屏幕|画幅|稀释|混合|勾兑|兑水|缩放|配))")
_CALL = re.compile(
    r"(?:打|拨|热线|电话|致电|火警|报警|急救|匪警|客服|求助|呼叫|来电|投诉|专线|查号)(?:号码)?" + _IS
)
_SHORT = re.compile(r"110|112|119|120|122|12[0-9]{3}|1[01][0-9]{3}|9[5-6][0-9]{3}|911|999")
_SERVICE = re.compile(
    r"10086|12(?:306|315|318|320|333|348|358|366|369|377|388)"
    r"|955(?:88|33|55|66|99|59|95|28|58|68|77|80|16|18|19|11|00|22)"
)
"""Telephone numbers that everybody in China knows."""
_SHORT_AFTER = re.compile(
    r" ?(?:网站|官网|短信|热线|电话|急救|报警|火警|匪警|平台|客服|服务台|指挥中心|救护车|查号|举报)"
)
_NAMED = re.compile(
    r"(?:编号|卡号|学号|工号|[订运快货]?单号|账号|号码|密码|口令|[验校]证?码|校验码|邀请码|取件码|提取码|识别码|代码"
    r"|邮编|邮政编码|身份证号?|尾号|证号|车牌号?|序列号|房号|手机号?|(?<![A-Za-z])(?i:qq|id|pin|sn|imei)号?|微信号?|航班|班次|车次"
    r"|护照|银行卡|会员号|门牌号?|批号|型号|条码)(?:[是为:#]| )*[A-Za-z]*-?$"
)
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}|21[0-9]{2}")
_TWO_COUNTS = frozenset(
    "个只条张本位名件台辆次遍天年周岁层间家份句页章节课集部首支枝把块片颗粒杯瓶碗盘袋箱盒包双对套批组队排行列场轮届棵朵座栋所"
    "米里斤亩吨升克元倍站步种项样公厘毫小分点百千万亿秒匹头根口门道人成"
)
_NOT_TWO = re.compile(r"分(?![钟])|人[称]|成语|年级|里面|百分|行业")


def maybe(m: Match, name: str) -> str:
    """A group that the pattern may not have, or that took no part: ""."""
    return m.groupdict().get(name) or ""


def before(m: Match, count: int = 10) -> str:
    """What stands before the match."""
    return m.string[max(0, m.start() - count) : m.start()]


def after(m: Match, count: int = 8) -> str:
    """What stands after it."""
    return m.string[m.end() : m.end() + count]


def _month_day(month: str, day: str) -> str | None:
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{cardinal(month)}月{cardinal(day)}日"


def date(m: Match) -> str | None:
    """2025-09-28"""
    rest = _month_day(m["m"], m["d"])
    return f"{year(m['y'])}年{rest}" if rest else None


def slash_date(m: Match) -> str | None:
    """08/15/2024; day first where the first number is no month"""
    month, day = (m["b"], m["a"]) if int(m["a"]) > 12 else (m["a"], m["b"])
    rest = _month_day(month, day)
    return f"{year(m['y'])}年{rest}" if rest else None


def quarter(m: Match) -> str:
    """2024Q3, 2024H1"""
    part = f"第{cardinal(m['q'])}季度" if m["k"] == "Q" else {"1": "上半年", "2": "下半年"}[m["q"]]
    return f"{year(m['y'])}年{part}"


_COUNTED = re.compile(r"[0-9零一二三四五六七八九十百千万]+(?:[A-Za-z%‰℃°]{1,4}|[㐀-鿿]{1,2})$")


def tilde(m: Match) -> str:
    """1.5米~1.8米 is a range, ~5 is about"""
    if before(m, 1) == "约":
        return ""
    return "到" if _COUNTED.search(before(m)) else "约"


def until(m: Match) -> str | None:
    """1994年7月-1998年6月: no minus after a quantity"""
    return (
        "到"
        if re.search(r"[0-9](?:[年月日号点时分秒元米岁天期级层楼页章]|小时|分钟|公里|公斤)$", before(m))
        else None
    )


def date_range(m: Match) -> str | None:
    """2023/12/31-2024/1/2, 2024.10.1-10.7"""
    first, last = _month_day(m["m"], m["d"]), _month_day(m["m2"], m["d2"])
    if first is None or last is None:
        return None
    return f"{year(m['y'])}年{first}到" + (f"{year(m['y2'])}年" if maybe(m, "y2") else "") + last


def year_month(m: Match) -> str:
    """2025-09"""
    return f"{year(m['y'])}年{cardinal(m['m'])}月"


def _clock(hour: str, minute: str, second: str | None = None) -> str | None:
    if int(hour) > 24:
        return None
    said = ("两" if int(hour) == 2 else cardinal(hour)) + "点"
    if int(minute) or (second and int(second)):
        said += ("零" if int(minute) < 10 else "") + (cardinal(minute) if int(minute) else "") + "分"
    if second and int(second):
        said += ("零" if 0 < int(second) < 10 else "") + cardinal(second) + "秒"
    return said


def is_score_or_ratio(m: Match) -> bool:
    """Whether the words around say so."""
    lead = before(m)
    return bool(
        _SCORE_BEFORE.search(lead)
        or _RATIO_BEFORE.search(lead)
        or _SCORE_AFTER.match(after(m))
        or _RATIO_AFTER.match(after(m))
    )


def time(m: Match) -> str | None:
    """19:17, 12:30:45, 8:05 pm; not a score"""
    if is_score_or_ratio(m):
        return None
    if maybe(m, "sec") and re.search(r"(?:时长|用时|耗时|历时|成绩|全长|长达|总时间)[为是:约 ]*$", before(m)):
        return f"{cardinal(m['h'])}小时{cardinal(m['min'])}分{cardinal(m['sec'])}秒"
    said = _clock(m["h"], m["min"], maybe(m, "sec"))
    if re.search(r"(?:[上下]午|晚上|早上|凌晨|中午|傍晚|夜里) ?$", before(m)):
        return said
    half = (maybe(m, "half") or " ")[0].lower()
    return said and {"a": "上午", "p": "下午"}.get(half, "") + said


def hour_half(m: Match) -> str | None:
    """8 pm"""
    said = _clock(m["h"], "0")
    return said and {"a": "上午", "p": "下午"}[maybe(m, "half")[0].lower()] + said


def time_range(m: Match) -> str | None:
    """8:30-17:00, 8:00am-5:00pm"""
    ends = []
    for hour, minute, half in (("h", "min", "half"), ("h2", "min2", "half2")):
        said = _clock(m[hour], m[minute])
        if said is None:
            return None
        ends.append({"a": "上午", "p": "下午"}.get(maybe(m, half)[:1].lower(), "") + said)
    return "到".join(ends)


def ratio(m: Match) -> str:
    """3:2, 100:1, 1:2:3"""
    return "比".join(decimal(part) for part in re.split(r" ?: ?", m[0]))


def phone(m: Match) -> str:
    """Digits in one breath."""
    return one_by_one(m[0], telephone=True)


def grouped_phone(m: Match) -> str:
    """Groups keep a short break between them, in which a listener writes down."""
    said = ""
    for part in re.findall(r"\+|[0-9]+|转|分机", m[0]):
        if part[0].isdigit():
            said += ("，" if said and said[-1] not in "转机加" else "") + one_by_one(part, telephone=True)
        else:
            said += "加" if part == "+" else part
    return said


def short_phone(m: Match) -> str | None:
    """119 after a word of calling, or before one of service"""
    digits = m[0]
    if _CALL.search(before(m)) and not re.match(r"[个次份元块折分秒万千]", after(m)):
        return one_by_one(digits, telephone=True)
    listed = re.match(r"(?:[、和或/]|或者)(?=[0-9]{3})", after(m)) or re.search(
        r"[0-9]{3}(?:[、和或/]|或者)$", before(m)
    )
    known = _SERVICE.fullmatch(digits) and not re.match(r" ?[个次份元块折分秒万千人天年米名条件]", after(m))
    if _SHORT.fullmatch(digits) and (
        _SHORT_AFTER.match(after(m))
        or known
        or (listed and (len(digits) == 3 or digits[0] == "9" or digits[:2] == "10"))
    ):
        return one_by_one(digits, telephone=True)
    return None


def extension(m: Match) -> str | None:
    """转8003"""
    if re.search(r"(?:转|分机号?)(?:[是为:]| )?$", before(m)) and not re.match(r"[人个元次天万倍]", after(m)):
        return one_by_one(m[0], telephone=True)
    return None


def named(m: Match) -> str | None:
    """Digits and letters after 编号, 验证码 ..: one by one"""
    if not _NAMED.search(before(m, 16)):
        return None
    return spell_digits(m[0])


def spell_digits(text: str) -> str:
    """Letters stay, digits one by one, hyphens are silent."""
    return re.sub(r"[0-9]+", lambda d: one_by_one(d[0]), re.sub(r"[-_ ]+", " ", text))


def model(m: Match) -> str:
    """RTX4090, H200, MP3, PM2.5: from three digits on, or after a zero, one by one"""
    digits = m["n"]
    bare = "." not in digits and (len(digits) > 2 or (digits[0] == "0" and len(digits) > 1))
    return m["l"] + (one_by_one(digits) if bare else decimal(digits))


_LETTERS = {"k": 3, "m": 6, "b": 9, "bn": 9}


def scaled(text: str, letter: str) -> str:
    """5.5 M as a number"""
    value = Decimal(text.replace(",", "")).scaleb(_LETTERS[letter.lower()])
    return decimal(f"{value.normalize():f}")


def _amount(text: str, scale: str | None) -> str:
    if scale and scale.lower() in _LETTERS:
        return scaled(text, scale)
    said = "两" if text == "2" else decimal(text, money=not scale)
    return said + (scale or "")


def money(m: Match) -> str:
    """¥3.5万, $5-10"""
    first = ("负" if maybe(m, "neg") or maybe(m, "neg2") else "") + _amount(m["n"], maybe(m, "scale"))
    return first + (f"到{_amount(m['n2'], m['scale2'])}" if maybe(m, "n2") else "") + ZH_MONEY[m["cur"]]


def money_after(m: Match) -> str:
    """500 USD"""
    return _amount(m["n"], maybe(m, "scale")) + ZH_MONEY[m["cur"]]


def percent(m: Match) -> str:
    """8%, 5%-10%, -3‰"""
    lead = "千分之" if m["sign"] == "‰" else "百分之"

    def one(text: str) -> str:
        sign = {"-": "负", "+": "正"}.get(text[0], "")
        number = text.lstrip("+-")
        return sign + lead + ("百" if number == "100" and lead == "百分之" else decimal(number))

    return one(m["n"]) + (f"到{one(m['n2'])}" if maybe(m, "n2") else "")


def degrees(m: Match) -> str:
    """-3℃, 20~25°C, 98.6°F, 45°"""
    sign = m["sign"].replace(" ", "")
    name = {"°F": "华氏度", "℉": "华氏度", "℃": "摄氏度", "°C": "摄氏度"}.get(sign, "度")
    below = "零下" if name == "摄氏度" else "负"
    if re.search(r"零下 ?$", before(m)):
        below = ""

    def one(text: str) -> str:
        return (below if text[0] == "-" else "") + decimal(text.lstrip("+-"))

    return one(m["n"]) + (f"到{one(m['n2'])}" if maybe(m, "n2") else "") + name


def per(m: Match) -> str | None:
    """6.5L/100km, 350kJ/100g: after an amount"""
    if not re.search(r"[0-9] ?[A-Za-zμ]{1,5}$|[一-鿿]$", before(m)):
        return None
    unit_ = ZH_UNITS[m["unit"]]
    return f"每{'百公里' if m['n'] == '100' and unit_ == '公里' else cardinal(m['n']) + unit_}"


def fraction(m: Match) -> str | None:
    """1/3, 1 1/2; 120/80 after 血压; 9/28 after 日期"""
    above, below = m["a"], m["b"]
    if m[0] in ("24/7", "7/24"):
        return "七乘二十四小时" if not re.match(r" ?小时", after(m)) else "七乘二十四"
    if int(below) == 0 or (len(below) > 1 and below[0] == "0"):
        return None
    if re.search(r"血压[^0-9]{0,4}$", before(m)):
        return f"{decimal(above)}比{decimal(below)}"
    if re.search(r"(?:日期|生日|截至|截止|时间)[^0-9]{0,2}$", before(m)) or re.match(
        r" ?[(（]?(?:周|星期)[一二三四五六日天]", after(m)
    ):
        return _month_day(above, below)
    return (f"{cardinal(m['w'])}又" if maybe(m, "w") else "") + f"{cardinal(below)}分之{cardinal(above)}"


def fraction_mark(m: Match) -> str | None:
    """½, 3½"""
    parts = fraction_sign(m["f"])
    if parts is None:
        return None
    said = f"{cardinal(str(parts[1]))}分之{cardinal(str(parts[0]))}"
    return (f"{cardinal(m['w'])}又" if maybe(m, "w") else "") + said


def dimensions(m: Match) -> str:
    """120×60cm, 3*4, 1920x1080"""
    unit = maybe(m, "unit") or ""
    parts = [decimal(n) for n in re.findall(r"[0-9]+(?:\.[0-9]+)?", m["all"])]
    return "乘".join(parts) + ZH_UNITS.get(unit, unit)


def unit(m: Match) -> str:
    """5km, 3-5kg, -2m"""
    sign = {"-": "负", "+": "正"}.get(maybe(m, "neg") or "", "")
    first = decimal(m["n"]) if maybe(m, "n2") else quantity(m["n"])
    return sign + first + (f"到{decimal(m['n2'])}" if maybe(m, "n2") else "") + ZH_UNITS[m["unit"]]


def span(m: Match) -> str | None:
    """3-5, 9~18, 1949-1976, 2023-24; a score; 5-3=2"""
    first, last, sep = m["n"], maybe(m, "n2"), m["sep"].strip()
    if maybe(m, "scale"):
        return f"{decimal(first)}{m['scale']}到{decimal(last)}"
    if re.match(r" ?=", after(m)) and sep == "-":
        return f"{decimal(first)}减{decimal(last)}"
    if _SCORE_BEFORE.search(before(m)) or _SCORE_AFTER.match(after(m)):
        return f"{decimal(first)}比{decimal(last)}"
    years = bool(_YEAR.fullmatch(first))
    counted = re.match(r"[元块人个名多米公]", after(m))
    if years and not counted and _YEAR.fullmatch(last) and (after(m)[:1] == "年" or int(first) < int(last)):
        return f"{year(first)}到{year(last)}"
    if years and re.match(r"赛季|学年|财年|年度|年", after(m)) and len(last) == 2:
        return f"{year(first)}到{one_by_one(last)}"
    plain = "." not in first + last and "," not in first + last
    if plain and first[0] == "0" and len(first) == len(last) == 2 and sep == "-":
        return _month_day(first, last) or f"{one_by_one(first)}到{one_by_one(last)}"
    if plain and (max(len(first), len(last)) > 5 or (first[0] == "0" and len(first) > 1)) and sep == "-":
        return f"{one_by_one(first)}，{one_by_one(last)}"
    few = last == "2" and after(m)[:1] in _TWO_COUNTS and not _NOT_TWO.match(after(m))
    return f"{decimal(first)}到{'两' if few else decimal(last)}"


POWER = re.compile(r"[0-9.]{1,8}(?:\^|[⁰¹²³⁴-⁹])")
"""Between two powers of numbers a hyphen is a range."""


def power(m: Match) -> str:
    """x², 10⁶, 10^-3"""
    exponent = maybe(m, "sup").translate(SUPERSCRIPTS) if maybe(m, "sup") else m["exp"]
    base = m["base"]
    said = decimal(base) if base[0].isdigit() else base
    special = {"2": "的平方", "3": "的立方"}.get(exponent) if not base[0].isdigit() else None
    said += special or f"的{exponent if exponent == 'n' else decimal(exponent)}次方"
    said += ZH_UNITS[m["unit"]] if maybe(m, "unit") else ""
    return said + (("到" if POWER.match(after(m, 12)) else "减") if maybe(m, "op") else "")


def subscripts(m: Match) -> str:
    """H₂O"""
    return "".join(cardinal(ch) for ch in m[0].translate(SUBSCRIPTS))


def superscripts(m: Match) -> str:
    """平方 after what is no letter"""
    digits = m[0].translate(SUPERSCRIPTS)
    return {"2": "平方", "3": "立方"}.get(digits) or (cardinal(digits) if digits.isdigit() else digits)


def version(m: Match) -> str:
    """v2.10.3: the first part as a number, the others by digit"""
    first, *rest = m["n"].split(".")
    lead = one_by_one(first) if first[0] == "0" else cardinal(first)
    return maybe(m, "v") + "点".join([lead, *map(one_by_one, rest)])


def circled(m: Match) -> str | None:
    """① Ⅳ ⑵ 　as a number; before words it numbers an item"""
    value = number_sign(m[0])
    if value is None:
        return None
    item = re.match(r" ?[^\W\d]", after(m)) and not re.match(r"[楼号级章期世代型类部卷季]", after(m))
    return cardinal(str(value)) + ("，" if item and not re.search(r"[第步骤图表] ?$", before(m)) else "")


def roman_number(m: Match) -> str | None:
    """III after 第, or before 世, 期, 型"""
    value = roman(m["r"])
    return cardinal(str(value)) if value else None


def number(m: Match) -> str:
    """Any other number: by its length, by how it begins, by what follows."""
    text = m["n"]
    said = _plain(text, m) if text.isdigit() else None
    if said is None:
        said = decimal(text, money=after(m)[:1] in ("元", "块") and "." in text)
    return {"-": "负", "+": "正"}.get(maybe(m, "neg") or "", "") + said


def _plain(digits: str, m: Match) -> str | None:
    lead, tail = before(m), after(m)
    count = len(digits)
    if count == 2 and digits[0] == "0" and digits != "00" and re.match(r"[月日号点时]", tail):
        return cardinal(digits)
    if count == 2 and lead[-1:] in ("'", "’") and tail[:1] == "年":
        return one_by_one(digits)
    if (count > 1 and digits[0] == "0") or (count >= 9 and not re.match(r"[元块万亿个人字条次年公米]", tail)):
        return one_by_one(digits)
    if (count >= 3 and re.match(r"路(?!程|人)", tail)) or (
        count in (3, 4) and re.match(r"号?(?:房|室)", tail)
    ):
        return one_by_one(digits)
    if count == 4 and re.match(r"年[0-9]{1,2}月", tail):
        return year(digits)
    if _YEAR.fullmatch(digits) and re.match(r" ?(?:年|级|届)(?!前|后|来|间|内|以|的?历史|之|多)", tail):
        return None if digits == "1000" else year(digits)
    if (
        count == 2
        and lead[-1:] != "第"
        and re.match(r"年(?:生|出生|毕业|级|款|产)|后(?=[，。、的 ]|$|宝|男|女|青|员)|届", tail)
    ):
        return one_by_one(digits) if digits[0] in "0126789" else None
    if count == 2 and digits[0] in "6789" and re.match(r"年(?!代|前|后|来|间|内|以|的?历史|级)", tail):
        return one_by_one(digits) if not re.search(r"[第了过约近] ?$", lead) else None
    if digits == "2" and tail[:1] in _TWO_COUNTS and not _NOT_TWO.match(tail):
        return None if re.search(r"[第月周]\s?$|星期\s?$|[大初高]$", lead) else "两"
    return None
