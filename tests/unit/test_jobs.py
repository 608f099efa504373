"""Requests: what is taken, what is refused and with which code, whatever strange things arrive."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codes import CODES, CosydError
from pipeline.jobs import (
    FORMATS,
    MODES,
    SEED_MAX,
    JobRequest,
    Lane,
    choose_lane,
    clean_text,
    draw_seed,
    estimate_seconds,
    has_words,
    is_han,
    new_job_id,
    parse_request,
    request_from_json,
)
from pipeline.messages import error_text

LIMIT = 200


def parse(**fields: Any) -> JobRequest:
    return parse_request({"text": "Hello.", "voice": "heart", **fields}, max_chars=LIMIT)


def refused(**fields: Any) -> CosydError:
    with pytest.raises(CosydError) as caught:
        parse(**fields)
    return caught.value


def test_a_bare_request_gets_the_defaults() -> None:
    assert parse() == JobRequest(text="Hello.", voice="heart")
    assert parse().seed is None
    assert parse().instruct is None


@pytest.mark.parametrize(
    "text",
    [
        None, "", " ", "\n\t", "...", "？！……", "—", "🙂", "👩‍👩‍👧", "\u200b\u200d", "\x00\x01\x1b",
        "\ud800", "()[]{}",
        "\u0301", "\ufeff", "***", "\ue000",
    ],
)  # fmt: skip
def test_text_without_anything_to_say_is_empty_text(text: str | None) -> None:
    assert refused(text=text).code == "empty_text"


def test_a_missing_text_is_empty_text() -> None:
    with pytest.raises(CosydError) as caught:
        parse_request({"voice": "heart"}, max_chars=LIMIT)
    assert caught.value.code == "empty_text"


@pytest.mark.parametrize("text", ["a", "7", "你", "  é ", "٣", "α", "ก", "😀 ok", "①"])
def test_one_letter_or_digit_of_any_script_is_enough(text: str) -> None:
    assert has_words(parse(text=text).text)


def test_text_too_long_tells_length_and_limit() -> None:
    error = refused(text="a" * (LIMIT + 1))
    assert (error.code, error.params) == ("text_too_long", {"length": LIMIT + 1, "limit": LIMIT})
    assert parse(text="字" * LIMIT).text == "字" * LIMIT


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("a\x00b", "a b"), ("a\x1b[31mb", "a [31mb"), ("a\r\nb\rc", "a\nb\nc"), ("e\u0301", "é"),
        ("x\ud800y", "x y"), ("a\x7fb", "a b"), ("a\x85b", "a b"), ("tab\there", "tab\there"),
        ("\ue000a", " a"), ("中\u200b文", "中\u200b文"),
    ],
)  # fmt: skip
def test_control_characters_are_dropped_and_text_is_nfc(given_text: str, kept: str) -> None:
    assert clean_text(given_text) == kept


NOT_TEXTS: list[Any] = [0, 1.5, True, [], ["a"], {}, {"a": 1}, b"bytes"]


@pytest.mark.parametrize("text", NOT_TEXTS)
def test_text_of_a_wrong_type_is_bad_value(text: Any) -> None:
    error = refused(text=text)
    assert (error.code, error.params["field"], error.params["reason"]) == ("bad_value", "text", "not_text")


@pytest.mark.parametrize(
    "voice",
    [
        None, "", " ", "Heart", "a b", "../etc/passwd", "a/b", "a\x00", "-a", "_a", "a" * 65, "声音",
        "a.b", "heart\n",
        {"id": "heart"}, 7, True, ["heart"], "\ud800", "a" * 100_000,
    ],
)  # fmt: skip
def test_a_malformed_voice_is_unknown_voice(voice: Any) -> None:
    error = refused(voice=voice)
    assert error.code == "unknown_voice"
    assert len(error.params["voice"]) <= 80
    error.params["voice"].encode()  # goes into a JSON answer


@pytest.mark.parametrize("voice", ["a", "0", "heart", "a-b_c", "a" * 64, "123-voice"])
def test_a_well_formed_voice_is_taken(voice: str) -> None:
    assert parse(voice=voice).voice == voice


@pytest.mark.parametrize(
    "speed",
    [
        0,
        0.0,
        -1,
        0.2499,
        4.0001,
        9,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        -(10**400),
        pytest.param(10**5000, id="5000-digits"),
        5e-324,
    ],
)
def test_speed_out_of_range_is_refused_with_the_range(speed: Any) -> None:
    error = refused(speed=speed)
    assert (error.code, error.params["field"], error.params["reason"]) == (
        "bad_value",
        "speed",
        "out_of_range",
    )
    assert "0.25" in error_text(error.code, "en", error.params)


@pytest.mark.parametrize("speed", ["1", "fast", None, True, False, [], {}, [1.0], 1 + 0j])
def test_speed_that_is_no_number_is_refused(speed: Any) -> None:
    assert refused(speed=speed).params["reason"] == "not_a_number"


@pytest.mark.parametrize("speed", [0.25, 1, 1.0, 4, 4.0, 2])
def test_speed_becomes_a_float(speed: float) -> None:
    taken = parse(speed=speed).speed
    assert taken == speed
    assert type(taken) is float


@pytest.mark.parametrize(
    "seed", [-1, SEED_MAX + 1, 1.0, "1", True, [], {}, pytest.param(10**5000, id="5000-digits"), math.nan]
)
def test_a_seed_out_of_range_or_of_a_wrong_type_is_refused(seed: Any) -> None:
    error = refused(seed=seed)
    assert (error.code, error.params["field"]) == ("bad_value", "seed")
    assert len(error.params["value"]) <= 80


@pytest.mark.parametrize("seed", [None, 0, 1, SEED_MAX])
def test_a_good_seed_is_taken(seed: int | None) -> None:
    assert parse(seed=seed).seed == seed


@pytest.mark.parametrize("value", ["", "MP3", "ogg", "wav ", None, 1, True, [], {}, "m4a", ["mp3"]])
def test_an_unknown_format_names_the_known_ones(value: Any) -> None:
    error = refused(format=value)
    assert error.code == "unknown_format"
    assert error.params["allowed"] == "wav, flac, mp3, opus, aac, pcm"


@pytest.mark.parametrize("name", ["mode", "markup", "source"])
@pytest.mark.parametrize("value", ["", "nonsense", None, 1, [], {}, True])
def test_a_value_outside_a_closed_set_names_the_set(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error.code, error.params["field"], error.params["reason"]) == ("bad_value", name, "not_one_of")
    assert error.params["allowed"]


@pytest.mark.parametrize("language", ["auto", "en", "zh", "zh-CN", "pt-BR", "zh-Hans-CN", "yue", "EN"])
def test_language_tags_are_taken(language: str) -> None:
    assert parse(language=language).language == language


@pytest.mark.parametrize(
    "language", ["", "e", "english!", "en_US", "en-", "-en", "zh CN", None, 1, [], "en\n", "中文"]
)
def test_what_is_no_language_tag_is_refused(language: Any) -> None:
    assert refused(language=language).params["reason"] == "not_a_language"


@pytest.mark.parametrize("name", ["client", "owner"])
@pytest.mark.parametrize("value", [None, 1, [], {}, True])
def test_client_and_owner_must_be_text(name: str, value: Any) -> None:
    assert refused(**{name: value}).params == {"field": name, "reason": "not_text"}


@pytest.mark.parametrize("value", [1, [], {}, True])
def test_instruct_must_be_text_or_nothing(value: Any) -> None:
    assert refused(instruct=value).params == {"field": "instruct", "reason": "not_text"}
    assert parse(instruct=None).instruct is None
    assert parse(instruct="happily").instruct == "happily"


@pytest.mark.parametrize("name", ["client", "owner", "instruct"])
def test_free_texts_lose_what_no_database_can_hold(name: str) -> None:
    value = getattr(parse(**{name: "a\ud800\x00b"}), name)
    assert value == "a  b"


@pytest.mark.parametrize(
    "key", ["lang_code", "Text", "", "__class__", "v2", "request", "self", "\ud800", "x" * 10_000]
)
def test_an_unknown_key_is_an_error(key: str) -> None:
    error = refused(**{key: 1})
    assert (error.code, error.params["reason"]) == ("bad_value", "unknown_key")
    assert len(error.params["field"]) <= 80
    assert "speed" in error.params["allowed"]


@pytest.mark.parametrize("version", [0, 2, "1", None, True, [], -1])
def test_another_version_is_refused(version: Any) -> None:
    assert refused(v=version).params["field"] == "v"


def test_the_callers_table_is_left_alone() -> None:
    fields = {"v": 1, "text": "a\r\nb", "voice": "heart", "speed": 1}
    before = dict(fields)
    parse_request(fields, max_chars=LIMIT)
    assert fields == before


_ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("aZ0é中\ud800\x00 .-_",
    max_size=6)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner,
    max_size=2),
    max_leaves=3,
)  # fmt: skip
_KEYS = ["v", "text", "voice", "language", "mode", "instruct", "speed", "seed", "markup", "format",
"source", "client", "owner", "more"]  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=8))
def test_anything_is_either_taken_or_refused_with_a_code_that_can_be_told(fields: dict[str, Any]) -> None:
    try:
        request = parse_request(fields, max_chars=LIMIT)
    except CosydError as error:
        assert CODES[error.code].http == 400
        for language in ("zh", "en"):
            error_text(error.code, language, error.params).encode()
        json.dumps(error.params)
    else:
        request.to_json().encode()


@settings(deadline=None)
@given(
    text=st.text("aZ.。你 é\n\r\u0301\x00🙂1", min_size=1, max_size=40),
    speed=st.floats(0.25, 4.0),
    seed=st.none() | st.integers(0, SEED_MAX),
    mode=st.sampled_from(MODES),
    format=st.sampled_from(FORMATS),
    instruct=st.none() | st.text("a中\x00", max_size=5),
)
def test_what_is_stored_reads_back_the_same(text: str, **fields: Any) -> None:
    try:
        request = parse_request({"text": text, "voice": "heart", **fields}, max_chars=LIMIT)
    except CosydError as error:
        assert error.code == "empty_text"
        return
    assert request_from_json(request.to_json()) == request


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '"x"', "[" * 100_000, "nan"])
def test_a_stored_request_that_nobody_wrote_is_bad_value(text: str) -> None:
    with pytest.raises(CosydError) as caught:
        request_from_json(text)
    assert (caught.value.code, caught.value.params["reason"]) == ("bad_value", "not_json")


@pytest.mark.parametrize(
    ("source", "length", "lane"),
    [
        ("wyoming", 1, Lane.interactive), ("wyoming", 17_000, Lane.interactive), ("openai", 299,
        Lane.interactive),
        ("openai", 300, Lane.page), ("api", 299, Lane.interactive), ("api", 16_384, Lane.page),
        ("page", 5, Lane.page), ("cli", 5, Lane.page), ("page", 16_385, Lane.batch), ("openai", 16_385,
        Lane.batch),
    ],
)  # fmt: skip
def test_the_lane_follows_source_and_length(source: Any, length: int, lane: Lane) -> None:
    request = JobRequest(text="a" * length, voice="heart", source=source)
    assert choose_lane(request, interactive_chars=300, text_chars=16_384) is lane


def test_lanes_are_ordered_with_the_impatient_first() -> None:
    assert sorted(Lane) == [Lane.interactive, Lane.page, Lane.batch]


@pytest.mark.parametrize(
    ("text", "speed", "seconds"),
    [("", 1, 0), ("你" * 45, 1, 10), ("a" * 150, 1, 10), ("a " * 150, 1, 10), ("你" * 45, 2, 5),
    ("你" * 45 + "a" * 150, 0.5, 40)],
)  # fmt: skip
def test_seconds_of_speech_are_estimated_from_han_and_letters(
    text: str, speed: float, seconds: float
) -> None:
    assert estimate_seconds(text, speed) == pytest.approx(seconds)


@pytest.mark.parametrize("ch", "你㐀𠀀豈")
def test_han_of_all_planes_is_han(ch: str) -> None:
    assert is_han(ch)


@pytest.mark.parametrize("ch", "a1。カ한 é")
def test_other_scripts_are_not_han(ch: str) -> None:
    assert not is_han(ch)


def test_ids_are_16_hex_digits_and_differ() -> None:
    ids = {new_job_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in ids)


def test_drawn_seeds_are_in_range_and_differ() -> None:
    seeds = [draw_seed() for _ in range(50)]
    assert all(0 <= seed <= SEED_MAX for seed in seeds)
    assert len(set(seeds)) > 40
