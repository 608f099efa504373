"""The APIs over a real socket: a web process, a worker that speaks numbers, a real database."""

from __future__ import annotations

import base64
import concurrent.futures
import html
import io
import json
import re
import shlex
import sqlite3
import subprocess
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from pipeline.audio.tags import ai_tag
from tests.engines.numbers import decode
from tests.integration.rig import Rig
from tests.integration.service import wait_for
from tests.unit.audiokit import comments


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = {"patience.disconnect_s": 0.3, "limits.accept_wait_s": 2}
    with Rig(tmp_path_factory.mktemp("api"), settings) as made:
        yield made


def heard(pcm: bytes) -> list[int]:
    return decode(np.frombuffer(pcm, "<i2"))


def samples_of(content: bytes) -> Any:
    """Samples of an encoded answer, by ffmpeg: it reads streams that do not say their length."""
    command = [
        "ffmpeg",
        "-loglevel",
        "error",
        "-i",
        "pipe:0",
        "-f",
        "s16le",
        "-ar",
        "24000",
        "-ac",
        "1",
        "pipe:1",
    ]
    done = subprocess.run(command, input=content, capture_output=True, check=True)
    assert done.stderr == b""
    return np.frombuffer(done.stdout, "<i2")


def open_gate(rig: Rig, name: str) -> None:
    (rig.paths.root / name).touch()


def job_state(rig: Rig, job_id: str) -> str:
    return str(rig.http.get(f"/api/jobs/{job_id}").json()["state"])


# -- speech -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "mime", "magic"),
    [
        ("mp3", "audio/mpeg", (b"\xff\xfb", b"\xff\xf3", b"ID3")),
        ("opus", "audio/ogg; codecs=opus", (b"OggS",)),
        ("aac", "audio/aac", (b"\xff\xf1", b"\xff\xf9", b"ID3")),
        ("flac", "audio/flac", (b"fLaC",)),
        ("wav", "audio/wav", (b"RIFF",)),
        ("pcm", "audio/pcm", (b"",)),
    ],
)
def test_each_format_is_what_it_says(rig: Rig, fmt: str, mime: str, magic: tuple[bytes, ...]) -> None:
    answer = rig.speech("1 2 3", fmt=fmt)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == mime
    assert answer.content.startswith(magic)
    assert answer.headers["x-accel-buffering"] == "no" and answer.headers["cache-control"] == "no-cache"
    if fmt == "pcm":
        assert heard(answer.content) == [1, 2, 3]
    else:
        samples = samples_of(answer.content)
        assert abs(len(samples) / 24_000 - 1.6) < 0.5
        if fmt in ("flac", "wav"):
            assert decode(samples) == [1, 2, 3]


def test_a_wav_can_be_read_by_a_strict_reader(rig: Rig) -> None:
    answer = rig.speech("4 5", fmt="wav")
    with wave.open(io.BytesIO(answer.content)) as sound:
        assert sound.getframerate() == 24_000
        assert len(sound.readframes(sound.getnframes())) == 2 * sound.getnframes()
        assert answer.content.index(b"data") + 8 + 2 * sound.getnframes() == len(answer.content)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_the_openai_client_streams_to_a_file(rig: Rig, tmp_path: Any) -> None:
    client = openai.OpenAI(
        base_url=f"{rig.url}/v1", api_key="any", http_client=httpx.Client(trust_env=False), max_retries=0
    )
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="nova", input="7 8", response_format="flac", speed=1.0
    ) as answer:
        answer.stream_to_file(tmp_path / "out.flac")
    assert decode(samples_of((tmp_path / "out.flac").read_bytes())) == [7, 8]
    assert next(iter(client.models.list())).id == "tts-1"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="nobody", input="x")
    assert caught.value.code == "unknown_voice" and "numbers" in caught.value.message
    client.close()


def test_sound_flows_before_the_text_is_done(rig: Rig) -> None:
    text = " ".join(f"Sentence {n}." for n in range(1, 5)) + " [gate late] 99."
    body = {"input": text, "voice": "numbers", "response_format": "pcm"}
    with rig.http.stream("POST", "/v1/audio/speech", json=body) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        job = answer.headers["x-cosyd-job"]
        assert first and job_state(rig, job) == "running"
        open_gate(rig, "late")
        whole = first + b"".join(pieces)
    assert heard(whole) == [1, 2, 3, 4, 99]


