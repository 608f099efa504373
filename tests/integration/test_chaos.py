"""cosyd under attack: processes killed at random, clients that behave badly, odd texts, files that vanish."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from pipeline.queue.values import MAX_ATTEMPTS
from tests.engines.numbers import decode
from tests.integration.chaos import (
    WORDS,
    Crowd,
    calm,
    no_temporary_files,
    sizes,
    stalled_reader,
    until_answered,
)
from tests.integration.service import Service, wait_for

QUICK = {
    "restart.budget": "1000",
    "restart.backoff_initial_s": "0.05",
    "restart.backoff_max_s": "0.2",
    "patience.disconnect_s": "1",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all that must not even shake it. It must leave no file behind."""
    with Service(tmp_path_factory.mktemp("chaos") / "state", QUICK, ready_timeout_s=180) as service:
        assert service.speech("The first number is 1 here.").status_code == 200
        yield service
        calm(service)
        assert service.stop() == 0
        no_temporary_files(service)


def test_processes_killed_at_random_lose_nothing(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    """50 with the system tests (`tests/system/test_kills.py`), 1,000 with --long."""
    kill_at_random(tmp_path, rounds(12, 1000), seed=7)


def kill_at_random(folder: Path, kills: int, seed: int) -> None:
    """SIGKILL for web, worker and supervisor while a crowd has texts spoken; then every job is looked at."""
    draw = random.Random(seed)
    told = {"ui": 0, "pipeline.worker": 0}
    with Service(folder / "state", QUICK, ready_timeout_s=180) as service:
        with Crowd(service, seed=seed) as crowd:
            for _ in range(kills):
                time.sleep(draw.uniform(0.05, 0.8))  # not a wait for anything: the moment is the draw
                victim = draw.choices(("pipeline.worker", "ui", "daemon.supervisor"), (6, 3, 1))[0]
                if victim == "daemon.supervisor":
                    family = service.family()
                    assert service.process is not None
                    service.process.kill()
                    service.process.wait(10)
                    Service.gone(family, 5.0)
                    service.start()
                    continue
                try:
                    service.child(victim, 60).send_signal(signal.SIGKILL)
                    told[victim] += 1
                except psutil.NoSuchProcess:
                    pass
            wait_for(lambda: crowd.statuses["200"] > 3, 60, "an answer after all that")
        calm(service, 180)
        assert crowd.wrong == [], crowd.wrong
        assert crowd.accepted, crowd.statuses
        for job, numbers in crowd.accepted.items():
            row = service.rows("SELECT * FROM jobs WHERE id = ?", job)[0]
            if row["state"] == "failed":
                worst = service.rows("SELECT max(attempt) AS n FROM segments WHERE job_id = ?", job)[0]["n"]
                assert row["error_code"] == "worker_died", row
                assert (worst or 0) >= 2 or row["attempt"] >= MAX_ATTEMPTS, "given up too early"
            elif row["state"] == "done":
                audio = service.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
                assert decode(audio.content) == numbers
        events = service.rows(
            "SELECT kind, params FROM events WHERE kind IN ('worker_exited', 'worker_killed')"
        )
        deaths = [e for e in events if '"status": "signal 9"' in e["params"]]
        assert len(deaths) >= sum(told.values()) - kills // 4, "each death is on record"
        assert service.stop() == 0
        no_temporary_files(service)


def test_readers_that_stop_reading_hold_up_nobody(house: Service) -> None:
    text = " ".join(WORDS.format(n=n) for n in range(1, 60))
    clients = [stalled_reader(house, text) for _ in range(12)]
    try:
        assert until_answered(house) < 5
        assert decode(house.speech("And now the number 5 is said.").content) == [5]
    finally:
        for client in clients:
            client.close()
    calm(house)


def test_a_flood_of_connections_and_half_requests_keeps_nobody_out(house: Service) -> None:
    web = house.child("ui")
    before = sizes(web)
    halves = (
        b"",
        b"P",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /api/state/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n",
    )
    with ExitStack() as stack:
        for n in range(700):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", house.port), timeout=20))
            try:
                sock.sendall(halves[n % len(halves)])
            except OSError:
                pass  # some are refused at once, and rightly
        assert until_answered(house) < 10
        assert decode(house.speech("And now the number 6 is said.").content) == [6]
    wait_for(lambda: sizes(web)[0] <= before[0] + 20, 30, "the connections to go")
    calm(house)


def test_huge_bodies_are_refused_and_cost_no_memory(house: Service) -> None:
    web = house.child("ui")
    before = web.memory_info().rss

    def body() -> Iterator[bytes]:
        yield b'{"data": ["'
        for _ in range(64):
            yield b"x" * 2**20

    doors = (
        "/v1/audio/speech", "/api/jobs", "/gradio_api/call/speak", "/gradio_api/queue/join",
        "/gradio_api/reset", "/login", "/nowhere",
    )  # fmt: skip
    for door in doors:
        content: bytes | Iterator[bytes]
        for content in (body(), b"x" * 8_000_000):
            headers = {"content-type": "application/json"}
            try:
                answer = house.http.post(door, content=content, headers=headers)
            except httpx.WriteError:
                continue  # refused before it was all sent
            assert 400 <= answer.status_code < 500, (door, answer.status_code)
    assert web.memory_info().rss - before < 60_000_000
    calm(house)


def test_gradio_takes_no_files_and_opens_no_side_doors(house: Service) -> None:
    own = {"origin": house.url}
    for count in (1, 40):
        files = [("files", (f"{n}.bin", b"x" * 100_000)) for n in range(count)]
        for path in ("/gradio_api/upload", "/gradio_api//upload", "/gradio_api/%75pload"):
            assert house.http.post(path, files=files, headers=own).status_code == 404
    for path in ("/gradio_api/proxy=http://127.0.0.1:1/", "/gradio_api/run/speak", "/monitoring"):
        assert house.http.get(path).status_code in (404, 405), path
    assert house.http.post("/gradio_api/run/speak", json={"data": ["a", "nobody"]}).status_code == 404
    calm(house)


def test_what_is_spoken_never_gets_into_the_log_even_when_a_call_is_wrong(house: Service) -> None:
    for data in (
        ["Rumpelstilzchen"],
        ["Rumpelstilzchen", "numbers", "fast", {}, []],
        {"text": "Rumpelstilzchen"},
    ):
        for call in (
            ("/gradio_api/call/speak", {"data": data}),
            ("/gradio_api/queue/join", {"data": data, "fn_index": 0, "session_hash": "wrong"}),
            ("/api/jobs", {"v": 1, "text": "Rumpelstilzchen", "voice": data}),
            ("/v1/audio/speech", {"input": "Rumpelstilzchen", "voice": data}),
        ):
            answer = house.http.post(call[0], json=call[1])
            assert answer.status_code < 500, call
            if "call" in call[0] and answer.status_code == 200:
                event = answer.json()["event_id"]
                assert "error" in house.http.get(f"/gradio_api/call/speak/{event}").text
    assert "Rumpelstilzchen" not in house.log.read_text("utf-8", "replace")
    calm(house)


def test_a_page_opened_and_left_again_and_again_leaves_nothing(
    house: Service, rounds: Callable[[int, int], int]
) -> None:
    web = house.child("ui")

    def visit(n: int) -> None:
        with httpx.Client(base_url=house.url, timeout=30, trust_env=False) as browser:
            for path in ("/", "/config", "/theme.css", "/api/state", "/api/history"):
                assert browser.get(path).status_code == 200
            join = {"data": [WORDS.format(n=n), "numbers"], "fn_index": 0, "session_hash": f"visit{n}"}
            assert browser.post("/gradio_api/queue/join", json=join).status_code < 500
            with (
                browser.stream("GET", f"/gradio_api/heartbeat/visit{n}") as beats,
                browser.stream("GET", "/api/state/events") as events,
            ):
                assert beats.status_code == events.status_code == 200

    for n in range(5):
        visit(n)
    before = sizes(web)
    for n in range(5, rounds(30, 1000)):
        visit(n)
    wait_for(lambda: sizes(web)[0] <= before[0] + 10, 30, "the descriptors to be closed")
    assert sizes(web)[1] <= before[1] + 12
    calm(house)


TEXTS = {
    "a megabyte": "word " * 200_000,
    "emoji": "😀" * 16_000,
    "family emoji": "👨‍👩‍👧‍👦" * 500,
    "zero width": "\u200b\u200d\ufeff\u2060" * 1000,
    "right to left": "שלום עולם 5 مرحبا بالعالم " * 5,
    "overrides": "\u202eabc 7 cba\u202c \u2066x\u2069",
    "combining": "e" + "\u0301" * 3000 + " 8",
    "zalgo": "Z\u0334\u031b\u033aa\u0335" * 60,
    "NUL": "a\x00b\x01\x1b[31m 9",
    "not characters": "\uffff\ufffe\U0010ffff 3",
    "private use": "\ue000\U000f0000 4",
    "one word": "a" * 2000,
    "lines": "\n" * 10_000 + "x",
    "brackets": "(" * 8000,
    "headings": "#" * 5000 + " x",
    "address": "http://" + "a/" * 900,
    "marks": "?!…。，、" * 1000,
    "tags": "<b>" * 3000 + "x",
}
RAW = (
    rb'{"input": "\ud800 lone", "voice": "numbers"}',
    rb'{"input": "hi", "voice": "\ud800"}',
    rb'{"input": "hi", "voice": "numbers", "response_format": "\ud800"}',
    rb'{"input": "hi", "voice": "numbers", "instructions": "\udfff"}',
    rb'{"v": 1, "text": "\ud800x", "voice": "numbers", "client": "\ud800"}',
    rb'{"v": 1, "text": "hi", "voice": "numbers", "\ud800": 1}',
    rb'{"v": 1, "text": "hi", "voice": "numbers", "client": "a\u0000b"}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"input": "hi", "voice": "numbers", "speed": 1e400}',
    b'{"input": "hi", "voice": "numbers", "seed": ' + b"9" * 5000 + b"}",
)


def test_texts_from_hell_are_spoken_or_refused_with_a_code(house: Service) -> None:
    bodies = [json.dumps({"input": t, "voice": "numbers", "response_format": "pcm"}) for t in TEXTS.values()]
    for body in (*bodies, *RAW):
        for door in ("/v1/audio/speech", "/api/jobs"):
            content = body.encode() if isinstance(body, str) else body
            answer = house.http.post(door, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 202, 400, 429), (content[:60], answer.text[:300])
            if answer.status_code >= 400:
                assert answer.json()["error"]["code"]
    for text in TEXTS.values():
        made = house.http.post("/api/jobs", json={"v": 1, "text": text, "voice": "numbers"})
        assert made.status_code in (202, 400, 429), made.text[:300]
    calm(house)
    assert house.http.get("/api/history", params={"limit": "200"}).status_code == 200


def test_odd_addresses_get_an_answer_and_no_fault(house: Service) -> None:
    paths = (
        "/api/history?q=%00", "/api/history?q=%ED%A0%80", "/api/history?limit=99999999999999999999",
        "/api/history?before=-1", "/api/jobs/%00", "/api/jobs/%ED%A0%80", "/?lang=%00",
        "/login?token=%ED%A0%80", "/gradio_api/file=/etc/passwd", "/gradio_api/file=%00",
        "/static/..%2f..%2fetc%2fpasswd", "/%00", "/api/voices/%00/preview",
        f"/api/history?q={'x' * 20_000}", "/assets/cosyd/%00",
    )  # fmt: skip
    for path in paths:
        answer = house.http.get(path)
        assert answer.status_code < 500 and "root:x:0:" not in answer.text, path
    calm(house)


@pytest.mark.parametrize("victim", ["pipeline.worker", "ui"])
def test_a_process_that_is_stopped_dead_is_noticed_and_replaced(tmp_path: Path, victim: str) -> None:
    """SIGSTOP, as a debugger or a frozen cgroup does it: alive, and silent."""
    with Service(tmp_path / "state", QUICK | {"deadlines.heartbeat_lost_s": "2"}) as service:
        job = service.submit(" ".join(f"[slow 0.1] {WORDS.format(n=n)}" for n in range(1, 7)))
        frozen = service.child(victim)
        wait_for(lambda: service.rows("SELECT 1 FROM segments WHERE state = 'done'"), 30, "a segment")
        frozen.send_signal(signal.SIGSTOP)
        service.gone([frozen], 30)
        assert service.wait_job(job)["state"] == "done"
        assert until_answered(service, 60) < 60
        assert "worker_killed" in service.event_kinds()
        calm(service)


def vanished(folder: Path) -> bool:
    """Delete all of it; False when somebody wrote into it meanwhile."""
    try:
        shutil.rmtree(folder)
    except OSError:
        return False
    return True


def test_files_that_vanish_while_it_runs_cost_one_job_at_most(tmp_path: Path) -> None:
    with Service(tmp_path / "state", QUICK, ready_timeout_s=180) as service:
        done = service.submit(WORDS.format(n=1))
        service.wait_job(done)
        running = service.submit(" ".join(f"[slow 0.05] {WORDS.format(n=n)}" for n in range(1, 9)))
        wait_for(lambda: service.rows("SELECT 1 FROM segments WHERE state = 'done' AND idx = 1"), 30, "two")
        for folder in ("outputs", "tmp"):
            wait_for(lambda folder=folder: vanished(service.state / folder), 10, "nothing left of it")  # type: ignore[misc]
        (service.state / "run" / "effective.json").unlink()
        row = service.wait_job(running)
        assert row["state"] in ("done", "failed")
        if row["state"] == "done":
            audio = service.http.get(f"/api/jobs/{running}/audio", params={"format": "pcm"})
            assert decode(audio.content) == list(range(1, 9)), "never a recording with a hole"
        assert service.http.get(f"/api/jobs/{done}/audio").status_code == 404
        assert decode(service.speech("The number 4 comes after.").content) == [4]
        calm(service)
