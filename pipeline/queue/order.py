"""Who is next: lanes, then priority, then round robin between clients. The choice is pure."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from pipeline.clock import utc_text
from pipeline.jobs import Lane
from pipeline.queue.values import Candidate


def candidates(conn: sqlite3.Connection, engine: str, now: float) -> list[Candidate]:
    """Queued jobs of `engine` that may be claimed: not cancelled, not told to wait. Oldest first."""
    rows = conn.execute(
        "SELECT id, lane, source, client, priority, created_at FROM jobs "
        "WHERE engine=? AND state='queued' AND cancel_requested_at IS NULL "
        "AND (not_before IS NULL OR not_before<=?) ORDER BY created_at, id",
        (engine, utc_text(now)),
    )
    return [
        Candidate(
            row["id"], Lane[row["lane"]], row["source"], row["client"], row["priority"], row["created_at"]
        )
        for row in rows
    ]


def next_job(
    waiting: Iterable[Candidate], last_served: Mapping[str, float] | None = None
) -> Candidate | None:
    """The candidate to claim next, or None when there is none.

    The smallest lane wins; inside it the highest priority; then the client that was served longest ago (one
    never served comes first); then the oldest job. `last_served` maps `Candidate.client_key` to any number
    that grows with each turn, for example monotonic seconds; its keeper is the worker.
    """
    served = last_served or {}

    def rank(c: Candidate) -> tuple[int, int, float, str, str]:
        return (c.lane, -c.priority, served.get(c.client_key, float("-inf")), c.created_at, c.job_id)

    return min(waiting, key=rank, default=None)


def gives_way(
    current: Candidate, waiting: Iterable[Candidate], last_served: Mapping[str, float] | None = None
) -> bool:
    """Whether, between two segments, another job should run before `current` goes on."""
    return next_job([*waiting, current], last_served) != current
