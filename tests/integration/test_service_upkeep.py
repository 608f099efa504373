"""What keeps a service going for months: maintenance, scheduled and on request; logins over a restart."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline import access
from pipeline.codes import CosydError
from pipeline.store.db import connect
from tests.bench.service import wakeups
from tests.integration.service import Service, wait_for


def done(service: Service) -> dict[str, dict[str, Any]]:
    """The last `maintenance_done` of each task."""
    rows = service.rows("SELECT params FROM events WHERE kind = 'maintenance_done' ORDER BY id")
    return {params["task"]: params for params in (json.loads(row["params"]) for row in rows)}


def test_maintenance_runs_by_itself_and_when_asked(tmp_path: Path) -> None:
    with Service(tmp_path / "state", {"schedule.retention_every_s": "1"}) as service:
        assert service.speech("The number 7 is spoken here.").status_code == 200
        stray = service.state / "outputs" / "2020-01" / "0123456789abcdef"
        stray.mkdir(parents=True)
        wait_for(lambda: "retention" in done(service), 20, "retention by the schedule")
        for task in ("backup", "thin-samples", "checkpoint"):
            assert service.control("maintenance", task=task) == {"task": task}
        wait_for(lambda: len(done(service)) == 4, 30, "all tasks")
        (copy,) = (service.state / "backups").glob("cosyd-*.db")
        with closing(sqlite3.connect(copy)) as conn:
            assert conn.execute("SELECT count(*) FROM generations").fetchone()[0] == 1
            assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        last = {row["name"]: row for row in service.rows("SELECT * FROM maintenance")}
        assert set(last) == {"retention", "backup", "thin-samples", "checkpoint"}
        assert all(row["last_success_at"] and row["last_error"] is None for row in last.values())
        assert service.speech("The number 8 is spoken here.").status_code == 200
        with pytest.raises(CosydError) as caught:
            service.control("maintenance", task="../../bin/sh")
        assert caught.value.code == "bad_value"


def test_a_login_outlives_a_restart_and_a_link_works_once(tmp_path: Path) -> None:
    service = Service(tmp_path / "state", {"web.host": "0.0.0.0"})
    with service:
        with closing(connect(service.database, "accept")) as conn:
            link = access.create_login_token(conn, time.time())
        with httpx.Client(base_url=service.url, trust_env=False, timeout=30) as person:
            assert person.get("/api/state").status_code == 401
            assert person.get("/login", params={"token": link}).status_code in (200, 302, 303)
            assert person.get("/api/state").status_code == 200
            assert service.stop() == 0
            service.start()
            assert person.get("/api/state").status_code == 200, "the session is kept"
        with httpx.Client(base_url=service.url, trust_env=False, timeout=30) as other:
            other.get("/login", params={"token": link})
            assert other.get("/api/state").status_code == 401, "the link was used up"


def test_a_reload_reaches_page_and_worker_without_a_gap(tmp_path: Path) -> None:
    with Service(tmp_path / "state") as service:
        text = " ".join(f"The number {n} is spoken here." for n in range(1, 7))
        assert service.speech(text).status_code == 200
        page, worker = service.child("ui").pid, service.child("pipeline.worker").pid

        def change(key: str, value: str) -> None:
            with closing(connect(service.database, "accept")) as conn:
                conn.execute("INSERT OR REPLACE INTO settings(key, value) VALUES (?, ?)", (key, value))
            service.control("reload")

        change("keep_alive", "20 min")  # the supervisor's own: nobody has to come back for it
        change("limits.text_chars", "100")
        wait_for(lambda: "web_recycled" in service.event_kinds(), 60, "the new page")
        assert service.event_kinds().count("web_recycled") == 1
        assert service.event_kinds().count("config_reloaded") == 2
        wait_for(lambda: service.child("ui").pid != page, 60, "the old page's end")
        refused = service.speech(text)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "text_too_long")
        assert service.speech("The number 9 is spoken here.").status_code == 200
        assert service.child("pipeline.worker").pid != worker
        assert "worker_killed" not in service.event_kinds()


def test_at_rest_nobody_looks_for_work_all_the_time(tmp_path: Path) -> None:
    """A server in a closet runs for months: whoever polls each millisecond costs a tenth of a core."""
    with Service(tmp_path / "state") as service:
        assert service.speech("Number 3.", voice="numbers").status_code == 200
        time.sleep(3)
        family = service.family()
        before = {process: wakeups(process) for process in family}
        time.sleep(5)
        each_s = {" ".join(p.cmdline()[1:4]): (wakeups(p) - count) / 5 for p, count in before.items()}
        assert len(each_s) >= 3
        assert max(each_s.values()) < 60, each_s
