"""Eight real processes on one database: nothing is lost, nothing is doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.unit.storekit import new_state, opened, rows

PROCESSES = 8
WRITER = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from pipeline import queue
from pipeline.jobs import JobRequest, Lane
from pipeline.profile import Config
from pipeline.queue import Outcome, Planned
from pipeline.store.db import connect

path, me, mine, total = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = replace(Config(), limits=replace(Config().limits, short_requests_min=10**6))
conn = connect(path, "accept")
submitted, worked, deadline = [], [], time.monotonic() + 100
while time.monotonic() < deadline:
    if len(submitted) < mine:
        request = JobRequest(text=f"text {me} {len(submitted)}", voice="heart", client=me)
        job = queue.submit(
            conn, request, engine="e", lane=Lane.page, now=time.time(), config=config, free_bytes=2**40
        )
        submitted.append(job)
    chosen = queue.next_job(queue.candidates(conn, "e", time.time() + 1))
    if chosen is None:
        if conn.execute("SELECT count(*) FROM generations").fetchone()[0] >= total:
            break
        continue
    claim = queue.claim(conn, chosen.job_id, me, time.time() + 1, 60)
    if claim is None:
        continue
    job = claim.job.id
    if claim.job.attempt == 1 and len(worked) % 5 == 4:
        queue.requeue_owner(conn, me, time.time())  # a crash, as the supervisor sees it
        worked.append(["crash", job])
        continue
    assert queue.plan_segments(conn, job, claim.token, [Planned(0, claim.job.request.text, 0, 1)])
    assert queue.begin_segment(conn, job, 0, claim.token)
    assert queue.finish_segment(conn, job, 0, claim.token, samples=24000, synthesis_s=0.01)
    assert queue.end_job(conn, job, Outcome("done", audio_seconds=1.0), time.time(), claim.token)
    worked.append(["end", job])
print(json.dumps({"submitted": submitted, "worked": worked}))
"""


def test_eight_writers_lose_and_double_nothing(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    each = rounds(15, 200)
    paths = new_state(tmp_path / "state")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(paths.database), f"p{n}", str(each), str(PROCESSES * each)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    outputs = [(*child.communicate(timeout=200), child.returncode) for child in children]
    assert [(stderr, code) for _, stderr, code in outputs] == [("", 0)] * PROCESSES
    reports = [json.loads(stdout) for stdout, _, _ in outputs]
    submitted = [job for report in reports for job in report["submitted"]]
    ended = Counter(job for report in reports for what, job in report["worked"] if what == "end")
    crashed = Counter(job for report in reports for what, job in report["worked"] if what == "crash")
    assert len(submitted) == len(set(submitted)) == PROCESSES * each
    assert ended == Counter(submitted), "each ended once, by one process"
    with closing(opened(paths)) as conn:
        found = rows(conn, "SELECT job_id, status, retries, segments, text FROM generations")
        assert sorted(str(row["job_id"]) for row in found) == sorted(submitted)
        assert {str(row["job_id"]) for row in found if row["retries"]} == set(crashed)
        assert {(row["status"], row["segments"]) for row in found} == {("done", 1)}
        assert len({row["text"] for row in found}) == len(found)
        assert rows(conn, "SELECT DISTINCT state FROM jobs") == [{"state": "done"}]
        assert rows(conn, "SELECT * FROM job_work") == []
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


KILLED = """
import itertools, sys, time
from dataclasses import replace
from pathlib import Path
from pipeline import queue
from pipeline.jobs import JobRequest, Lane
from pipeline.profile import Config
from pipeline.queue import Outcome
from pipeline.store.db import connect

config = replace(Config(), limits=replace(Config().limits, short_requests_min=10**6))
conn = connect(Path(sys.argv[1]), "accept")
for i in itertools.count():
    request = JobRequest(text=f"text {i}", voice="heart")
    job = queue.submit(
        conn, request, engine="e", lane=Lane.page, now=time.time(), config=config, free_bytes=2**40
    )
    print("accepted", job, flush=True)
    if i % 2:
        claim = queue.claim(conn, job, "w", time.time(), 60)
        assert queue.end_job(conn, job, Outcome("done"), time.time(), claim.token)
        print("ended", job, flush=True)
"""


def test_what_was_acknowledged_before_kill_9_is_there(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    paths = new_state(tmp_path / "state")
    said: list[tuple[str, str]] = []
    for _ in range(rounds(4, 50)):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(paths.database)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(15):
            said.append(tuple(child.stdout.readline().split()))  # type: ignore[arg-type]
        os.kill(child.pid, signal.SIGKILL)
        # What it had said by the time of its death counts as well; a half line does not.
        said += [tuple(line.split()) for line in child.stdout.read().splitlines(True) if line.endswith("\n")]  # type: ignore[misc]
        child.stdout.close()
        assert child.wait(10) == -signal.SIGKILL
    with closing(opened(paths)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        jobs = {row["id"]: row["state"] for row in conn.execute("SELECT id, state FROM jobs")}
        ended = {row["job_id"] for row in conn.execute("SELECT job_id FROM generations")}
        assert {job for what, job in said if what == "accepted"} <= set(jobs)
        assert {job for what, job in said if what == "ended"} <= ended
        assert ended == {job for job, state in jobs.items() if state == "done"}