def test_what_leaves_says_that_it_is_ai_generated_also_while_it_is_made(rig: Rig, tmp_path: Path) -> None:
    body = {"input": "1. 2. [gate told] 3.", "voice": "numbers", "response_format": "mp3"}
    with rig.http.stream("POST", "/v1/audio/speech", json=body) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        job = answer.headers["x-cosyd-job"]
        assert ai_tag(job).encode() in first and job_state(rig, job) == "running"
        open_gate(rig, "told")
        assert ai_tag(job).encode() not in b"".join(pieces)
    for fmt in ("wav", "flac", "mp3", "opus", "aac"):
        whole = rig.http.get(f"/api/jobs/{job}/audio?format={fmt}&download=1")
        (tmp_path / fmt).write_bytes(whole.content)
        assert comments(tmp_path / fmt) == [ai_tag(job)]
        spoken = rig.speech("4", fmt=fmt)
        (tmp_path / fmt).write_bytes(spoken.content)
        assert comments(tmp_path / fmt) == [ai_tag(spoken.headers["x-cosyd-job"])]


def test_server_sent_events_carry_the_same_sound(rig: Rig) -> None:
    answer = rig.speech("1 2", stream_format="sse")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    sound = b"".join(base64.b64decode(e["audio"]) for e in events if e["type"] == "speech.audio.delta")
    assert heard(sound) == [1, 2]
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_failure_before_the_first_sound_has_its_status(rig: Rig) -> None:
    answer = rig.speech("[raise] 1")
    assert answer.status_code == 500, answer.text
    error = answer.json()["error"]
    assert error["type"] == "server_error" and "Traceback" not in answer.text


def test_a_failure_in_the_middle_breaks_the_stream(rig: Rig) -> None:
    text = "Sentence 1. Sentence 2. " * 12 + "[raise] 3."
    with pytest.raises(httpx.RemoteProtocolError):
        rig.speech(text)
    answer = rig.speech(text, stream_format="sse")
    last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")][-1]
    assert last["type"] == "error" and last["error"]["message"]


BAD: list[tuple[Any, str, str | None]] = [
    ({"input": "", "voice": "numbers"}, "empty_text", "input"),
    ({"voice": "numbers"}, "empty_text", "input"),
    ({"input": "?!… 。", "voice": "numbers"}, "empty_text", "input"),
    ({"input": "\x00\x07", "voice": "numbers"}, "empty_text", "input"),
    ({"input": "x" * 16_385, "voice": "numbers"}, "text_too_long", "input"),
    ({"input": "1", "voice": "nobody"}, "unknown_voice", "voice"),
    ({"input": "1", "voice": "../../etc/hostname"}, "unknown_voice", "voice"),
    ({"input": "1", "voice": "a\x00b"}, "unknown_voice", "voice"),
    ({"input": "1", "voice": {"id": "..%2f"}}, "unknown_voice", "voice"),
    ({"input": "1", "response_format": "ogg"}, "unknown_format", "response_format"),
    ({"input": "1", "speed": 0}, "bad_value", "speed"),
    ({"input": "1", "speed": 9}, "bad_value", "speed"),
    ({"input": "1", "speed": -1}, "bad_value", "speed"),
    ({"input": "1", "speed": "fast"}, "bad_value", "speed"),
    ({"input": "1", "speed": True}, "bad_value", "speed"),
    ({"input": ["1"]}, "bad_value", "input"),
    ([1, 2], "bad_value", "body"),
    ("text", "bad_value", "body"),
]


