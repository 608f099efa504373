"""Cutting text into segments: nothing lost, nothing twice, nothing too long, and cut where a reader would."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.engines.base import Segment
from pipeline.jobs import estimate_seconds, has_words
from pipeline.text.front import prepare
from pipeline.text.japanese import can_read_kanji
from pipeline.text.segment import FIRST_SHORT_S, PAUSE_S, plan
from tests.unit.workcount import lines_run


def cut(text: str, **more: object) -> list[str]:
    options = {"longest_s": 25.0, "first_short": False, "speed": 1.0} | more
    return [segment.text for segment in plan(text, **options)]  # type: ignore[arg-type]


def letters(text: str) -> str:
    """What can be heard: letters and digits, without what only shows."""
    return "".join(ch for ch in text if unicodedata.category(ch)[0] in "LN")


def front(text: str, language: str) -> str:
    return prepare(text, language=language).spoken.text


PROSE = st.text(
    alphabet=st.one_of(
        st.sampled_from(
            "abcdeAB 12 \n\t.,!?;:'\"()-…—。，！？；：“”、「」你好世界天地か한ж é\u0301👍\u200d①"
        ),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=400,
)


@settings(max_examples=300, deadline=None)
@given(
    PROSE,
    st.floats(0.5, 40),
    st.booleans(),
    st.floats(0.25, 4),
    st.sampled_from(["auto", "zh", "en", "ja"]),
)
@example("1.\n\n2.\n- a", 1.0, True, 1.0, "auto")
def test_every_word_is_in_exactly_one_segment_in_order_and_within_the_limit(
    text: str, longest_s: float, first_short: bool, speed: float, language: str
) -> None:
    segments = plan(text, longest_s=longest_s, first_short=first_short, speed=speed, language=language)
    end = 0
    for idx, s in enumerate(segments):
        assert s.idx == idx
        assert end <= s.start <= s.end <= len(text)
        assert not letters(text[end : s.start]), "nothing is lost between two segments"
        assert has_words(s.text)
        assert s.text == " ".join(s.text.split())
        one_letter = 1 / 4.5 / speed
        assert estimate_seconds(s.text, speed) <= max(longest_s, one_letter) + 1e-9
        end = s.end
    assert not letters(text[end:])
    assert bool(segments) == has_words(front(text, language))
    assert "".join(letters(s.text) for s in segments) == letters(front(text, language))
    assert not segments or segments[-1].pause_s == 0
    again = plan(text, longest_s=longest_s, first_short=first_short, speed=speed, language=language)
    assert again == segments


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abc de\n,.你好。们！?", max_size=300))
def test_words_without_signs_are_spoken_as_they_are_written(text: str) -> None:
    segments = plan(text, longest_s=25, first_short=False, language="zh")
    assert "".join(letters(s.text) for s in segments) == letters(text)
    for s in segments:
        assert "".join(text[s.start : s.end].split()) == "".join(s.text.split())


@settings(max_examples=150, deadline=None)
@given(PROSE, st.sampled_from(["markdown", "ssml"]))
def test_markup_never_raises_and_offsets_stay_in_order(text: str, markup: str) -> None:
    segments = plan(text, longest_s=10, first_short=True, markup=markup)  # type: ignore[arg-type]
    end = 0
    for s in segments:
        assert end <= s.start <= s.end <= len(text)
        end = s.end


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith moved to the U.S. in 1999.",
        "Pi is 3.14159 and the file is 1.5 GB.",
        "The U.S. Army met J. R. R. Tolkien and Mrs. Jones, etc. at the gate.",
        "See fig. 3, e.g. the part that Prof. Miller drew, i.e. the left one.",
        "Mail me at jane.doe@example.com or look at https://example.com/a.b?c=d, please.",
        "请升级到v2.10.3版本。",
        "文档在https://example.com/docs?id=7里。",
        '"Is that so?" he asked.',
        "He asked (was it Tuesday?) and left.",
        "Apples, pears and plums\nwere on the table that day.",
    ],
)
def test_one_sentence_stays_one_segment(text: str) -> None:
    assert len(cut(text)) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The train was very late. We waited at the gate! Was it worth the wait?",
            ["The train was very late.", "We waited at the gate!", "Was it worth the wait?"],
        ),
        (
            'She said "We will go there." Then nobody answered her.',
            ['She said "We will go there."', "Then nobody answered her."],
        ),
        (
            "今天天气非常好。我们一起去公园吧！你觉得怎么样呢？",
            ["今天天气非常好。", "我们一起去公园吧！", "你觉得怎么样呢？"],
        ),
        (
            "他说：“明天我们去爬山。”她没有回答他的话。",
            ["他说：“明天我们去爬山。”", "她没有回答他的话。"],
        ),
        ("1. 打开电源\n2. 按住3秒\n3. 松手", ["一，打开电源", "二，按住三秒", "三，松手"]),
        ("标题在这里\n正文第一句\r\n正文第二句", ["标题在这里", "正文第一句", "正文第二句"]),
        ("Chapter One\n\nThe bus was late again.", ["Chapter One", "The bus was late again."]),
        (
            "He arrived at 5 p.m. The doors were already closed.",
            ["He arrived at five P M.", "The doors were already closed."],
        ),
        (
            "They moved to the U.S. The house was bigger than before.",
            ["They moved to the U S.", "The house was bigger than before."],
        ),
        ("真的吗？！我完全不敢相信……他居然走了。", ["真的吗？！", "我完全不敢相信……", "他居然走了。"]),
        (
            "are you sure about that? i am quite sure of it.",
            ["are you sure about that?", "i am quite sure of it."],
        ),
    ],
)
def test_sentences_and_lines_are_cut_where_they_end(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_ten_normal_sentences_give_ten_segments_and_short_ones_are_merged() -> None:
    text = " ".join(f"This is the sentence with the number {n}." for n in range(1, 11))
    assert len(cut(text)) == 10
    assert cut("Hi. How are you doing today? Fine.") == ["Hi. How are you doing today? Fine."]
    assert cut("好。我们现在就出发去机场。") == ["好。我们现在就出发去机场。"]


def test_a_hard_wrapped_paragraph_is_prose_and_not_a_list() -> None:
    text = (
        "The old lighthouse on the northern shore had been dark for\n"
        "forty years when Maria bought it from the harbour office\n"
        "and moved in with two cats. Nobody had expected that.\n"
    )
    assert cut(text) == [
        "The old lighthouse on the northern shore had been dark for forty years when Maria bought it from "
        "the harbour office and moved in with two cats.",
        "Nobody had expected that.",
    ]


def test_a_sentence_above_the_limit_is_cut_at_its_clauses() -> None:
    pieces = cut("今天先去菜场再去银行，" * 40)
    assert all(piece.endswith("，") for piece in pieces)
    assert "".join(pieces) == "今天先去菜场再去银行，" * 40
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 12, "about equally long"


def test_text_without_marks_is_cut_between_words_and_then_anywhere() -> None:
    walked = "so we walked on and talked about the weather and then " * 30 + "stopped"
    pieces = cut(walked)
    assert " ".join(pieces) == walked
    assert "".join(cut("春眠不觉晓处处闻啼鸟" * 40)) == "春眠不觉晓处处闻啼鸟" * 40
    assert "".join(cut("x" * 5000)) == "x" * 5000


def test_an_accent_stays_with_its_letter() -> None:
    for piece in cut("e\u0301" * 900, longest_s=3.0):
        assert piece.startswith("e")


@pytest.mark.parametrize(
    "text",
    [
        "When the rain had stopped, the children ran out into the garden and looked for snails and frogs.",
        "虽然外面下着很大的雨，孩子们还是高高兴兴地跑到花园里去找蜗牛和青蛙，直到天黑才回家。",
        "this text has no mark at all but it goes on and on for quite a while so that it must be cut",
    ],
)
def test_the_first_piece_of_an_interactive_job_is_short(text: str) -> None:
    segments = plan(text, longest_s=25, first_short=True)
    assert 0.8 <= estimate_seconds(segments[0].text) <= FIRST_SHORT_S
    assert len(segments) == 2
    assert len(plan(text, longest_s=25, first_short=False)) == 1


def test_pauses_follow_what_ends_a_piece_and_the_speed() -> None:
    text = (
        "When the long rain had stopped at last, the children ran out to the garden. They stayed there.\n\n"
        "It was late by then."
    )
    segments = plan(text, longest_s=3.5, first_short=False)
    assert [s.pause_s for s in segments] == [0.12, 0.35, 0.6, 0.0]
    assert [s.pause_s for s in plan(text, longest_s=1.75, first_short=False, speed=2.0)] == [
        0.06,
        0.175,
        0.3,
        0,
    ]
    assert list(PAUSE_S.values()) == sorted(PAUSE_S.values())


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "字",
        "a b ",
        "a,b. ",
        ".",
        " ",
        "\n",
        "a@",
        "1. ",
        "U.S. ",
        '".',
        "测试。",
        "a\u0301",
        "(",
        "…",
        "- \n",
    ],
)
@pytest.mark.parametrize("markup", ["plain", "markdown"])
def test_work_grows_with_the_length_and_no_faster(unit: str, markup: str) -> None:
    def work(count: int) -> int:
        return lines_run(lambda: plan(unit * count, longest_s=25, first_short=True, markup=markup))  # type: ignore[arg-type]

    small = 1_200 // len(unit)
    assert work(small * 4) <= 4.5 * work(small) + 200


def test_each_segment_is_told_its_language_only_where_it_cannot_tell() -> None:
    def languages(text: str, language: str = "auto") -> list[str]:
        return [s.language for s in plan(text, longest_s=25, first_short=False, language=language)]

    assert languages("今天天气很好，我们出去玩。\n2024") == ["auto", "auto"], "二零二四 tells"
    tokyo = languages("明日は東京で会議があります。\n東京都港区芝公園")
    assert tokyo == ["auto", "auto" if can_read_kanji() else "ja"], "katakana tells"
    assert languages("50%", "zh") == ["zh"]


@pytest.mark.parametrize("text", ["", "   \n\t ", "……！？。，", "... ! ? ...", "👍🏽", "---\n***"])
def test_nothing_to_say_gives_no_segment(text: str) -> None:
    assert plan(text, longest_s=25, first_short=True) == []


def test_a_line_of_signs_is_left_out() -> None:
    segments = plan("First part of it.\n\n* * *\n\nSecond part of it.", longest_s=25, first_short=False)
    assert [(s.text, s.pause_s) for s in segments] == [
        ("First part of it.", 0.6),
        ("Second part of it.", 0.0),
    ]
    assert isinstance(segments[0], Segment)
