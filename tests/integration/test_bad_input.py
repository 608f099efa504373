"""Bad input and bad surroundings: each has its code, none a traceback, none a dead worker."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.service import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("bad") / "state") as running:
        assert running.speech("Number 1 starts the engine.").status_code == 200
        yield running


def check_refusal(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert len(error["message"]) > 10, "a message a person can act on"
    assert "Traceback" not in response.text and 'File "' not in response.text


OK_BODY: dict[str, Any] = {
    "model": "tts-1",
    "input": "All is well with number 5.",
    "voice": "numbers",
    "response_format": "pcm",
}


@pytest.mark.parametrize(
    "change, code",
    [
        ({"input": ""}, "empty_text"),
        ({"input": "   \t\n"}, "empty_text"),
        ({"input": "... ! ? ..."}, "empty_text"),
        ({"input": "。。。！？"}, "empty_text"),
        ({"input": "\u200b\u200b\ufeff"}, "empty_text"),
        ({"input": "\x00\x01\x07"}, "empty_text"),
        ({"input": "a" * 16_385}, "text_too_long"),
        ({"input": None}, "empty_text"),
        ({"input": 5}, "bad_value"),
        ({"input": ["a"]}, "bad_value"),
        ({"voice": "nobody"}, "unknown_voice"),
        ({"voice": "../../etc/hostname"}, "unknown_voice"),
        ({"voice": "/etc/passwd"}, "unknown_voice"),
        ({"voice": "a\x00b"}, "unknown_voice"),
        ({"voice": "..\\..\\x"}, "unknown_voice"),
        ({"voice": 5}, "bad_value"),
        ({"voice": {"id": "nobody"}}, "unknown_voice"),
        ({"voice": {}}, "bad_value"),
        ({"response_format": "midi"}, "unknown_format"),
        ({"response_format": 7}, "bad_value"),
        ({"speed": 0}, "bad_value"),
        ({"speed": 9}, "bad_value"),
        ({"speed": -1}, "bad_value"),
        ({"speed": "fast"}, "bad_value"),
        ({"speed": True}, "bad_value"),
        ({"stream_format": "smoke"}, "bad_value"),
    ],
)
def test_a_wrong_field_is_named(service: Service, change: dict[str, Any], code: str) -> None:
    check_refusal(service.http.post("/v1/audio/speech", json=OK_BODY | change), 400, code)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"input": "x", "speed": NaN, "voice": "numbers"}',
        b'{"input": "x", "speed": Infinity, "voice": "numbers"}',
        b'{"input": "\xff\xfe", "voice": "numbers"}',
        b'{"input": "\\ud800", "voice": "numbers"}',
        b"[" * 100_000,
        b'{"input": "x"' + b" " * 70_000_000,
    ],
    ids=["empty", "cut", "null", "list", "text", "nan", "inf", "bytes", "surrogate", "deep", "huge"],
)
def test_a_body_that_is_no_request_gets_400(service: Service, raw: bytes) -> None:
    response = service.http.post(
        "/v1/audio/speech", content=raw, headers={"content-type": "application/json"}
    )
    assert response.status_code in (400, 413), response.text
    assert response.json()["error"]["code"] in ("bad_value", "empty_text", "text_too_long")
    assert "Traceback" not in response.text


def test_unknown_fields_and_odd_names_of_known_voices_are_fine(service: Service) -> None:
    body = OK_BODY | {"lang_code": "a", "exaggeration": 0.5, "stream": True, "voice": {"id": "numbers"}}
    assert service.http.post("/v1/audio/speech", json=body).status_code == 200
    for name in ("alloy", "Alloy", "nova", "cedar", ""):
        response = service.http.post(
            "/v1/audio/speech", json=OK_BODY | {"voice": name, "input": "Hello there."}
        )
        assert response.status_code == 200, (name, response.text)


def test_control_characters_inside_a_text_are_left_out(service: Service) -> None:
    assert service.speech("Number\x00 8\x07 is\x1b here.").status_code == 200


def test_a_foreign_host_is_misdirected(service: Service) -> None:
    response = service.http.get("/", headers={"host": "evil.example"})
    assert response.status_code == 421
    for name in ("localhost", "127.0.0.1", "[::1]", "box.local", "box.lan"):
        assert service.http.get("/healthz", headers={"host": f"{name}:{service.port}"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/api/jobs"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "content-type": "application/json"},
        {"origin": "null", "content-type": "application/json"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {},
    ],
)
def test_a_cross_site_post_changes_nothing(service: Service, path: str, headers: dict[str, str]) -> None:
    before = service.rows("SELECT count(*) AS n FROM jobs")
    response = service.http.post(path, content=json.dumps(OK_BODY).encode(), headers=headers)
    assert 400 <= response.status_code < 500
    assert "access-control-allow-origin" not in response.headers
    assert service.rows("SELECT count(*) AS n FROM jobs") == before


def test_unknown_paths_below_the_api_are_json_404(service: Service) -> None:
    for path in ("/v1/nothing", "/api/nothing", "/api/jobs/0123456789abcdef", "/v1/models/none/none"):
        response = service.http.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"


def test_an_engine_that_raises_costs_one_job(service: Service) -> None:
    worker = service.child("pipeline.worker").pid
    response = service.speech("[raise] This text with number 2 is too much.")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"
    assert "Traceback" not in response.text
    assert service.speech("Number 6 is fine again.").status_code == 200
    assert service.child("pipeline.worker").pid == worker


def test_what_is_no_number_is_refused_before_any_sound(service: Service) -> None:
    response = service.speech("[nan] This text with number 2 comes out wrong.")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "bad_take"


def test_a_silent_take_is_never_delivered_as_a_whole_recording(service: Service) -> None:
    """It is heard while it is made, and found silent at its end: the stream breaks, if it has begun."""
    before = service.rows("SELECT count(*) AS n FROM generations")[0]["n"]
    try:
        response = service.speech("[silence] This text with number 2 comes out wrong.")
    except httpx.RemoteProtocolError:
        pass
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (500, "bad_take")
    assert service.generations(before + 1)[-1]["error_code"] == "bad_take"


def hold_lock(database: Path, held: threading.Event, release: threading.Event) -> None:
    conn = sqlite3.connect(database, timeout=30, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    held.set()
    release.wait(60)
    conn.execute("ROLLBACK")
    conn.close()


@pytest.mark.parametrize("held_s, status", [(10.0, 200), (40.0, 503)])
def test_a_locked_database_is_waited_for_then_named(service: Service, held_s: float, status: int) -> None:
    held, release = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold_lock, args=(service.database, held, release))
    holder.start()
    assert held.wait(30)
    timer = threading.Timer(held_s, release.set)
    timer.start()
    try:
        began = time.monotonic()
        response = service.speech("Number 9 waits for the lock.")
        took = time.monotonic() - began
        assert response.status_code == status, response.text
        if status == 503:
            assert response.json()["error"]["code"] == "storage_busy"
            assert int(response.headers["retry-after"]) >= 1
            assert 25 < took < 39
        # Reading is not held up by a writer.
        assert service.http.get("/healthz").status_code == 200
    finally:
        release.set()
        holder.join()
        timer.cancel()
    assert service.speech("Number 10 comes after the lock.").status_code == 200
