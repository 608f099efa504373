"""Lines that broke other systems, and the families around them: what must and must not be said.

`reported.jsonl` comes from public reports, `families.jsonl` has our own lines of the same form. Spoken forms are
compared as their README says: without blanks and punctuation, with the usual equivalences.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from pipeline.codes import CosydError
from pipeline.jobs import estimate_seconds, parse_request
from pipeline.text.japanese import can_read_kanji
from pipeline.text.segment import plan

DATA = Path(__file__).parent.parent / "data" / "text"
LONGEST_S = 25.0


@functools.cache
def cases(name: str) -> list[dict[str, Any]]:
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


REPORTED, FAMILIES = cases("reported"), cases("families")

OTHER_FORM = {
    "T027": "the query of a link is left out: the same policy for all links",
    "T070": "particles and long vowels are written as IPADIC gives them",
}
"""Lines of `reported` whose full spoken form may differ from the one written there, with the reason."""


def text_of(case: dict[str, Any]) -> str:
    return str(case["text"]) * int(case.get("gen", {}).get("repeat", 1))


def segments_of(case: dict[str, Any]) -> list[str]:
    planned = plan(text_of(case), longest_s=LONGEST_S, first_short=False, language=case["lang"])
    return [segment.text for segment in planned]


def compared(text: str) -> str:
    """NFKC, lower case, no blanks or punctuation, 幺=一, 〇=零, 两=二, 至=到, 公里=千米."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = "".join(ch for ch in text if unicodedata.category(ch)[0] in "LN")
    for ours, theirs in (("幺", "一"), ("〇", "零"), ("至", "到"), ("公里", "千米"), ("两", "二")):
        text = text.replace(ours, theirs)
    return text


@pytest.mark.parametrize(
    "case", [c for c in REPORTED + FAMILIES if c["expect"]["action"] != "rejected"], ids=lambda c: c["id"]
)
def test_what_must_be_heard_is_and_what_must_not_is_not(case: dict[str, Any]) -> None:
    if case["lang"] == "ja" and not can_read_kanji():
        pytest.skip("the extra [ja] is not installed")
    expect, said = case["expect"], segments_of(case)
    whole = "\n".join(said)
    for words in expect.get("must_contain", []):
        assert words in whole or compared(words) in compared(whole), whole
    for words in expect.get("must_not_contain", []):
        assert words.lower() not in whole.lower(), whole
    if "sentences" in expect:
        assert len(said) == expect["sentences"], said
    assert all(estimate_seconds(piece) <= LONGEST_S for piece in said)


@pytest.mark.parametrize(
    "case",
    [c for c in REPORTED + FAMILIES if c["expect"].get("spoken") and c["id"] not in OTHER_FORM],
    ids=lambda c: c["id"],
)
def test_the_full_spoken_form_is_one_of_those_accepted(case: dict[str, Any]) -> None:
    expect = case["expect"]
    accepted = [compared(form) for form in (expect["spoken"], *expect.get("also_ok", []))]
    assert compared("".join(segments_of(case))) in accepted


@pytest.mark.parametrize(
    "case", [c for c in REPORTED + FAMILIES if c["expect"]["action"] == "rejected"], ids=lambda c: c["id"]
)
def test_what_says_nothing_or_too_much_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(CosydError) as caught:
        parse_request({"text": text_of(case), "voice": "heart"}, max_chars=16_384)
    assert caught.value.code in ("empty_text", "text_too_long")


def test_forty_repeats_without_a_mark_are_all_spoken_and_no_word_is_cut() -> None:
    by_id = {case["id"]: case for case in REPORTED}
    said = "".join(segments_of(by_id["T051"]))
    assert said.count("春眠不觉晓处处闻啼鸟") == 40
    assert " ".join(segments_of(by_id["T053"])) == by_id["T053"]["text"]


def test_there_are_many_lines_of_our_own_in_every_family() -> None:
    assert len(FAMILIES) >= 150
    assert {case["case"] for case in REPORTED} <= {case["case"] for case in FAMILIES}
    assert len({case["id"] for case in FAMILIES}) == len(FAMILIES)
    assert all(re.fullmatch(r"F\d{3}", case["id"]) for case in FAMILIES)
