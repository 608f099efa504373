"""Units of measurement and money by sign, with their Chinese and English names. Data only."""

from __future__ import annotations

ZH_UNITS: dict[str, str] = {
    "km": "公里", "m": "米", "dm": "分米", "cm": "厘米", "mm": "毫米", "μm": "微米", "um": "微米", "nm": "纳米",
    "kg": "公斤", "g": "克", "mg": "毫克", "μg": "微克", "ug": "微克", "t": "吨", "lb": "磅", "lbs": "磅", "oz": "盎司",
    "L": "升", "l": "升", "ml": "毫升", "mL": "毫升", "ML": "毫升", "cc": "毫升",
    "m²": "平方米", "m2": "平方米", "㎡": "平方米", "㎥": "立方米", "㎏": "公斤", "㎎": "毫克", "㎜": "毫米", "㎝": "厘米", "㎞": "公里", "㏄": "毫升",
    "㎖": "毫升", "km²": "平方公里", "km2": "平方公里", "cm²": "平方厘米",
    "cm2": "平方厘米", "mm²": "平方毫米", "m³": "立方米", "m3": "立方米", "cm³": "立方厘米", "cm3": "立方厘米",
    "ha": "公顷", "km/h": "公里每小时", "m/s": "米每秒", "m/s²": "米每二次方秒", "mph": "英里每小时", "kn": "节",
    "W": "瓦", "kW": "千瓦", "KW": "千瓦", "MW": "兆瓦", "GW": "吉瓦", "kWh": "千瓦时", "KWh": "千瓦时", "Wh": "瓦时",
    "kw": "千瓦", "kwh": "千瓦时", "V": "伏", "kV": "千伏", "mV": "毫伏", "mA": "毫安", "mAh": "毫安时", "Ah": "安时",
    "Hz": "赫兹", "kHz": "千赫兹", "KHz": "千赫兹", "MHz": "兆赫兹", "GHz": "吉赫兹", "Ω": "欧姆", "kΩ": "千欧",
    "dB": "分贝", "db": "分贝", "Pa": "帕", "kPa": "千帕", "hPa": "百帕", "MPa": "兆帕", "N": "牛", "J": "焦耳",
    "kJ": "千焦", "cal": "卡", "kcal": "千卡", "s": "秒", "sec": "秒", "ms": "毫秒", "μs": "微秒", "min": "分钟",
    "mins": "分钟", "h": "小时", "hr": "小时", "hrs": "小时", "ft": "英尺", "in": "英寸", "″": "英寸", "yd": "码",
    "mi": "英里", "px": "像素", "rpm": "转每分", "lm": "流明", "lx": "勒克斯", "mmHg": "毫米汞柱", "mol": "摩尔",
    "KM": "公里", "KG": "公斤", "Kg": "公斤", "CM": "厘米", "MM": "毫米", "mg/L": "毫克每升", "g/L": "克每升",
    "μg/m³": "微克每立方米", "kg/m³": "千克每立方米", "mmol/L": "毫摩尔每升", "L/min": "升每分钟",
}  # fmt: skip
"""As written after a number in a Chinese text; letters that Chinese says as letters (GB, G, K) are not here."""

