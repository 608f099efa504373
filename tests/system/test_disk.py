"""A state folder that is read-only, nearly full or really full, on a small file system made for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service import Service, ended, plain_words, wait_for
from tests.system.mounts import small_tmpfs
from tests.system.swap_helper import MIB


@pytest.mark.root
def test_a_read_only_state_folder_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=8m", "tmpfs", str(state)], check=True)
    try:
        service = Service(state)
        assert ended(service) in (70, 75, 78)
        assert str(state) in plain_words(service)
    finally:
        subprocess.run(["umount", str(state)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path, 64 * MIB) as folder:
        yield folder


@pytest.mark.root
def test_a_full_disk_refuses_new_jobs_finishes_running_ones_and_recovers(small_disk: Path) -> None:
    with Service(small_disk / "state", {"limits.min_free_bytes": "8 MiB"}) as service:
        service.log = small_disk.parent / "service.log"
        running = [
            service.submit(
                " ".join(f"[slow 0.2] This is the calm sentence number {n} of it." for n in range(1, 7)),
                client=f"c{k}",
            )
            for k in range(2)
        ]
        wait_for(
            lambda: service.rows("SELECT 1 FROM segments WHERE state = 'done' LIMIT 1"),
            30,
            "the first segment",
        )
        disk = os.statvfs(small_disk)
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            # Leaves less than the 8 MiB that new jobs need, but enough for what runs.
            file.write(b"\0" * (disk.f_bavail * disk.f_frsize - 6 * 2**20))
        for _ in range(5):
            refused = service.speech("Number 3 does not fit any more.")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "storage_full"
            assert int(refused.headers["retry-after"]) >= 1
        for job in running:
            assert service.wait_job(job)["state"] == "done"
        ballast.unlink()
        assert service.speech("Number 4 fits again.").status_code == 200
        assert len(service.rows("SELECT id FROM generations WHERE status = 'done'")) == 3
        assert "Traceback" not in service.log.read_text() if service.log.exists() else True


@pytest.mark.root
def test_a_disk_that_is_really_full_costs_no_crash(small_disk: Path) -> None:
    with Service(small_disk / "state", {"limits.min_free_bytes": "0"}) as service:
        assert service.speech("Number 1 makes a row.").status_code == 200
        web, worker = service.child("ui").pid, service.child("pipeline.worker").pid
        disk = os.statvfs(small_disk)
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            try:
                file.write(b"\0" * (disk.f_bavail * disk.f_frsize))
                file.flush()
            except OSError:
                pass
        response = service.speech("Number 2 has no room at all.")
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "storage_full"
        assert service.http.get("/healthz").status_code == 200
        ballast.unlink()
        wait_for(lambda: service.speech("Number 3 fits again.").status_code == 200, 30, "recovery", 0.5)
        assert service.child("ui").pid == web
        assert service.child("pipeline.worker").pid == worker