@pytest.mark.parametrize(
    ("body", "code", "param"), BAD, ids=[f"{code}-{i}" for i, (_, code, _) in enumerate(BAD)]
)
def test_bad_input_is_refused_with_its_code(rig: Rig, body: Any, code: str, param: str | None) -> None:
    before = rig.rows("SELECT count(*) AS n FROM jobs")[0]["n"]
    answer = rig.http.post("/v1/audio/speech", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error" and error["message"]
    assert rig.rows("SELECT count(*) AS n FROM jobs")[0]["n"] == before


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"input": "1", "speed": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"input": "\\ud800"}']
)
def test_broken_json_is_refused(rig: Rig, raw: bytes) -> None:
    answer = rig.http.post("/v1/audio/speech", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


def test_a_huge_body_is_not_read_to_its_end(rig: Rig) -> None:
    answer = rig.http.post("/v1/audio/speech", json={"input": "x" * 3_000_000})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "text_too_long"


def test_errors_speak_the_visitors_language(rig: Rig) -> None:
    zh = rig.http.post("/v1/audio/speech", json={"input": ""}, headers={"Accept-Language": "zh-CN"})
    en = rig.http.post("/v1/audio/speech", json={"input": ""})
    assert zh.json()["error"]["message"] != en.json()["error"]["message"]
    assert any("\u4e00" <= ch <= "\u9fff" for ch in zh.json()["error"]["message"])


@pytest.mark.parametrize("speed", [0.25, 1.2, 4.0])
def test_speed_works_while_streaming(rig: Rig, speed: float) -> None:
    assert rig.speech("1 2 3", speed=speed).status_code == 200


def test_a_client_that_leaves_is_not_worked_for(rig: Rig) -> None:
    text = "Sentence 1. " * 5 + "[gate never] 2. " + "Sentence 3. " * 40
    body = {"input": text, "voice": "numbers", "response_format": "pcm"}
    with rig.http.stream("POST", "/v1/audio/speech", json=body) as answer:
        next(answer.iter_raw())
        job = answer.headers["x-cosyd-job"]
    wait_for(
        lambda: rig.rows("SELECT 1 FROM jobs WHERE id = ? AND cancel_requested_at IS NOT NULL", job),
        5.0,
        "the cancellation",
    )
    open_gate(rig, "never")
    wait_for(lambda: job_state(rig, job) == "cancelled", 10.0, "the end of the job")
    assert rig.speech("5").status_code == 200


def test_a_client_that_leaves_while_it_waits_is_noticed(rig: Rig) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{rig.url}/v1/audio/speech",
            json={"input": "[gate later] 1", "voice": "numbers"},
            timeout=0.5,
            trust_env=False,
        )
    job = rig.rows("SELECT id FROM jobs ORDER BY created_at DESC LIMIT 1")[0]["id"]
    wait_for(
        lambda: rig.rows("SELECT 1 FROM jobs WHERE id = ? AND cancel_requested_at IS NOT NULL", job),
        5.0,
        "the cancellation",
    )
    open_gate(rig, "later")
    wait_for(lambda: job_state(rig, job) == "cancelled", 10.0, "the end of the job")


def test_sixteen_clients_are_all_answered(rig: Rig) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: rig.speech(f"{n} {n + 1}"), range(48)))
    assert [heard(a.content) for a in answers] == [[n, n + 1] for n in range(48)]


# -- companions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/", "//v1//models", "/v1/v1/models"])
def test_models_are_found_however_the_base_url_was_written(rig: Rig, path: str) -> None:
    answer = rig.http.get(rig.url + path)
    assert answer.status_code == 200 and answer.json()["object"] == "list"
    assert answer.json()["data"][0]["object"] == "model"


def test_the_lists_have_the_shapes_that_clients_read(rig: Rig) -> None:
    assert {"id": "numbers", "name": "Numbers"} in rig.http.get("/v1/audio/voices").json()["voices"]
    assert rig.http.get("/v1/audio/voices?model=tts-1").status_code == 200
    assert rig.http.get("/v1/audio/models").json()["models"][0]["id"] == "tts-1"
    assert rig.http.get("/v1/models/tts-1").json()["id"] == "tts-1"


