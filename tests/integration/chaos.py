"""Clients that come from everywhere and behave badly, and what must be true once it is calm again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import psutil

from pipeline.paths import StatePaths
from pipeline.retention import sweep_orphans
from pipeline.store.db import connect
from tests.engines.numbers import decode
from tests.integration.service import Service, wait_for

WORDS = "Here comes the calm sentence that has the number {n} in it."
LIBRARY_S = 300.0
LET_DOWN = (httpx.TransportError, httpx.StreamError)
"""What a client sees when the process that serves it is killed. Never a wrong answer."""


GRADIO = """
import json, sys, gradio_client

client = None
for line in sys.stdin:
    try:
        if client is None:
            client = gradio_client.Client(
                sys.argv[1], verbose=False, analytics_enabled=False, download_files=sys.argv[2],
                httpx_kwargs={"trust_env": False},
            )
        job = client.submit(json.loads(line), "numbers", 1.0, None, "pcm", api_name="/speak")
        told = {"path": job.result(timeout=45)}
    except Exception as error:
        client, told = None, {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told), flush=True)
"""
"""The real gradio_client in a process of its own, since it leaves event loops open. A text a line."""


class Crowd:
    """Several kinds of clients at once, each again and again. What was accepted is remembered by job id."""

    def __init__(self, service: Service, seed: int) -> None:
        self._service, self._draw = service, random.Random(seed)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.accepted: dict[str, list[int]] = {}
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._again, args=(one,), daemon=True)
            for one in (self._stream, self._stream, self._job, self._gradio, self._page)
        ]
        self._library = threading.Thread(target=self._gradio_client, daemon=True)

    def __enter__(self) -> Crowd:
        for thread in (*self._threads, self._library):
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client never got an answer"
        self._library.join(LIBRARY_S)  # it wants to be served once, and is slow to be imported
        assert not self._library.is_alive(), "gradio_client never got an answer"

    def _again(self, one: Callable[[httpx.Client], None]) -> None:
        with httpx.Client(base_url=self._service.url, timeout=45, trust_env=False) as http:
            while not self._stop.is_set():
                try:
                    one(http)
                except LET_DOWN as error:
                    with self._lock:
                        self.statuses[type(error).__name__] += 1
                    self._stop.wait(0.1)

    def _text(self) -> tuple[str, list[int]]:
        with self._lock:
            first, count = self._draw.randrange(1, 1000), self._draw.choice((1, 1, 2, 5))
            slow = self._draw.choice((0, 0.02, 0.05))
        numbers = list(range(first, first + count))
        return " ".join(f"[slow {slow}] {WORDS.format(n=n)}" for n in numbers), numbers

    def _note(self, response: httpx.Response, job: str | None, numbers: list[int]) -> None:
        code = response.status_code
        with self._lock:
            self.statuses[str(code)] += 1
            if job:
                self.accepted[job] = numbers
        if code in (429, 503) and not response.headers.get("retry-after"):
            self.wrong.append(f"{code} without Retry-After")
        elif code >= 500 and code != 503:
            self.wrong.append(f"{code} for {response.request.url}")
        if code in (429, 503):
            self._stop.wait(0.3)

    def _stream(self, http: httpx.Client) -> None:
        text, numbers = self._text()
        body = {"model": "tts-1", "input": text, "voice": "numbers", "response_format": "pcm"}
        with http.stream("POST", "/v1/audio/speech", json=body) as response:
            self._note(response, response.headers.get("x-cosyd-job"), numbers)
            heard = response.read()
        if response.status_code == 200 and decode(heard) != numbers:
            self.wrong.append(f"heard {decode(heard)} for {numbers}")

    def _job(self, http: httpx.Client) -> None:
        text, numbers = self._text()
        response = http.post("/api/jobs", json={"v": 1, "text": text, "voice": "numbers"})
        self._note(response, response.json().get("id"), numbers)
        self._stop.wait(0.2)

    def _gradio(self, http: httpx.Client) -> None:
        """As gradio_client does: a call, then its events."""
        text, numbers = self._text()
        response = http.post("/gradio_api/call/speak", json={"data": [text, "numbers", 1.0, None, "flac"]})
        self._note(response, None, numbers)
        if response.status_code == 200:
            with http.stream("GET", f"/gradio_api/call/speak/{response.json()['event_id']}") as events:
                events.read()

    def _gradio_client(self) -> None:
        """The library itself: it connects, reads the page's configuration, waits, and fetches the file."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", GRADIO, self._service.url, folder]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            with subprocess.Popen(command, text=True, **pipes) as client:  # type: ignore[call-overload]
                assert client.stdin is not None and client.stdout is not None
                while not self._stop.is_set() or not self.statuses["gradio_client"]:  # once at least
                    text, numbers = self._text()
                    client.stdin.write(json.dumps(text) + "\n")
                    client.stdin.flush()
                    told = json.loads(client.stdout.readline())
                    heard = None if "error" in told else decode(Path(told["path"]).read_bytes())
                    with self._lock:
                        self.statuses["gradio_client" if heard else "gradio_client let down"] += 1
                        if heard not in (None, numbers):
                            self.wrong.append(f"gradio_client heard {heard} for {numbers}")
                        if "Traceback" in told.get("error", ""):
                            self.wrong.append(told["error"])
                    if heard is None:
                        self._stop.wait(0.2)
                client.stdin.close()

    def _page(self, http: httpx.Client) -> None:
        """Somebody who opens the page, reloads it, and leaves in the middle of it."""
        for path in ("/", "/config", "/api/state", "/api/history"):
            self._note(http.get(path), None, [])
        for path in ("/gradio_api/heartbeat/chaos", "/api/state/events"):
            with http.stream("GET", path) as endless:
                self._note(endless, None, [])
        self._stop.wait(0.2)


