"""The choice of rules by what comes after a number leaves none out that would fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.text.rule import Rules
from pipeline.text.rules_en import EN
from pipeline.text.rules_zh import ZH
from pipeline.text.signs import view
from tests.bench.text import DRAWN, drawn

RULES = pytest.mark.parametrize("rules", [EN, ZH], ids=["en", "zh"])
CASES = Path(__file__).parents[1] / "data/text"
DIGITS = re.compile("[0-9]+")
_PARTS = st.one_of(
    st.sampled_from(list("0123456789") * 3 + list(",. :/-+~–—%‰°℃℉'’′×xX*^²½#、)至到十百千万亿元€£$¢@_\n")),
    st.sampled_from(
        "12 1,299 1,234,567 0.5 1.2.3 2024 192.168.1.1 km kg cm² sq AM p.m. USD RMB March st nd th s k M to - T10: 转"
        " 电话 call code 编号 a.com a@b.com fe80::1 555-1234 ℃ 年 个 人 🙂".split(" ")
    ),
    st.sampled_from(
        [" to ", " - ", "  -  ", " AM", " km", " °C", " : ", " × 3", "- 5 = 2", " 1/2", "1,2,3,4,5,6,7,8th"]
    ),
)


def fitting(rules: Rules, text: str, at: int) -> list[str]:
    """The patterns of all rules for digits that match at `at`, without a choice."""
    return [r.pattern.pattern for r in rules.digit if r.pattern.match(text, at, len(text))]


def left_out(rules: Rules, text: str) -> list[str]:
    """The patterns that fit some digits of `text` and are not chosen for them."""
    text = view(text)
    out: list[str] = []
    for digits in DIGITS.finditer(text):
        for at in range(digits.start(), digits.end()):
            chosen = {r.pattern.pattern for r in rules.chosen(text, at, digits.end(), len(text)).rules}
            out += [p for p in fitting(rules, text, at) if p not in chosen]
    return out


@RULES
@settings(max_examples=300, deadline=None)
@given(st.lists(_PARTS, max_size=12).map("".join))
@example("1,234,567,890,123,456,789,012,345th")
@example("5  - 10% 5  to 10° 5 to 10°C 1,5 km 1.5 - 3")
def test_every_rule_that_fits_a_number_is_among_those_chosen_for_it(rules: Rules, text: str) -> None:
    assert left_out(rules, text) == []


@RULES
def test_none_is_left_out_of_the_texts_that_people_wrote(rules: Rules) -> None:
    lines = [line for path in sorted(CASES.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    assert len(lines) > 200
    for line in lines:
        assert left_out(rules, json.loads(line)["text"]) == []
    assert left_out(rules, drawn(DRAWN["both drawn"], 20_000)) == []


@RULES
def test_few_rules_are_looked_at_for_a_plain_number(rules: Rules) -> None:
    """What makes a text that is full of numbers fast: 9 (English) or 13 (Chinese) of 42."""
    text = view(drawn(DRAWN["both drawn"], 3000))
    counts = [len(rules.chosen(text, d.start(), d.end(), len(text)).rules) for d in DIGITS.finditer(text)]
    assert sum(counts) / len(counts) < len(rules.digit) * 0.4
