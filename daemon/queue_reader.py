"""What the queue holds, as the supervisor looks at it each tick: read-only, with 50 ms of patience.

What cannot be read is unknown, and nothing is done about it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from pipeline import queue
from pipeline.clock import Clock
from pipeline.codes import CosydError
from pipeline.store.db import check_place, connect, file_identity, storage_error

log = logging.getLogger("cosyd")
TOLD_EVERY_S = 60.0
"""A database that stays unreadable is told once a minute, not at each tick."""


class QueueReader:
    """`conn` is the open connection, None while the database cannot be read."""

    def __init__(self, database: Path, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self.conn: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._seen_version: int | None = None
        self._stats: Mapping[str, queue.EngineQueue] = {}
        self._told_at = float("-inf")

    def read(self) -> Mapping[str, queue.EngineQueue] | None:
        """By engine; None is unknown."""
        try:
            self._opened = self._opened or file_identity(self._database)
            check_place(self._database, self._opened)
            if self.conn is None:
                self.conn = connect(self._database, "read")
                self._seen_version = None
            # Unchanged by anybody since the last look: a tenth of the cost of asking again.
            version = self.conn.execute("PRAGMA data_version").fetchone()[0]
            if version != self._seen_version:
                self._stats = queue.queue_stats(self.conn, self._clock.wall())
                self._seen_version = version
            return self._stats
        except (CosydError, sqlite3.Error) as error:
            known = error if isinstance(error, CosydError) else storage_error(error)
            now = self._clock.monotonic()
            if (known is None or known.code != "storage_busy") and now - self._told_at >= TOLD_EVERY_S:
                self._told_at = now
                log.warning("the queue cannot be read: %s", error)
            self.close()
            return None

    def close(self) -> None:
        """Let the connection go."""
        if self.conn is not None:
            self.conn.close()
        self.conn = None