def calm(service: Service, timeout_s: float = 90.0) -> None:
    """Wait until nothing is in work; then nothing may be lost, doubled, left over or shown to people."""

    def open_jobs() -> int:
        rows = service.rows("SELECT count(*) AS n FROM jobs WHERE state IN ('queued', 'running')")
        return int(rows[0]["n"])

    try:
        wait_for(lambda: open_jobs() == 0, timeout_s, "the end of all jobs", 0.1)
    except AssertionError as error:
        raise AssertionError(
            f"{error}: {service.rows('SELECT * FROM jobs')[-3:]}\n{service.tail()}"
        ) from None
    doubled = service.rows(
        "SELECT jobs.id, jobs.state, count(generations.id) AS n FROM jobs LEFT JOIN generations "
        "ON generations.job_id = jobs.id GROUP BY jobs.id HAVING n != 1"
    )
    assert doubled == [], "each job has one row"
    without_strays(service)
    known = {"ui", "pipeline.worker", "daemon.supervisor"}
    family = [" ".join(p.cmdline()) for p in service.family()]
    assert all(known & set(line.split()) for line in family), family
    with httpx.Client(base_url=service.url, timeout=30, trust_env=False) as http:
        assert http.get("/healthz").status_code == 200
        assert "<html" in http.get("/").text
    no_traceback(service)


def without_strays(service: Service) -> None:
    """No piece of a finished job stays: its worker removes it or, killed just then, the next sweep."""

    def strays() -> list[Path]:
        return [p for p in (service.state / "outputs").rglob("*") if p.suffix in (".part", ".pcm", ".tmp")]

    try:
        wait_for(lambda: not strays(), 5, "the worker's own clean-up")
    except AssertionError:
        paths = StatePaths.at(service.state, {})
        with closing(connect(paths.database)) as conn:
            sweep_orphans(conn, paths, time.time(), grace_s=0)
    assert strays() == []


def no_traceback(service: Service) -> None:
    """In the log, which is what a person at the terminal sees."""
    text = service.log.read_text("utf-8", "replace")
    at = text.find("Traceback")
    assert at < 0, text[max(0, at - 500) : at + 3000]


def no_temporary_files(service: Service) -> None:
    """After a stop: none at all."""
    left = [p for p in (service.state / "tmp").rglob("*") if p.is_file()]
    assert left == []


def sizes(process: psutil.Process) -> tuple[int, int]:
    """Open descriptors and threads."""
    return process.num_fds(), process.num_threads()


def stalled_reader(service: Service, text: str) -> httpx.Client:
    """A client that begins to listen and then reads no more; close it to end it."""
    client = httpx.Client(base_url=service.url, timeout=60, trust_env=False)
    body = {"model": "tts-1", "input": text, "voice": "numbers", "response_format": "pcm"}
    request = client.build_request("POST", "/v1/audio/speech", content=json.dumps(body))
    client.send(request, stream=True)
    return client


def until_answered(service: Service, limit_s: float = 10.0) -> float:
    """Seconds until /healthz answers a newcomer."""
    began = time.monotonic()
    response = httpx.get(f"{service.url}/healthz", timeout=limit_s, trust_env=False)
    assert response.status_code == 200
    return time.monotonic() - began
