"""Reading out: never an exception, never silence, no word lost, places true, work in proportion to the text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.jobs import has_words
from pipeline.text.normalize import normalize_edits
from pipeline.text.segment import plan
from tests.unit.workcount import lines_run

SIGNS = st.lists(
    st.one_of(
        st.sampled_from(
            list("0123456789.,:/-~+%°℃$¥€£#@&*()[]<>|'\" \n年月日点分元个第abcXYZ你好，。！ⅧIVX①½²_^=")
        ),
        st.sampled_from(
            "AM p.m. km kg http://a.com 2024-02-30 99:99 1/0 0/0 v1.2 +86 <b> </b> [h] [ào] ``` ** &amp; é か 漢字 한 ж 😀"
            " \u200d \ufe0f １２ ٣ Dr. No. 3rd -5 1,000 10^ ₂ ㎡ 1.2.3.4.5 US$ 138 0013 00 000".split(" ")
        ),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=30,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(SIGNS, st.sampled_from(["auto", "zh", "en", "ja", "ko", "de", "fr", "ru", "yue", "th"]))
@example("```\n0\n```", "zh")
@example("٣", "ar")
def test_any_text_is_read_without_an_exception_and_never_becomes_silent(text: str, language: str) -> None:
    planned = plan(text, longest_s=25, first_short=True, language=language)
    wanted = has_words(text.replace("[pause]", ""))
    assert bool(planned) == wanted or not has_words(text)
    end = 0
    for segment in planned:
        assert end <= segment.start <= segment.end <= len(text)
        end = segment.end


WORDS = {
    "zh": "今天 市场 价格 上涨 他们 说 银行 开门 比较 大约 已经 完成".split(),
    "en": "market price rose today they said bank opens about nearly completed while".split(),
}
NUMBERS = (
    "3 12 1998 2024-02-29 08:05 3:2 50% -3℃ $1,299.50 1/3 3-5 v2.10.3 192.168.1.1 138001380001 5km 1.5 007 ½ x² 10^6 #3"
    " ~5 2×3 ± 100+ 😀 a@b.com 1990s 21st"
).split()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["zh", "en"]), st.data())
def test_the_words_around_numbers_are_all_spoken_in_order(language: str, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(WORDS[language]), min_size=1, max_size=12))
    between = data.draw(st.lists(st.sampled_from(["", *NUMBERS]), min_size=len(words), max_size=len(words)))
    text = " ".join(part for pair in zip(words, between, strict=True) for part in pair if part)
    said = "\n".join(s.text for s in plan(text, longest_s=25, first_short=False, language=language))
    at = 0
    for word in words:
        found = said.find(word, at)
        assert found >= 0, (word, said)
        at = found + len(word)


@given(SIGNS, st.sampled_from(["auto", "zh", "en"]))
@settings(max_examples=100, deadline=None)
def test_protected_stretches_are_not_touched(text: str, language: str) -> None:
    half = len(text) // 2
    for start, end, _ in normalize_edits(text, language, [(half // 2, half)]):
        assert end <= half // 2 or start >= half


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("他说：It costs $5 in 2024.", "zh", "他说：It costs five dollars in twenty twenty four."),
        ("今天很好。It costs about $5 today, he said. 一共5元。", "zh",
         "今天很好。 It costs about five dollars today, he said. 一共五元。"),
        ("It costs about $5 today, he said.\n一共5元。", "zh", "It costs about five dollars today, he said. 一共五元。"),
        ("It was 5 km.\n一共5元。", "en", "It was five kilometers. 一共五元。"),
        ("50%", "zh", "百分之五十"),
        ("50%", "en", "fifty percent"),
        ("50%", "auto", "fifty percent"),
    ],
)  # fmt: skip
def test_the_request_s_language_decides_and_other_sentences_keep_theirs(
    text: str, language: str, expected: str
) -> None:
    assert (
        " ".join(s.text for s in plan(text, longest_s=60, first_short=False, language=language)) == expected
    )


@pytest.mark.parametrize(
    "unit",
    ["在2024年3月5日，价格$1,299.50，涨12.5%。", "On March 5, 2024 it cost $1,299.50. ", "1-", "1:", "1/2 ", "a1", "1.",
     "$", "[h][ào]", "[a", "<b>", "<", "&amp;", "<|", "http://a.b/", "a@b.", "１２", "第3-5页", "½", "(1"],
)  # fmt: skip
@pytest.mark.parametrize("language", ["zh", "en"])
def test_work_grows_with_the_length_and_no_faster(unit: str, language: str) -> None:
    def work(count: int) -> int:
        return lines_run(lambda: plan(unit * count, longest_s=25, first_short=True, language=language))

    small = 400 // len(unit) + 1
    work(1)  # expressions are compiled when they are first needed
    assert work(small * 4) <= 5 * work(small) + 400
