"""The recordings that were made: listing, search in any script, deletion. Read by page, API and CLI.

Search goes through `generations_fts` (see `pipeline.store.cjk`): runs of Chinese, Japanese or Korean
characters are phrases, other words match by prefix, all of them must occur. Newest first; a page's cursor is
the `seq` of its last row, so that new recordings do not shift what follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.paths import StatePaths
from pipeline.store.cjk import match_expression
from pipeline.store.db import write_transaction

MAX_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Generation:
    """A row of `generations`; `seq` is the cursor. Times are UTC texts, None is unknown or does not apply."""

    seq: int
    id: str
    job_id: str
    created_at: str
    finished_at: str
    status: str
    text: str
    language: str
    mode: str
    voice: str
    instruct: str | None
    seed: int
    speed: float
    engine: str
    model: str
    device: str
    dtype: str
    profile: str
    source: str
    client: str
    owner: str
    audio_path: str | None
    audio_format: str | None
    audio_seconds: float | None
    queue_seconds: float | None
    first_audio_seconds: float | None
    synthesis_seconds: float | None
    rtf: float | None
    peak_rss_bytes: int | None
    peak_vram_bytes: int | None
    segments: int
    retries: int
    stand_in: bool
    degraded: bool
    error_code: str | None
    error: str | None


_FIELDS = tuple(f.name for f in dataclasses.fields(Generation))
_COLUMNS = ", ".join(f"g.{name}" for name in _FIELDS)


def _generation(row: sqlite3.Row) -> Generation:
    fields = {name: row[name] for name in _FIELDS}
    fields["stand_in"], fields["degraded"] = bool(fields["stand_in"]), bool(fields["degraded"])
    return Generation(**fields)


def search(
    conn: sqlite3.Connection,
    query: str = "",
    *,
    limit: int = 50,
    before: int | None = None,
    owner: str | None = None,
) -> list[Generation]:
    """Recordings whose text has everything in `query`, newest first, at most `limit`.

    A blank query lists all; one that has only punctuation finds nothing. `before` is the `seq` of the last
    row of the page before; `owner` restricts to one person's. Never raises for any query.
    """
    limit = max(0, min(limit, MAX_LIMIT))
    where, params = [], list[object]()
    if query.strip():
        expression = match_expression(query)
        if expression is None:
            return []
        # The index gives rowids in descending order by itself, so a common word ends after `limit` rows.
        source = "generations_fts f CROSS JOIN generations g ON g.seq=f.rowid"
        key = "f.rowid"
        where.append("generations_fts MATCH ?")
        params.append(expression)
    else:
        source, key = "generations g", "g.seq"
    if before is not None:
        where.append(f"{key}<?")
        params.append(before)
    if owner is not None:
        where.append("g.owner=?")
        params.append(owner)
    condition = f"WHERE {' AND '.join(where)}" if where else ""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM {source} {condition} ORDER BY {key} DESC LIMIT ?", (*params, limit)
    )
    return [_generation(row) for row in rows]


def get(conn: sqlite3.Connection, generation_id: str) -> Generation | None:
    """One recording, or None."""
    row = conn.execute(f"SELECT {_COLUMNS} FROM generations g WHERE g.id=?", (generation_id,)).fetchone()
    return None if row is None else _generation(row)


def delete(conn: sqlite3.Connection, paths: StatePaths, generation_id: str) -> bool:
    """Erase a recording: row, search text, its job with the pieces, then its files. False: no such one.

    The rows go first: a file without a row is swept up later, a row without its file would be a lie.
    """
    return bool(delete_many(conn, paths, [generation_id]))


def delete_many(conn: sqlite3.Connection, paths: StatePaths, generation_ids: Sequence[str]) -> list[str]:
    """`delete` for several in one transaction; returns the ids that there were."""
    rows = []
    with write_transaction(conn):
        for generation_id in generation_ids:
            row = conn.execute(
                "DELETE FROM generations WHERE id=? RETURNING id, job_id, created_at, audio_path",
                (generation_id,),
            ).fetchone()
            if row is None:
                continue
            rows.append(row)
            conn.execute(
                "DELETE FROM jobs WHERE id=? AND state IN ('done', 'failed', 'cancelled')", (row["job_id"],)
            )
    for row in rows:
        remove_audio(paths, row["created_at"], row["job_id"], row["audio_path"])
    return [row["id"] for row in rows]


def remove_audio(paths: StatePaths, created_at: str, job_id: str, audio_path: str | None) -> None:
    """Unlink a job's folder, its final file and whatever `audio_path` names below the outputs folder."""
    shutil.rmtree(paths.job_dir(created_at, job_id), ignore_errors=True)
    files = [paths.final_audio(created_at, job_id)]
    if audio_path is not None and (inside := output_file(paths, audio_path)) is not None:
        files.append(inside)
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def output_file(paths: StatePaths, audio_path: str) -> Path | None:
    """The file that a row's `audio_path` (relative to the state folder) names; None outside the outputs."""
    file = Path(paths.root, audio_path)
    return file if file.resolve().is_relative_to(paths.outputs.resolve()) else None
