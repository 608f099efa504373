"""Memory stays flat: 500 generations, the robust slope of web and worker over generations 100 to 500."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.bench.slope import theil_sen
from tests.integration.service import Service

LIMIT_BYTES_PER_GENERATION = 2048


def rss_anon(pid: int) -> int:
    """RssAnon of a process in bytes: what only it holds and cannot be dropped."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no RssAnon for {pid}")


@pytest.mark.timeout(600)
def test_five_hundred_generations_leave_memory_flat(tmp_path: Path) -> None:
    with Service(tmp_path / "state") as service:
        draw = random.Random(3)
        words = "the calm house by the river has a quiet lamp and seven old paper boats".split()
        web, worker = [], []
        for n in range(500):
            text = " ".join(draw.choices(words, k=draw.randint(4, 16))).capitalize() + "."
            response = service.speech(text, voice="heart", fmt="mp3")
            assert response.status_code == 200, response.text
            if n >= 100:
                web.append(rss_anon(service.child("ui").pid))
                worker.append(rss_anon(service.child("pipeline.worker").pid))
        assert [row["status"] for row in service.generations(500)] == ["done"] * 500
        for name, series in (("web", web), ("worker", worker)):
            slope = theil_sen(series)
            assert slope < LIMIT_BYTES_PER_GENERATION, (
                f"{name}: {slope:.0f} B a generation, from {series[0]} to {series[-1]}"
            )
        assert "worker_exited" not in service.event_kinds(), "a recycled worker would hide the growth"