EN_UNITS: dict[str, tuple[str, str]] = {
    "km": ("kilometer", "kilometers"), "m": ("meter", "meters"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "μm": ("micrometer", "micrometers"), "nm": ("nanometer", "nanometers"),
    "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"), "t": ("ton", "tons"),
    "L": ("liter", "liters"), "l": ("liter", "liters"), "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"), "gal": ("gallon", "gallons"), "qt": ("quart", "quarts"),
    "tbsp": ("tablespoon", "tablespoons"), "tsp": ("teaspoon", "teaspoons"), "ha": ("hectare", "hectares"),
    "m²": ("square meter", "square meters"), "m2": ("square meter", "square meters"),
    "km²": ("square kilometer", "square kilometers"), "cm²": ("square centimeter", "square centimeters"),
    "ft²": ("square foot", "square feet"), "sq ft": ("square foot", "square feet"),
    "m³": ("cubic meter", "cubic meters"), "m3": ("cubic meter", "cubic meters"),
    "cm³": ("cubic centimeter", "cubic centimeters"),
    "km/h": ("kilometer per hour", "kilometers per hour"), "kph": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"), "mph": ("mile per hour", "miles per hour"),
    "m.p.h.": ("mile per hour", "miles per hour"),
    "W": ("watt", "watts"), "kW": ("kilowatt", "kilowatts"), "MW": ("megawatt", "megawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"), "Wh": ("watt hour", "watt hours"), "V": ("volt", "volts"),
    "kV": ("kilovolt", "kilovolts"), "mA": ("milliamp", "milliamps"), "mAh": ("milliamp hour", "milliamp hours"),
    "Hz": ("hertz", "hertz"), "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "dB": ("decibel", "decibels"), "Pa": ("pascal", "pascals"),
    "kPa": ("kilopascal", "kilopascals"), "hPa": ("hectopascal", "hectopascals"), "psi": ("P S I", "P S I"),
    "KB": ("kilobyte", "kilobytes"), "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"), "GB": ("gigabyte", "gigabytes"), "TB": ("terabyte", "terabytes"),
    "GiB": ("gibibyte", "gibibytes"), "MiB": ("mebibyte", "mebibytes"), "Gb": ("gigabit", "gigabits"),
    "kbps": ("kilobit per second", "kilobits per second"), "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"), "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"),
    "s": ("second", "seconds"), "sec": ("second", "seconds"), "secs": ("second", "seconds"),
    "ms": ("millisecond", "milliseconds"), "min": ("minute", "minutes"), "mins": ("minute", "minutes"),
    "h": ("hour", "hours"), "hr": ("hour", "hours"), "hrs": ("hour", "hours"), "yr": ("year", "years"),
    "yrs": ("year", "years"), "ft": ("foot", "feet"), "yd": ("yard", "yards"), "mi": ("mile", "miles"),
    "px": ("pixel", "pixels"), "rpm": ("revolution per minute", "revolutions per minute"),
    "fps": ("frame per second", "frames per second"), "kcal": ("kilocalorie", "kilocalories"),
    "cal": ("calorie", "calories"), "kJ": ("kilojoule", "kilojoules"), "Ω": ("ohm", "ohms"),
}  # fmt: skip

ZH_MONEY: dict[str, str] = {
    "¥": "元", "$": "美元", "US$": "美元", "€": "欧元", "£": "英镑", "HK$": "港元", "NT$": "新台币", "A$": "澳元",
    "C$": "加元", "S$": "新加坡元", "₩": "韩元", "₹": "卢比", "₽": "卢布", "฿": "泰铢", "₫": "越南盾", "JP¥": "日元",
    "CN¥": "元", "RMB": "元", "CNY": "元", "USD": "美元", "EUR": "欧元", "GBP": "英镑", "HKD": "港元", "JPY": "日元",
    "KRW": "韩元", "TWD": "新台币", "AUD": "澳元", "CAD": "加元", "CHF": "瑞士法郎", "SGD": "新加坡元", "₿": "比特币",
}  # fmt: skip

EN_MONEY: dict[str, tuple[str, str, str, str]] = {
    "$": ("dollar", "dollars", "cent", "cents"), "US$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "", ""), "CN¥": ("yuan", "yuan", "", ""), "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "", ""), "₽": ("ruble", "rubles", "kopeck", "kopecks"), "฿": ("baht", "baht", "", ""),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents"),
    "USD": ("dollar", "dollars", "cent", "cents"), "EUR": ("euro", "euros", "cent", "cents"),
    "GBP": ("pound", "pounds", "penny", "pence"), "CAD": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "cents"), "CNY": ("yuan", "yuan", "", ""),
    "RMB": ("yuan", "yuan", "", ""), "JPY": ("yen", "yen", "", ""), "CHF": ("franc", "francs", "", ""),
    "₿": ("bitcoin", "bitcoin", "", ""), "Rs.": ("rupee", "rupees", "paisa", "paise"),
    "Rs": ("rupee", "rupees", "paisa", "paise"),
}  # fmt: skip


def alternatives(names: dict[str, object] | dict[str, str]) -> str:
    """A regular expression for any of the keys, the longest first."""
    import re

    return "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