@pytest.mark.parametrize("path", ["/v1/models/gpt-9", "/v1/nothing", "/api/nothing", "/api/jobs/zz", "/v1"])
def test_what_is_not_there_is_a_json_404(rig: Rig, path: str) -> None:
    answer = rig.http.get(path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/nothing", "/doc", "/openapi.json", "/monitoring", "/a/b/c"])
def test_a_browser_that_is_lost_finds_the_way_back_and_a_program_gets_json(rig: Rig, path: str) -> None:
    page = rig.http.get(path, headers={**BROWSER, "Accept-Language": "zh-CN"})
    assert page.status_code == 404 and page.headers["content-type"].startswith("text/html")
    assert "这里没有内容" in page.text and 'href="/"' in page.text and 'href="/docs"' in page.text
    assert "content-security-policy" in page.headers
    answer = rig.http.get(path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    head = rig.http.head(path, headers=BROWSER)
    assert (head.status_code, head.content) == (404, b"")


def test_docs_tells_how_a_program_speaks_and_its_example_works(rig: Rig) -> None:
    page = rig.http.get("/docs", headers={**BROWSER, "Accept-Language": "en"})
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert rig.http.get("/redoc", headers=BROWSER).status_code == 200
    assert f"{rig.url}/v1</code>" in page.text and "<kbd>cosyd key add NAME</kbd>" in page.text
    assert "`" not in page.text and ":path}" not in page.text
    blocks = [html.unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", page.text, re.DOTALL)]
    words = shlex.split(blocks[0])
    body = json.loads(words[words.index("-d") + 1]) | {"voice": "numbers", "response_format": "wav"}
    assert rig.http.post(words[1], json=body).status_code == 200
    assert "POST   /v1/audio/speech" in blocks[1] and "DELETE /api/voices/{id}" in blocks[1]
    for line in blocks[1].splitlines():  # each is there: anything but "not found"
        method, path = line.split()
        if method == "GET" and "{" not in path and "events" not in path:
            assert rig.http.get(path).status_code != 404, path


def test_the_api_answers_json_whatever_a_browser_accepts(rig: Rig) -> None:
    for path in ("/v1/nothing", "/api/nothing", "/v1"):
        answer = rig.http.get(path, headers=BROWSER)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_probes_tell_alive_from_ready(rig: Rig) -> None:
    assert rig.http.get("/healthz").status_code == 200
    assert rig.http.get("/readyz").status_code == rig.http.get("/health").status_code == 200
    engines = rig.http.get("/api/state").json()["engines"]
    rig.send_state(engines={"numbers": {**engines["numbers"], "state": "failed", "code": "engine_failed"}})
    wait_for(lambda: rig.http.get("/readyz").status_code == 503, 5.0, "not ready")
    assert rig.http.get("/healthz").status_code == 200
    rig.send_state()
    wait_for(lambda: rig.http.get("/readyz").status_code == 200, 5.0, "ready")


# -- native -----------------------------------------------------------------------------------------------


def submit(rig: Rig, text: str, **more: Any) -> str:
    answer = rig.http.post("/api/jobs", json={"v": 1, "text": text, "voice": "numbers", **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_done(rig: Rig, job: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        view: dict[str, Any] = rig.http.get(f"/api/jobs/{job}").json()
        return view if view["state"] in ("done", "failed", "cancelled") else None

    return wait_for(over, 20.0, f"the end of {job}")


def test_a_finished_recording_answers_range_requests_exactly(rig: Rig) -> None:
    job = submit(rig, "1 2 3 4", seed=5)
    view = wait_done(rig, job)
    assert view["state"] == "done" and view["seed"] == 5 and view["audio_seconds"] > 0
    for fmt in ("pcm", "wav", "mp3", "flac"):
        whole = rig.http.get(f"/api/jobs/{job}/audio?format={fmt}")
        assert whole.status_code == 200 and int(whole.headers["content-length"]) == len(whole.content)
        assert whole.headers["accept-ranges"] == "bytes"
        part = rig.http.get(f"/api/jobs/{job}/audio?format={fmt}", headers={"Range": "bytes=100-299"})
        assert part.status_code == 206 and part.content == whole.content[100:300]
        assert part.headers["content-range"] == f"bytes 100-299/{len(whole.content)}"
    assert heard(rig.http.get(f"/api/jobs/{job}/audio?format=pcm").content) == [1, 2, 3, 4]
    saved = rig.http.get(f"/api/jobs/{job}/audio?format=mp3&download=1").headers["content-disposition"]
    assert saved.startswith("attachment") and saved.endswith('.mp3"')


def test_two_listeners_hear_the_same_running_job(rig: Rig) -> None:
    job = submit(rig, "Sentence 1. Sentence 2. [gate both] Sentence 3.")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        listening = [
            pool.submit(lambda: rig.http.get(f"/api/jobs/{job}/audio?format=pcm").content) for _ in range(2)
        ]
        open_gate(rig, "both")
        first, second = (one.result(30) for one in listening)
    assert first == second and heard(first) == [1, 2, 3]


def test_progress_comes_as_events(rig: Rig) -> None:
    job = submit(rig, "Sentence 1. [gate told] Sentence 2.")
    names: list[str] = []
    with rig.http.stream("GET", f"/api/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                names.append(line[7:])
                open_gate(rig, "told")
            if line.startswith("data: "):
                last = json.loads(line[6:])
    assert names[0] == "progress" and names[-1] == "done"
    assert last["segments"]["done"] == last["segments"]["total"] >= 1


def test_a_job_can_be_stopped(rig: Rig) -> None:
    job = submit(rig, "Sentence 1. [gate halt] Sentence 2. " + "Sentence 3. " * 30, source="page")
    wait_for(lambda: job_state(rig, job) == "running", 10.0, "its start")
    answer = rig.http.delete(f"/api/jobs/{job}")
    assert answer.status_code == 200 and answer.json()["cancelled"] is True
    open_gate(rig, "halt")
    assert wait_done(rig, job)["state"] == "cancelled"
    assert rig.http.delete("/api/jobs/" + "0" * 16).status_code == 404
    again = rig.http.delete(f"/api/jobs/{job}").json()
    assert again["cancelled"] is False


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"v": 2, "text": "1"}, "bad_value"),
        ({"text": "1", "voice": "numbers", "colour": "red"}, "bad_value"),
        ({"text": "1", "voice": "numbers", "mode": "zero_shot"}, "unsupported_mode"),
        ({"text": "1", "voice": "numbers", "source": "martian"}, "bad_value"),
        ({"text": "x" * 200_001, "voice": "numbers"}, "text_too_long"),
        ({"text": "x" * 16_385, "voice": "numbers", "source": "page"}, "text_too_long"),
        ({"text": "1", "voice": 7}, "bad_value"),
        ({"text": 1, "voice": "numbers"}, "bad_value"),
    ],
)
def test_a_wrong_job_is_refused(rig: Rig, body: dict[str, Any], code: str) -> None:
    answer = rig.http.post("/api/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_history_finds_lists_and_forgets(rig: Rig) -> None:
    job = submit(rig, "今天天气很好 12")
    wait_done(rig, job)
    found = rig.http.get("/api/history", params={"q": "天气"}).json()["recordings"]
    assert [r["id"] for r in found] == [job] and found[0]["audio"] and found[0]["voice"] == "numbers"
    assert rig.http.get("/api/history", params={"q": '" OR *'}).status_code == 200
    page = rig.http.get("/api/history?limit=1").json()
    assert len(page["recordings"]) == 1 and page["next"]
    further = rig.http.get(f"/api/history?limit=1&before={page['next']}").json()
    assert further["recordings"][0]["id"] != page["recordings"][0]["id"]
    assert rig.http.delete(f"/api/history/{job}").json() == {"deleted": True}
    assert rig.http.delete(f"/api/history/{job}").status_code == 404
    assert rig.http.get("/api/history", params={"q": "天气"}).json()["recordings"] == []
    assert rig.http.get(f"/api/jobs/{job}/audio").status_code == 404


def test_subtitles_of_a_recording_in_both_formats(rig: Rig) -> None:
    job = submit(rig, "第一段 12。\n\n第二段 13。")
    assert rig.http.get(f"/api/history/{job}/subtitles").status_code in (200, 404), "perhaps not done yet"
    wait_done(rig, job)
    answer = rig.http.get(f"/api/history/{job}/subtitles")
    assert answer.status_code == 200 and f"cosyd-{job}.srt" in answer.headers["content-disposition"]
    assert re.findall(r"^第.段 1[23]。$", answer.text, re.M) == ["第一段 12。", "第二段 13。"]
    vtt = rig.http.get(f"/api/history/{job}/subtitles?format=vtt")
    assert vtt.text.startswith("WEBVTT") and vtt.headers["content-type"].startswith("text/vtt")
    other = rig.http.get(f"/api/history/{job}/subtitles?format=ass")
    assert other.json()["error"]["code"] == "unknown_format"
    assert rig.http.get("/api/history/0123456789abcdef/subtitles").status_code == 404
    assert rig.http.get("/api/history/nonsense/subtitles").status_code == 404


def test_the_pronunciation_dictionary(rig: Rig) -> None:
    assert rig.http.get("/api/pronunciations").json() == {"pronunciations": []}
    added = rig.http.post("/api/pronunciations", json={"pattern": "重庆", "replacement": "[ch][óng]庆"})
    assert added.status_code == 201 and added.json()["kind"] == "markup"
    assert rig.http.get("/api/pronunciations").json()["pronunciations"] == [added.json()]
    wrong = rig.http.post("/api/pronunciations", json={"pattern": "x", "replacement": "[h][aoo]"})
    assert wrong.status_code == 400 and "[aoo]" in wrong.json()["error"]["message"]
    assert rig.http.post("/api/pronunciations", json={"pattern": "x", "spoken": "y"}).status_code == 400
    assert rig.http.delete(f"/api/pronunciations/{added.json()['id']}").json() == {"deleted": True}
    assert rig.http.delete(f"/api/pronunciations/{added.json()['id']}").status_code == 404


def test_a_mistake_in_markup_is_refused_with_its_place(rig: Rig) -> None:
    answer = rig.http.post("/v1/audio/speech", json={"input": "他[h][aoo]学", "voice": "numbers"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "bad_value")
    assert "[aoo]" in error["message"] and "5" in error["message"]


def test_the_buttons_act_through_the_supervisor(rig: Rig) -> None:
    assert rig.web is not None
    assert rig.http.post("/api/actions/trim", json={}).json() == {"freed_bytes": 100}
    assert rig.http.post("/api/actions/restart", json={}).json() == {"restarted": ["numbers"]}
    assert rig.web.told("restart")[-1] == {"target": "worker:numbers"}


def test_a_trim_of_the_web_gives_numbers(rig: Rig) -> None:
    assert rig.web is not None
    numbers = rig.web.link.call("trim", timeout_s=10)
    assert 0 < numbers["rss_after"] <= numbers["rss_before"] < 200 * 1024**2


def test_a_locked_database_is_waited_for(rig: Rig) -> None:
    lock = sqlite3.connect(rig.paths.database, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(rig.speech, "3")
        # The event loop goes on meanwhile.
        assert rig.http.get("/healthz").status_code == 200
        assert rig.http.get("/api/history").status_code == 200
        assert not answer.done()
        lock.execute("COMMIT")
        assert answer.result(30).status_code == 200
    lock.close()


def test_no_spoken_text_is_in_the_log(rig: Rig) -> None:
    assert rig.speech("Rumpelstilzchen 4").status_code == 200
    rig.http.get("/api/history", params={"q": "Rumpelstilzchen"})
    assert "Rumpelstilzchen" not in rig.log.read_text("utf-8", "replace")
    assert "Traceback" not in rig.log.read_text("utf-8", "replace")


def test_no_temporary_file_is_left(rig: Rig) -> None:
    left = [p for p in rig.paths.tmp.rglob("*") if p.is_file() and p.parent.name != "renditions"]
    assert left == []
    # Renditions are kept for a minute for a player that comes back; they are bounded, and go at the end.
    assert sum(p.stat().st_size for p in rig.paths.tmp.rglob("*") if p.is_file()) < 5_000_000


def test_no_thread_waits_for_a_client(rig: Rig) -> None:
    assert rig.web is not None
    jobs = [submit(rig, f"[gate crowd] {n}") for n in range(2)]
    stop = threading.Event()

    def listen(job: str) -> None:
        with httpx.stream(
            "GET", f"{rig.url}/api/jobs/{job}/audio?format=pcm", timeout=30, trust_env=False
        ) as a:
            for _ in a.iter_raw():
                if stop.is_set():
                    return

    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        for n in range(40):
            pool.submit(listen, jobs[n % 2])
        wait_for(lambda: rig.http.get("/healthz").elapsed.total_seconds() < 1, 10, "an answer")
        assert _threads(rig.web.process.pid) < 60
        open_gate(rig, "crowd")
        stop.set()


def _threads(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
