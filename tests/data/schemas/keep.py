"""Writes `vN.db`, N being today's schema: one row of each kind, made by the code of today. Run it before a
new version is appended; a file that is there is never written again."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from pipeline import queue
from pipeline.access import create_api_key
from pipeline.clock import utc_text
from pipeline.events import Event, Sample, insert_events, insert_samples
from pipeline.jobs import JobRequest, Lane
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.pronunciations import add_entry, parse_entry
from pipeline.queue import Outcome, Planned
from pipeline.store.db import SCHEMA_VERSION, connect, write_transaction
from pipeline.store.migrate import migrate

NOW = 1_790_000_000.0
CONSENT = json.dumps({"choice": "agreed", "at": utc_text(NOW), "person": "Anna B."})


def fill(conn: sqlite3.Connection) -> None:
    """A finished recording, a waiting text with a finished piece, and a row in every other table."""
    jobs = []
    for text in ("今天天气很好。 A sentence in two languages.", "This one still waits. It has two parts."):
        request = JobRequest(text=text, voice="heart", source="page", client="")
        jobs.append(
            queue.submit(
                conn, request, engine="builtin", lane=Lane.page, now=NOW, config=Config(), free_bytes=2**40
            )
        )
    for job in jobs:
        claim = queue.claim(conn, job, "w1", NOW, 15.0)
        assert claim is not None
        planned = [Planned(0, "First part.", 0, 10), Planned(1, "Second part.", 10, 20)]
        queue.plan_segments(conn, job, claim.token, planned, seed=7)
        queue.begin_segment(conn, job, 0, claim.token)
        queue.finish_segment(
            conn, job, 0, claim.token, samples=24000, synthesis_s=0.5, first_audio_at=NOW + 1
        )
        if job == jobs[0]:
            outcome = Outcome("done", audio_path=f"outputs/2026-09/{job}.flac")
            assert queue.end_job(conn, job, outcome, NOW + 2, token=claim.token)
    add_entry(conn, parse_entry("SQL", "sequel", ""))
    create_api_key(conn, "Open WebUI", NOW)
    insert_events(conn, [Event(at=NOW, kind="trim_done", params={"freed_bytes": 1}, freed_bytes=1)])
    insert_samples(conn, [Sample(at=NOW, ram_available_bytes=1024**3)])
    with write_transaction(conn):
        conn.execute("INSERT INTO settings VALUES ('keep_alive', '5 min')")
        conn.execute("INSERT INTO people VALUES ('p1', 'Ada', 'owner', NULL, ?)", (utc_text(NOW),))
        conn.execute("INSERT INTO maintenance VALUES ('backup', ?, NULL)", (utc_text(NOW),))
        conn.execute(
            "INSERT INTO voices VALUES ('v-1a2b3c4d5e6f', 'Großmutter 外婆', '', 'cosyvoice3', ?, NULL, "
            "'Guten Tag.', 'de', 5.5, 'upload', 'abc', ?, NULL, '[\"Familie\"]')",
            (utc_text(NOW), CONSENT),
        )


def main() -> int:
    """Make the file of today's schema."""
    target = Path(__file__).with_name(f"v{SCHEMA_VERSION}.db")
    if target.exists():
        print(f"{target.name} is there already")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        paths = StatePaths.at(Path(folder), {})
        migrate(paths, now=NOW)
        with closing(connect(paths.database)) as conn:
            fill(conn)
            conn.execute("PRAGMA journal_mode=DELETE")
            conn.execute("VACUUM")
        target.write_bytes(paths.database.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
