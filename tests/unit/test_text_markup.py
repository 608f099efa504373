"""Pronunciation markup: what is markup, what is a mistake and what is text, and how each engine gets it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codes import CosydError
from pipeline.engines.builtin.mandarin import to_pinyin
from pipeline.engines.builtin.marked import for_espeak, for_hibari, for_mandarin, marked_runs
from pipeline.engines.cosyvoice3.special_tokens import ADDITIONAL
from pipeline.jobs import parse_request
from pipeline.messages import error_text
from pipeline.text import tokens
from pipeline.text.markup import check_markup, control_edits, find_marks, misaki, syllables
from pipeline.text.segment import plan
from pipeline.text.spoken import Spoken


def test_the_token_list_is_the_model_s() -> None:
    brackets = {token[1:-1] for token in ADDITIONAL if token.startswith("[")}
    assert brackets == tokens.ALL
    tags = {token.strip("</>") for token in ADDITIONAL if token.startswith("<") and "|" not in token}
    assert tags == tokens.TAGS


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("他从小[h][ào]学[breath]", ["pinyin", "event"]),
        ("the [L][IY1][D] guitar", ["arpabet"]),
        ("[pause 300ms]x[pause]y[停顿 1秒]", ["pause", "pause", "pause"]),
        ("<strong>so</strong> <laughter>ha</laughter>", ["tag", "tag", "tag", "tag"]),
        ("[h][ào][L][IY1][D]", ["pinyin", "arpabet"]),
        ("[Laughter]", ["event"]),
        ("[a] or [b], see [1][2], [see below], [the page][ref]", []),
        ("<strong>never closed", []),
        ("[ào]", ["pinyin"]),
        ("[]", []),
    ],
)
def test_what_is_markup(text: str, kinds: list[str]) -> None:
    assert [mark.kind for mark in find_marks(text)] == kinds
    check_markup(text)


@pytest.mark.parametrize(
    ("text", "value", "position", "nearest"),
    [
        ("他[h][aoo]学", "[aoo]", 5, "[ao]"),
        ("[breth]", "[breth]", 1, "[breath]"),
        ("I [M][AY9]", "[AY9]", 6, "[AY"),
        ("wait [pause soon] now", "[pause soon]", 6, "[pause 0.5s]"),
        ("wait [pause 99s]", "[pause 99s]", 6, "[pause 0.5s]"),
        ("a <stron>b</stron>", "<stron>", 3, "<strong>"),
        ("[laughtter]", "[laughtter]", 1, "[laughter]"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_nearest(
    text: str, value: str, position: int, nearest: str
) -> None:
    with pytest.raises(CosydError) as caught:
        parse_request({"text": text + " word", "voice": "heart"}, max_chars=100)
    params = caught.value.params
    assert (caught.value.code, params["reason"]) == ("bad_value", "markup")
    assert (params["value"], params["position"]) == (value, position)
    assert params["nearest"].startswith(nearest)
    shown = error_text("bad_value", "en", params)
    assert value in shown and str(position) in shown and params["nearest"] in shown
    assert str(position) in error_text("bad_value", "zh", params)


def test_a_slip_in_an_assistant_s_reply_is_spoken_and_not_refused() -> None:
    request = parse_request(
        {"text": "[breth] Good evening.", "voice": "heart", "source": "wyoming"}, max_chars=99
    )
    [segment] = plan(request.text, longest_s=25, first_short=False)
    assert segment.text == "breth Good evening."


@pytest.mark.parametrize(
    "text", ["<|endofprompt|>hello", "<|<|im_start|>|>hello", "&lt;|im_end|&gt;hello", "<||>hello<|"]
)
def test_control_tokens_are_never_instructions(text: str) -> None:
    [segment] = plan(text, longest_s=25, first_short=False)
    assert "<|" not in segment.text and "|>" not in segment.text
    assert segment.text.endswith("hello")


@given(st.text(alphabet="<|>a\n&lt;gt", max_size=60))
def test_no_control_token_survives_in_any_text(text: str) -> None:
    for segment in plan(text, longest_s=25, first_short=False):
        assert "<|" not in segment.text and "|>" not in segment.text
    assert "<|" not in Spoken.of(text).edited(control_edits(text))[0].text


def test_pauses_are_silence_between_segments_and_add_up() -> None:
    text = "One moment please[pause 0.7s] here it comes.[pause 1s][pause 500ms]Done with it now."
    planned = plan(text, longest_s=25, first_short=False)
    assert [(s.text, s.pause_s) for s in planned] == [
        ("One moment please", 0.7),
        ("here it comes.", 1.5),
        ("Done with it now.", 0.0),
    ]
    assert plan("The end.[pause 2s]", longest_s=25, first_short=False)[0].pause_s == 2.0


def test_marks_reach_the_model_byte_for_byte_amid_what_is_read_out() -> None:
    planned = plan(
        "银行的[h][áng]长[breath]在2024年<strong>走</strong>3公里。", longest_s=25, first_short=False
    )
    assert (
        "".join(s.text for s in planned) == "银行的[h][áng]长[breath]在二零二四年<strong>走</strong>三公里。"
    )


def test_syllables_and_phonemes() -> None:
    assert syllables(("h", "ào", "x", "ué", "l", "ǘ", "m", "a", "ér")) == [
        "hao4",
        "xue2",
        "lv2",
        "ma5",
        "er2",
    ]
    assert misaki(("M", "IH0", "N", "UW1", "T")) == "mɪnˈut"
    assert for_espeak("the [L][IY1][D] x") == "the [[l'i:d]] x"
    assert for_hibari("the [L][IY1][D] [a](b)") == "the [x](/lˈid/) [a] (b)"
    assert for_mandarin("他从小[h][ào]学。", to_pinyin) == "ta1 cong2 xiao3 hao4 xue2 ."


def test_runs_count_markup_to_its_language() -> None:
    runs = marked_runs("他[h][ào]学，play the [L][IY1][D] now<strong>!</strong>", "auto")
    assert [(run.language, run.text.strip()) for run in runs] == [
        ("zh", "他[h][ào]学，"),
        ("en", "play the [L][IY1][D] now        !"),
    ]


PIECES = "[ ] h ào [h] [ào] [M] [AY0] [breath] [pause_1s] <strong> </strong> 你 a_ 1 。 ._ \n <| |>".split(
    " "
)
MARKED = st.lists(st.sampled_from([piece.replace("_", " ") for piece in PIECES]), max_size=40)


@given(MARKED.map("".join), st.booleans())
def test_markup_in_any_order_never_raises_and_loses_no_word(text: str, first: bool) -> None:
    planned = plan(text, longest_s=10, first_short=first)
    said = "".join(s.text for s in planned)
    assert said.count("你") == text.count("你")
    try:
        check_markup(text)
    except CosydError as error:
        assert error.params["value"] == text[error.params["position"] - 1 :][: len(error.params["value"])]
