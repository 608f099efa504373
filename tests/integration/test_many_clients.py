"""Lanes and floods: a long text keeps nobody waiting, and a crowd is served or told when to come again."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.engines.numbers import decode
from tests.integration.service import Service, wait_for


@pytest.mark.alone
def test_short_requests_start_within_a_segment_while_a_long_text_runs(tmp_path: Path) -> None:
    slow = 0.05
    with Service(tmp_path / "state", {"queue_max_s": "10000"}) as service:
        text = " ".join(
            f"[slow {slow}] Here comes the sentence that has the number {n} in it." for n in range(1, 101)
        )
        long_job = service.submit(text, source="page")
        wait_for(
            lambda: service.rows("SELECT 1 FROM segments WHERE state = 'done' LIMIT 1"),
            30,
            "the first segment",
        )
        delays = []
        for n in range(10):
            began = time.monotonic()
            body = {
                "model": "tts-1",
                "input": f"One short question with the number {n}.",
                "voice": "numbers",
                "response_format": "pcm",
            }
            with httpx.stream(
                "POST", f"{service.url}/v1/audio/speech", json=body, timeout=30, trust_env=False
            ) as response:
                assert response.status_code == 200
                heard = bytearray()
                for chunk in response.iter_bytes():
                    if not heard:
                        delays.append(time.monotonic() - began)
                    heard += chunk
            assert decode(bytes(heard)) == [n]
        finished = service.rows(
            "SELECT count(*) AS n FROM segments WHERE job_id = ? AND state = 'done'", long_job
        )
        assert finished[0]["n"] < 100, "the long text was over before the short ones came: nothing was tested"
        times = service.rows(
            "SELECT max(synthesis_seconds / segments) AS worst FROM generations WHERE job_id != ?", long_job
        )
        row = service.wait_job(long_job, 180)
        assert row["state"] == "done"
        long_row = service.rows("SELECT * FROM generations WHERE job_id = ?", long_job)[0]
        segment_s = max(long_row["synthesis_seconds"] / long_row["segments"], times[0]["worst"])
        assert max(delays) <= segment_s + 1.0, (delays, segment_s)
        audio = service.http.get(f"/api/jobs/{long_job}/audio", params={"format": "pcm"})
        assert decode(audio.content) == list(range(1, 101))


@pytest.mark.parametrize("clients, requests", [(16, 400)])
def test_a_flood_is_served_or_told_when_to_come_again(tmp_path: Path, clients: int, requests: int) -> None:
    with Service(tmp_path / "state", {"patience.openai_s": "20"}) as service:
        draw = random.Random(1)
        words = "calm house quiet lamp river stone seven eleven morning paper".split()
        texts = [
            f"Request {n}: " + " ".join(draw.choices(words, k=draw.choice((3, 8, 20, 60)))) + "."
            for n in range(requests)
        ]
        results: list[tuple[int, str | None, int]] = []
        lock = threading.Lock()

        def one(text: str) -> None:
            body = {"model": "tts-1", "input": text, "voice": "numbers", "response_format": "mp3"}
            response = httpx.post(f"{service.url}/v1/audio/speech", json=body, timeout=180, trust_env=False)
            with lock:
                results.append(
                    (response.status_code, response.headers.get("retry-after"), len(response.content))
                )

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(one, texts))
        statuses = [status for status, _, _ in results]
        assert len(statuses) == requests
        assert not [s for s in statuses if s >= 500], service.tail()
        assert set(statuses) <= {200, 429}
        assert all(retry for status, retry, _ in results if status == 429)
        assert all(size > 500 for status, _, size in results if status == 200)
        accepted = statuses.count(200)
        service.generations(accepted)
        rows = service.rows("SELECT status, count(*) AS n FROM generations GROUP BY status")
        assert rows == [{"status": "done", "n": accepted}]
        left = [p for p in (service.state / "tmp").rglob("*") if p.is_file()]
        assert left == []
        strays = [p for p in (service.state / "outputs").rglob("*") if p.suffix in (".part", ".pcm")]
        assert strays == []


def test_what_does_not_fit_the_patience_gets_429_and_when_to_come_again(tmp_path: Path) -> None:
    """A queue far beyond what the client would wait for is refused, not taken and then lost."""
    settings = {"patience.openai_s": "1", "limits.short_requests_min": "2", "queue_max_s": "60"}
    with Service(tmp_path / "state", settings) as service:
        text = " ".join(f"[slow 0.3] This is the calm sentence number {n} of it." for n in range(1, 9))
        jobs = [service.submit(text) for _ in range(2)]
        refused = service.speech("Another long text follows here. " * 40)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        for job in jobs:
            service.http.delete(f"/api/jobs/{job}")
            assert service.wait_job(job)["state"] == "cancelled"
