"""Events (what was done automatically, and why) and samples (memory over time): values and their tables.

Written by the supervisor's one writer thread, read by the page, `cosyd why` and `status`. An event keeps the
numbers that led to it, so that "why did it restart?" has an answer (CONTRACTS 2 and 7).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pipeline.clock import utc_text, wall_seconds
from pipeline.store.db import write_transaction

EVENT_KINDS = frozenset(
    (
        "started ready stopped worker_started worker_ready worker_exited worker_killed web_recycled "
        "level_changed trim_done trim_failed unloaded drain_started drained oom_caught degraded restored "
        "admission_refused foreign_pressure backoff_started failed recovered swap_grown swap_shrunk "
        "swap_refused gpu_state_changed creep_predicted job_requeued clock_jumped maintenance_done "
        "config_reloaded"
    ).split()
)
"""The closed set of CONTRACTS 7."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Event:
    """One automatic act at wall second `at`. Bytes are None when unknown.

    Raises ValueError for a kind outside the closed set: a typo must not get into the table.
    """

    at: float
    kind: str
    level: str | None = None
    resource: str | None = None
    code: str | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    ram_available_bytes: int | None = None
    vram_free_bytes: int | None = None
    freed_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in EVENT_KINDS:
            raise ValueError(f"unknown event kind {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory and card at wall second `at`; None is unknown, never zero."""

    at: float
    ram_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    worker_rss_bytes: int | None = None
    web_rss_bytes: int | None = None
    vram_used_bytes: int | None = None
    gpu_util_ratio: float | None = None
    gpu_temp_c: float | None = None
    power_w: float | None = None


def _json(params: Mapping[str, Any]) -> str:
    # A value that JSON does not know is worth more as text than a lost event.
    text = json.dumps(_finite(params), ensure_ascii=False, default=str, allow_nan=False)
    return text.encode("utf-8", "replace").decode()  # SQLite takes no half of a surrogate pair


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(inner) for inner in value]
    return value


def insert_events(conn: sqlite3.Connection, events: Iterable[Event]) -> None:
    """Append in one transaction. Raises CosydError `storage_busy`, `storage_full`."""
    rows = [
        (
            utc_text(e.at),
            e.kind,
            e.level,
            e.resource,
            e.code,
            _json(e.params),
            e.ram_available_bytes,
            e.vram_free_bytes,
            e.freed_bytes,
        )
        for e in events
    ]
    if rows:
        with write_transaction(conn):
            conn.executemany(
                "INSERT INTO events (at, kind, level, resource, code, params, ram_available_bytes, "
                "vram_free_bytes, freed_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )


def insert_samples(conn: sqlite3.Connection, samples: Iterable[Sample]) -> None:
    """Append in one transaction. Raises CosydError `storage_busy`, `storage_full`."""
    rows = [
        (
            utc_text(s.at),
            s.ram_available_bytes,
            s.swap_used_bytes,
            s.worker_rss_bytes,
            s.web_rss_bytes,
            s.vram_used_bytes,
            s.gpu_util_ratio,
            s.gpu_temp_c,
            s.power_w,
        )
        for s in samples
    ]
    if rows:
        with write_transaction(conn):
            conn.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def recent_events(
    conn: sqlite3.Connection,
    limit: int = 50,
    *,
    kinds: Iterable[str] | None = None,
    since: float | None = None,
) -> list[Event]:
    """The latest events, newest first; of `kinds` only, or not before wall second `since`."""
    where, params = ["1"], list[Any]()
    if kinds is not None:
        wanted = list(kinds)
        where.append(f"kind IN ({','.join('?' * len(wanted))})")
        params += wanted
    if since is not None:
        where.append("at>=?")
        params.append(utc_text(since))
    rows = conn.execute(
        f"SELECT * FROM events WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", (*params, max(0, limit))
    )
    return [
        Event(
            at=wall_seconds(row["at"]),
            kind=row["kind"],
            level=row["level"],
            resource=row["resource"],
            code=row["code"],
            params=json.loads(row["params"]),
            ram_available_bytes=row["ram_available_bytes"],
            vram_free_bytes=row["vram_free_bytes"],
            freed_bytes=row["freed_bytes"],
        )
        for row in rows
        if row["kind"] in EVENT_KINDS
    ]


def samples_since(conn: sqlite3.Connection, since: float) -> list[Sample]:
    """Samples from wall second `since` on, oldest first."""
    rows = conn.execute("SELECT * FROM samples WHERE at>=? ORDER BY at", (utc_text(since),))
    return [Sample(wall_seconds(row["at"]), *tuple(row)[1:]) for row in rows]
