"""Times the text front end, in CPU seconds: `python -m tests.bench.text [MB] [WORDS]`, a text of each kind
(of those whose name has WORDS in it), per million characters and per megabyte of UTF-8.

What is drawn differs from sentence to sentence (by a fixed seed): dates, times, prices, percents, telephone
numbers, units; so that nothing is fast only because it was read before.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
import time
from collections.abc import Callable

from pipeline.text.segment import plan

UNITS = {
    "English prose": "The quick brown fox jumped over the lazy dog, and then it slept for a while. ",
    "Chinese prose": "今天先去菜场再去银行，然后回家做饭。",
    "Chinese numbers": "在2024年3月5日，价格是$1,299.50，涨了12.5%。",
    "English numbers": "On March 5, 2024 it cost $1,299.50, up 12.5% from 1999. ",
    "mixed": "我用iPhone 15 Pro拍了3张照片。",
    "Markdown": "# A **title**\n\n- one `item`\n- [two](http://example.com)\n\n",
}

_MONTHS = "January February March April May June July August September October November December".split()


class _Drawn:
    """Values for the fields of a sentence, each written in one of the ways that people write it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __getitem__(self, field: str) -> str:
        pick, one_of = self._random.randint, self._random.choice
        year, month, day = pick(1900, 2099), pick(1, 12), pick(1, 28)
        name = _MONTHS[month - 1]
        whole, cents = pick(1, 10 ** pick(1, 7)), pick(0, 99)
        part = one_of(["", f".{cents}"])
        ways: dict[str, Callable[[], str]] = {
            "date": lambda: one_of(
                [f"{year}-{month:02}-{day:02}", f"{year}/{month}/{day}", f"{year}.{month:02}.{day:02}"]
            ),
            "日期": lambda: one_of(
                [f"{year}年{month}月{day}日", f"{month}月{day}日", f"{year}-{month:02}-{day:02}"]
            ),
            "Month day": lambda: one_of(
                [f"{name} {day}, {year}", f"{name[:3]}. {day}", f"{day} {name}"],
            ),
            "year": lambda: str(year),
            "clock": lambda: f"{pick(0, 23)}:{pick(0, 59):02}",
            "half": lambda: f"{pick(1, 12)}:{pick(0, 59):02} {one_of(['a.m.', 'p.m.', 'AM', 'pm'])}",
            "price": lambda: one_of("$€£") + (f"{whole:,}.{cents:02}" if cents % 2 else f"{whole:,}"),
            "元": lambda: one_of([f"¥{whole:,}.{cents:02}", f"{whole}.{cents:02}元", f"{pick(1, 999)}万元"]),
            "count": lambda: f"{whole:,}" if cents % 2 else f"{whole}",
            "few": lambda: str(pick(2, 99)),
            "percent": lambda: f"{pick(0, 99)}.{pick(0, 99)}%" if cents % 2 else f"{pick(1, 100)}%",
            "range": lambda: f"{month}-{month + pick(1, 30)}",
            "phone": lambda: f"{pick(200, 999)}-{pick(200, 999)}-{pick(0, 9999):04}",
            "手机": lambda: one_of(
                [f"13{pick(0, 999_999_999):09}", f"0{pick(10, 99)}-{pick(10**7, 10**8 - 1)}"]
            ),
            "measure": lambda: f"{pick(1, 999)}{part} {one_of('km kg cm MB GB kWh m mph'.split())}",
            "单位": lambda: f"{pick(1, 999)}{part}{one_of('km kg cm ml kWh m 米 公里'.split())}",
            "degrees": lambda: f"{pick(-20, 45)}°{one_of('CF')}",
            "fraction": lambda: f"{pick(1, 9)}/{pick(2, 16)}",
            "model": lambda: f"{one_of('A B GX RTX H'.split())}{pick(1, 9999)}",
            "nth": lambda: one_of([f"{pick(2, 9)}th", f"2{pick(4, 9)}th", "21st", "33rd"]),
        }
        return ways[field]()


_ENGLISH = """\
On {Month day} the shares rose {percent} to {price}, after {price} the year before.
The train leaves at {half} and arrives at {clock}; call {phone} to change it.
In {year} the town had {count} people, {percent} of them older than {few}.
Use {fraction} cup of sugar and {measure} of flour, then wait for {range} minutes.
It was {degrees} outside when the {model} stopped after {measure}.
The invoice of {date} lists {count} parts at {price} each, and {few} more at {price}.
She finished {nth} among {count} runners on {Month day}.
Between {year} and {year} the price went from {price} to {price}, about {percent} a year.
""".splitlines()

_CHINESE = """\
{日期}，股价上涨{percent}，收于{元}，去年同期为{元}。
列车{clock}发车，{clock}到站，改签请打电话{手机}。
{year}年全镇有{count}人，其中{percent}超过{few}岁。
加入{单位}面粉和{fraction}杯糖，等待{range}分钟。
室外气温{degrees}，{model}跑了{单位}后停了下来。
{date}的账单上有{count}个零件，单价{元}，另有{few}个单价{元}。
她在{日期}的比赛中从{count}名选手里拿到第{few}名。
从{year}年到{year}年，价格由{元}涨到{元}，每年约{percent}。
""".splitlines()

DRAWN = {
    "English drawn": [line + " " for line in _ENGLISH],
    "Chinese drawn": _CHINESE,
    "both drawn": [*(line + " " for line in _ENGLISH), *_CHINESE],
}


def drawn(sentences: list[str], length: int, seed: int = 1) -> str:
    """At least `length` characters of `sentences`, their fields filled in; the same for the same seed."""
    values, order = _Drawn(seed), random.Random(seed)
    out: list[str] = []
    while length > 0:
        out.append(order.choice(sentences).format_map(values))
        length -= len(out[-1])
    return "".join(out)


def texts(length: int) -> dict[str, Callable[[], str]]:
    """A text of about `length` characters of each kind, made when it is called for."""
    made: dict[str, Callable[[], str]] = {}
    for name, unit in UNITS.items():
        made[name] = functools.partial(operator.mul, unit, length // len(unit))
    for name, sentences in DRAWN.items():
        made[name] = functools.partial(drawn, sentences, length)
    return made


def main(megabytes: float, words: str = "") -> None:
    """One line for each kind."""
    for name, make in texts(int(megabytes * 1_000_000)).items():
        if words not in name:
            continue
        text = make()
        begun = time.process_time()
        count = len(plan(text, longest_s=25, first_short=True))
        took = time.process_time() - begun
        print(
            f"{name:16} {took / len(text) * 1e6:6.2f} s per million characters"
            f" {took / len(text.encode()) * 1e6:6.2f} s per MB of UTF-8  {count} segments"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, *sys.argv[2:3])
