"""Kill any process in the middle of a text: nothing is lost, nothing is said twice, and it is on record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engines.numbers import decode
from tests.integration.service import Service, wait_for


def numbered(count: int, slow_s: float) -> str:
    """`count` sentences, each its own segment that says its number, slowly enough to be interrupted."""
    return " ".join(
        f"[slow {slow_s}] Here comes the sentence that has the number {n} in it." for n in range(1, count + 1)
    )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "state") as running:
        yield running


class Listener:
    """A client that reads the whole body of a speech request in a thread."""

    def __init__(self, service: Service, text: str) -> None:
        self.body = bytearray()
        self.error: Exception | None = None
        self.status: int | None = None
        self._service = service
        self._text = text
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        body = {"model": "tts-1", "input": self._text, "voice": "numbers", "response_format": "pcm"}
        try:
            with httpx.stream(
                "POST", f"{self._service.url}/v1/audio/speech", json=body, timeout=120, trust_env=False
            ) as response:
                self.status = response.status_code
                for chunk in response.iter_bytes():
                    self.body += chunk
        except httpx.HTTPError as error:
            self.error = error

    def finish(self, timeout_s: float = 90.0) -> bytes:
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the listener never came to an end\n" + self._service.tail()
        assert self.error is None, f"{self.error!r}\n{self._service.tail()}"
        assert self.status == 200
        return bytes(self.body)


def wait_segments(service: Service, count: int) -> None:
    """Until `count` segments of any job are done."""
    wait_for(
        lambda: service.rows("SELECT count(*) AS n FROM segments WHERE state = 'done'")[0]["n"] >= count,
        40,
        f"{count} finished segments",
    )


def test_a_killed_worker_costs_no_word_and_no_second_one(service: Service) -> None:
    listener = Listener(service, numbered(10, 0.15))
    wait_segments(service, 3)
    web = service.child("ui")
    service.child("pipeline.worker").send_signal(signal.SIGKILL)
    heard = decode(listener.finish())
    assert heard == list(range(1, 11))
    rows = service.generations(1)
    assert len(rows) == 1 and rows[0]["status"] == "done"
    assert web.is_running(), "the page went away"
    kinds = service.event_kinds()
    assert "worker_exited" in kinds or "worker_killed" in kinds, kinds
    assert "job_requeued" in kinds


def test_a_killed_page_costs_no_job_and_refuses_nobody(service: Service) -> None:
    job = service.submit(numbered(10, 0.15))
    wait_segments(service, 2)
    service.child("ui").send_signal(signal.SIGKILL)
    # The supervisor still owns the socket: a request made now waits in the backlog and is answered.
    response = httpx.get(f"{service.url}/healthz", timeout=30, trust_env=False)
    assert response.status_code == 200
    assert service.wait_job(job)["state"] == "done"
    audio = service.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
    assert decode(audio.content) == list(range(1, 11))
    assert len(service.generations(1)) == 1


@pytest.mark.alone
def test_a_killed_supervisor_leaves_no_process_and_the_job_goes_on(service: Service) -> None:
    job = service.submit(numbered(10, 0.2))
    wait_segments(service, 3)
    family = service.family()
    assert len(family) >= 3
    assert service.process is not None
    service.process.send_signal(signal.SIGKILL)
    service.process.wait(10)
    Service.gone(family, 3.0)
    done_before = service.rows("SELECT idx FROM segments WHERE state = 'done' ORDER BY idx")
    service.start()
    assert service.wait_job(job)["state"] == "done"
    audio = service.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
    assert decode(audio.content) == list(range(1, 11))
    rows = service.generations(1)
    assert len(rows) == 1 and rows[0]["segments"] == 10
    assert len(done_before) >= 3


@pytest.mark.alone
def test_a_stopped_service_resumes_the_job_at_the_next_start(service: Service) -> None:
    job = service.submit(numbered(10, 0.2))
    wait_segments(service, 2)
    assert service.stop() == 0
    row = service.rows("SELECT state FROM jobs WHERE id = ?", job)[0]
    assert row["state"] == "queued", "no row may say running while nothing runs"
    service.start()
    assert service.wait_job(job)["state"] == "done"
    audio = service.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
    assert decode(audio.content) == list(range(1, 11))


def test_a_text_that_kills_the_worker_is_given_up_and_the_next_one_is_spoken(service: Service) -> None:
    poison = service.submit("[die] This sentence with the number 3 ends every engine that reads it.")
    row = service.wait_job(poison)
    assert (row["state"], row["error_code"]) == ("failed", "worker_died")
    good = service.submit("This sentence with the number 4 is harmless for everybody.")
    assert service.wait_job(good)["state"] == "done"
    states = {name: engine["state"] for name, engine in service.status()["engines"].items()}
    assert states.get("numbers") != "failed", "a poison text may not use up the restart budget"


def test_grandchildren_end_with_the_worker(service: Service) -> None:
    """An espeak or ffmpeg child of a killed worker would otherwise go on for nobody."""
    service.submit(numbered(4, 0.2))
    worker = service.child("pipeline.worker")
    wait_segments(service, 1)
    below = worker.children(recursive=True)
    worker.send_signal(signal.SIGKILL)
    Service.gone([worker, *below], 3.0)


def test_two_instances_never_share_a_state_folder(service: Service) -> None:
    second = Service(service.state, port=None)
    second.log = service.state.parent / "second.log"
    second.start(wait=False)
    assert second.process is not None
    status = second.process.wait(20)
    assert status != 0
    assert service.process is not None
    assert str(service.process.pid) in second.tail(), "the error names who holds the folder"
    assert psutil.pid_exists(service.process.pid)
