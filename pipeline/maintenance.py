"""Housekeeping as short children at idle priority: `python -m pipeline.maintenance TASK --state DIR`.

TASK is retention, checkpoint, backup or thin-samples. The supervisor's schedule starts them (never two of a
kind, not while memory is LOW); each leaves a row in `maintenance`, so that a missed one is seen and run late.
Exit 0, or the exit status of the failure's code with `{"code", "params"}` as the last line of stdout. On
success that line is `{"task", ...numbers}`, the params of the event `maintenance_done`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from pipeline.backup.restore import sweep as sweep_restores
from pipeline.child import adopt
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import Config, from_json
from pipeline.profile.problems import unreadable
from pipeline.retention import apply_retention
from pipeline.store.backup import copy_database
from pipeline.store.db import check_schema, connect, storage_error, write_transaction
from pipeline.store.migrate import os_storage_error, report_failure
from pipeline.voices.leftovers import sweep_voices
from pipeline.voices.uploads import sweep_uploads

RAW_SAMPLES_S = 7 * 86400.0
"""10 s rows are kept for a week, then hourly means,"""
HOURLY_SAMPLES_S = 365 * 86400.0
"""those for a year; events as long."""

_BACKUP = re.compile(r"cosyd-\d{8}-\d{6}\.db")
_STALE_PART_S = 86400.0
_MEANS = (
    "ram_available_bytes",
    "swap_used_bytes",
    "worker_rss_bytes",
    "web_rss_bytes",
    "vram_used_bytes",
    "gpu_util_ratio",
    "gpu_temp_c",
    "power_w",
)

Numbers = dict[str, Any]


def retention(conn: sqlite3.Connection, paths: StatePaths, config: Config, now: float) -> Numbers:
    """Old and surplus audio, orphans, rows of jobs long over, clips without a voice, uploads after a day."""
    swept = {"clips": sweep_voices(conn, paths, now), "uploads": sweep_uploads(paths, now)}
    return dataclasses.asdict(apply_retention(conn, paths, config.outputs, now)) | swept


def checkpoint(conn: sqlite3.Connection, paths: StatePaths, config: Config, now: float) -> Numbers:
    """Move the WAL into the database and cut it to nothing; readers in the way make it a partial one."""
    wal = paths.database.with_name(paths.database.name + "-wal")
    before = wal.stat().st_size if wal.exists() else 0
    busy, pages, moved = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return {"busy": bool(busy), "pages": pages, "moved": moved, "wal_bytes": before}


def backup(conn: sqlite3.Connection, paths: StatePaths, config: Config, now: float) -> Numbers:
    """A verified copy in the backups folder; the newest `schedule.backups_kept` stay.

    Old ones are removed only after the new one is in place.
    """
    stamp = utc_text(now)[:19].replace("-", "").replace(":", "").replace("T", "-")
    target = paths.backups / f"cosyd-{stamp}.db"
    copy_database(conn, target)
    kept = sorted(f for f in paths.backups.iterdir() if _BACKUP.fullmatch(f.name))
    for old in kept[: -config.schedule.backups_kept]:
        old.unlink(missing_ok=True)
    for part in paths.backups.glob("*.part*"):
        if now - part.stat().st_mtime > _STALE_PART_S:
            part.unlink(missing_ok=True)
    sweep_restores(paths, now)
    return {"file": target.name, "bytes": target.stat().st_size}


def thin_samples(conn: sqlite3.Connection, paths: StatePaths, config: Config, now: float) -> Numbers:
    """Samples older than a week become one row an hour (unknowns left out of the mean), a year's stay,
    and so do a year's events.

    Hour by hour, each in a short transaction; a thinned hour has one row, so doing it twice changes nothing.
    """
    # Whole hours only: a mean over half an hour would be taken for the hour.
    edge = utc_text(now - RAW_SAMPLES_S)[:13]
    hours = conn.execute(
        "SELECT substr(at, 1, 13) AS hour, count(*) AS n FROM samples WHERE at<? GROUP BY hour HAVING n>1",
        (edge,),
    ).fetchall()
    means = ", ".join(
        f"CAST(round(avg({name})) AS INTEGER)" if name.endswith("_bytes") else f"avg({name})"
        for name in _MEANS
    )
    for row in hours:
        span = (row["hour"], row["hour"] + "~")  # "~" sorts after ":"
        with write_transaction(conn):
            mean = conn.execute(f"SELECT {means} FROM samples WHERE at>=? AND at<?", span).fetchone()
            conn.execute("DELETE FROM samples WHERE at>=? AND at<?", span)
            conn.execute(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row["hour"] + ":00:00.000000Z", *tuple(mean)),
            )
    with write_transaction(conn):
        year = (utc_text(now - HOURLY_SAMPLES_S),)
        dropped = conn.execute("DELETE FROM samples WHERE at<?", year).rowcount
        events = conn.execute("DELETE FROM events WHERE at<?", year).rowcount
    return {"hours": len(hours), "dropped": dropped, "events_dropped": events}


TASKS: dict[str, Callable[[sqlite3.Connection, StatePaths, Config, float], Numbers]] = {
    "retention": retention,
    "checkpoint": checkpoint,
    "backup": backup,
    "thin-samples": thin_samples,
}


def run_task(name: str, paths: StatePaths, config: Config, now: float) -> Numbers:
    """Run one task and record its success or its error code in `maintenance`.

    Raises CosydError: `schema_mismatch`, `storage_full`, `storage_busy`, `internal(reason)`.
    """
    with closing(connect(paths.database, "work")) as conn:
        check_schema(conn)
        try:
            numbers = _translated(TASKS[name], conn, paths, config, now)
        except CosydError as error:
            try:
                _record(
                    conn, name, None, json.dumps({"code": error.code, "params": error.params}, default=str)
                )
            except CosydError:
                pass  # the disk that failed the task may refuse the note as well; the exit status tells it
            raise
        _record(conn, name, utc_text(now), None)
    return {"task": name, **numbers}


def _translated(task: Callable[..., Numbers], *args: Any) -> Numbers:
    try:
        return task(*args)
    except OSError as error:
        raise os_storage_error(error) from error
    except sqlite3.Error as error:
        raise storage_error(error) or error from error


def _record(conn: sqlite3.Connection, name: str, success_at: str | None, error: str | None) -> None:
    with write_transaction(conn):
        conn.execute(
            "INSERT INTO maintenance (name, last_success_at, last_error) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET last_error=excluded.last_error, "
            "last_success_at=coalesce(excluded.last_success_at, last_success_at)",
            (name, success_at, error),
        )


def lower_priority() -> None:
    """Nice 19 and idle I/O: housekeeping must not be heard."""
    os.nice(19)
    try:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    except (OSError, psutil.Error):
        pass  # containers may forbid it; niceness alone is good enough


def main(argv: list[str] | None = None) -> int:
    """Entry of the child. The configuration is what COSYD_CONFIG names, else `<run>/effective.json`."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.maintenance", description=__doc__)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the state folder")
    options = parser.parse_args(argv)
    os.umask(0o077)
    lower_priority()
    paths = StatePaths.at(options.state)
    try:
        if "COSYD_PARENT_PID" in os.environ:
            adopt()
        numbers = run_task(options.task, paths, _config(paths), time.time())
    except CosydError as error:
        report_failure(error, options.state)
        return error.info.exit_status
    print(json.dumps(numbers), flush=True)
    return 0


def _config(paths: StatePaths) -> Config:
    named = os.environ.get("COSYD_CONFIG")
    try:
        return from_json(
            Path(named).read_text("utf-8") if named else paths.effective_config.read_text("utf-8")
        )
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise CosydError("config_error", problems=[unreadable(named or "effective.json", error)]) from error


if __name__ == "__main__":
    sys.exit(main())
