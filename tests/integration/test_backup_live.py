"""A backup of a cosyd that speaks, and a restore that is refused until it is stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from pipeline.store.db import connect
from tests.engines.numbers import decode
from tests.integration.service import ROOT, Service, wait_for

NUMBERS = list(range(1, 7))
TEXT = " ".join(f"[slow 0.2] This is the calm sentence number {n} of it." for n in NUMBERS)


def cosyd(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("COSYD_")}
    return subprocess.run(
        [sys.executable, "-m", "daemon.cli.main", *words],
        cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT), "COSYD_LANG": "en"}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip


def test_what_is_being_spoken_while_a_backup_is_made_goes_on_in_the_restored_cosyd(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "all.zip"
    with Service(state) as service:
        assert service.speech("The number 8 comes first.").status_code == 200
        job = service.submit(TEXT)
        wait_for(lambda: service.rows("SELECT 1 FROM segments WHERE state = 'done'"), 30, "the first piece")
        done = cosyd("backup", str(backup), "--outputs", "--json", "--state", str(state))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["outputs"] == 1
        assert service.wait_job(job)["state"] == "done"
        refused = cosyd("restore", str(backup), "--yes", "--state", str(state))
        assert refused.returncode == 78, refused.stderr
        assert str(service.process.pid if service.process else "") in refused.stderr
        assert len(service.rows("SELECT id FROM generations")) == 2
    other = tmp_path / "other"
    done = cosyd("restore", str(backup), "--yes", "--state", str(other))
    assert done.returncode == 0, done.stderr
    with Service(other) as service:
        assert service.wait_job(job)["state"] == "done"
        sound = service.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
        assert decode(sound.content) == NUMBERS
        assert len(service.rows("SELECT id FROM generations WHERE status = 'done'")) == 2


def test_under_load_no_request_fails_while_backups_are_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Service(state) as service:
        over, answers = threading.Event(), []

        def speak() -> None:
            while not over.is_set():
                answers.append(service.speech("The number 5 is spoken here.").status_code)

        threads = [threading.Thread(target=speak) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(3):
                done = cosyd("backup", str(tmp_path / f"{n}.zip"), "--state", str(state))
                assert done.returncode == 0, done.stderr
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert len(answers) >= 2 and set(answers) == {200}
    for n in range(3):
        other = tmp_path / f"other{n}"
        assert cosyd("restore", str(tmp_path / f"{n}.zip"), "--yes", "--state", str(other)).returncode == 0
        with closing(connect(other / "cosyd.db", "read")) as conn:
            over_ = {row[0] for row in conn.execute("SELECT job_id FROM generations")}
            done_ = {row[0] for row in conn.execute("SELECT id FROM jobs WHERE state = 'done'")}
            assert over_ == done_, "a job that is over has its row, in every backup"
