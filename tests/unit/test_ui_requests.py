"""Pure translations of the web: OpenAI's fields, addresses, languages, sizes in a header, the page's HTML."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import pytest

from pipeline.audio.encode import open_encoder
from pipeline.codes import CODES, CosydError
from pipeline.messages import catalogue
from ui.api.house import can_speak, card_view, freed_bytes
from ui.api.speech_request import translate
from ui.encoding import with_exact_sizes
from ui.errors import error_body, error_response
from ui.language import language_of
from ui.pages.html import clean_page
from ui.paths import tidy_path
from ui.views import event_view, wait_view


def test_what_openai_clients_send_is_understood() -> None:
    wanted = translate(
        {
            "model": "gpt-4o-mini-tts-2025-12-15",
            "input": "hi",
            "voice": {"id": "Alloy"},
            "instructions": "cheerful",
            "response_format": "OPUS",
            "speed": 1.5,
            "seed": 7,
            "lang_code": "en",
            "stream": True,
            "exaggeration": [1],
        }
    )
    assert wanted.fields == {
        "text": "hi", "voice": "Alloy", "format": "opus", "source": "openai", "instruct": "cheerful",
        "speed": 1.5, "seed": 7,
    }  # fmt: skip
    assert (wanted.format, wanted.sse) == ("opus", False)
    assert translate({"input": "x", "voice": None, "seed": "strange"}).fields["voice"] == ""
    assert translate({"input": "x", "stream_format": "sse"}).sse


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"input": 5}, "bad_value", "input"),
        ({"input": "x", "model": 3}, "bad_value", "model"),
        ({"input": "x", "instructions": {}}, "bad_value", "instructions"),
        ({"input": "x", "voice": 3}, "bad_value", "voice"),
        ({"input": "x", "voice": {"id": 3}}, "bad_value", "voice"),
        ({"input": "x", "voice": {}}, "bad_value", "voice"),
        ({"input": "x", "voice": ["a"]}, "bad_value", "voice"),
        ({"input": "x", "response_format": "ogg"}, "unknown_format", None),
        ({"input": "x", "response_format": 3}, "bad_value", "response_format"),
        ({"input": "x", "stream_format": "xml"}, "bad_value", "stream_format"),
    ],
)
def test_wrong_fields_are_named(body: dict[str, Any], code: str, field: str | None) -> None:
    with pytest.raises(CosydError) as caught:
        translate(body)
    assert (caught.value.code, caught.value.params.get("field")) == (code, field)


@pytest.mark.parametrize(
    ("written", "served"),
    [
        ("/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1//models", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("/audio/speech", "/v1/audio/speech"),
        ("/v1/audio/speech/", "/v1/audio/speech"),
        ("/audio/voices", "/v1/audio/voices"),
        ("/models/tts-1", "/v1/models/tts-1"),
        ("/healthz/", "/healthz"),
        ("/api//jobs/", "/api/jobs"),
        ("/", "/"),
        ("/gradio_api//file=x//y/", "/gradio_api//file=x//y/"),
        ("/modelship", "/modelship"),
        ("/audio/else", "/audio/else"),
    ],
)
def test_addresses_as_people_write_them(written: str, served: str) -> None:
    assert tidy_path(written) == served
    assert tidy_path(served) == served


@pytest.mark.parametrize(
    ("query", "sent", "language"),
    [
        ("", {}, "en"),
        ("", {"accept-language": "zh-TW,zh;q=0.9,en;q=0.8"}, "zh"),
        ("", {"accept-language": "de,en;q=0.5"}, "en"),
        ("", {"accept-language": "en", "cookie": "cosyd_lang=zh"}, "zh"),
        ("lang=en", {"accept-language": "zh", "cookie": "cosyd_lang=zh"}, "en"),
        ("lang=zh-CN", {}, "zh"),
        ("lang=fr", {"cookie": "cosyd_lang=<x>"}, "en"),
    ],
)
def test_the_language_of_a_visitor(query: str, sent: dict[str, str], language: str) -> None:
    assert language_of(query, sent) == language


def test_a_whole_wav_tells_its_true_size() -> None:
    encoder = open_encoder("wav")
    streamed = encoder.encode(b"\1\2" * 480) + encoder.finish()
    assert struct.unpack("<I", streamed[40:44])[0] == 0xFFFFFFFF
    with wave.open(io.BytesIO(with_exact_sizes(streamed))) as exact:
        assert (exact.getnframes(), exact.getframerate(), exact.getnchannels()) == (480, 24_000, 1)
    assert with_exact_sizes(b"no wav") == b"no wav"


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("language", ["zh", "en"])
def test_every_code_has_a_sentence_and_a_status(code: str, language: Any) -> None:
    answer = error_response(CosydError(code), language)
    assert answer.status_code == (CODES[code].http or 503)
    body = error_body(CosydError(code), language)["error"]
    assert body["code"] == code and body["message"] and not body["message"].startswith("error.")
    assert ("retry-after" in answer.headers) is (answer.status_code in (429, 503))


def test_retry_after_is_a_whole_number_of_at_least_a_second() -> None:
    for given, shown in ((0.0, "1"), (2.1, "3"), (1e9, "3600")):
        answer = error_response(CosydError("queue_full", retry_after_s=given), "en")
        assert answer.headers["retry-after"] == shown


def test_trouble_with_the_card_comes_with_its_cure_in_the_visitors_language() -> None:
    for state in (None, "ok", "none", "asleep", "unknown", "card_of_tomorrow"):
        assert card_view(state, "en") is None
    seen = card_view("gpu_lost", "en")
    assert seen is not None and seen["word"] == "lost" and "Restart the machine" in seen["message"]
    seen = card_view("throttled_heat", "zh")
    assert seen is not None and "风扇" in seen["message"]


def test_ready_means_that_some_engine_could_speak() -> None:
    assert not can_speak({})
    assert not can_speak({"engines": {}})
    assert not can_speak({"engines": {"a": {"state": "failed"}, "b": {"state": "waiting_memory"}}})
    assert can_speak({"engines": {"a": {"state": "failed"}, "b": {"state": "absent"}}})


@pytest.mark.parametrize(
    ("answer", "freed"),
    [
        ({"freed_bytes": 7}, 7),
        ({"rss_before": 9, "rss_after": 4}, 5),
        ({"rss_before": 4, "rss_after": 9}, 0),
        ({"web": {"rss_before": 9, "rss_after": 4}, "worker:builtin": {"rss_before": 3, "rss_after": 1}}, 7),
        ({"rss_before": None, "rss_after": None}, None),
        (None, None),
    ],
)
def test_what_a_trim_gave_back(answer: Any, freed: int | None) -> None:
    assert freed_bytes(answer) == freed


def test_a_wait_is_told_with_its_numbers() -> None:
    assert wait_view(None, "en") is None
    told = wait_view('{"code": "waiting_memory", "params": {"short_bytes": 2254857830}}', "zh")
    assert told is not None and "2.1 GB" in told["message"]
    assert wait_view("starting", "zh") == {"code": "starting", "message": catalogue("zh")["wait.starting"]}


def test_the_page_names_no_other_host() -> None:
    html = (
        b'<html\n lang="en">\n<meta property="og:url" content="https://gradio.app/" />'
        b'<meta\n\tname="twitter:image"\n content="https://raw.githubusercontent.com/x.jpg"\n/>'
        b'<link rel="preconnect" href="https://fonts.googleapis.com"><meta name="viewport" content="w">'
    )
    cleaned = clean_page(html, "zh")
    assert b"https://" not in cleaned and b'lang="zh-CN"' in cleaned and b"viewport" in cleaned


def test_what_happened_is_told_in_peoples_words() -> None:
    told = event_view("worker_exited", "now", None, {"child": "worker:builtin", "reason": "stop"}, "zh")
    assert told["message"].startswith("语音引擎 builtin 已退出") and "stop" not in told["message"]
    told = event_view("recovered", "now", None, {"child": "web"}, "en")
    assert told["message"] == "The page runs again."
