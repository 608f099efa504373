"""The pieces of a job: planned once, begun, finished; all writes guarded by the lease's token."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from pipeline.clock import utc_text
from pipeline.jobs import SAMPLE_RATE, SEED_MAX, SegmentState
from pipeline.queue.values import PlannedSegment, SegmentRow
from pipeline.store.db import write_transaction

_HELD = "EXISTS (SELECT 1 FROM jobs WHERE id=:job AND lease_token=:token AND state='running')"


def plan_segments(
    conn: sqlite3.Connection,
    job_id: str,
    token: str,
    segments: Sequence[PlannedSegment],
    *,
    seed: int = 0,
    begin: int | None = None,
) -> bool:
    """Write the cutting of the text. False when the job is no longer ours.

    May be called again, for a leaner cut of what was not begun: finished segments stay as they are, the
    rest is replaced, crash counts are kept by index (otherwise poison would never be seen). Segment `idx`
    gets seed `seed + idx`, so that a redo says the same and no two segments share their noise. `begin` is
    marked running at once, as `begin_segment` does: one fsync less before the first sound.
    """
    with write_transaction(conn):
        held = conn.execute(f"SELECT {_HELD}", {"job": job_id, "token": token}).fetchone()[0]
        if not held:
            return False
        last = max((s.idx for s in segments), default=-1)
        conn.execute("DELETE FROM segments WHERE job_id=? AND state!='done' AND idx>?", (job_id, last))
        conn.executemany(
            "INSERT INTO segments (job_id, idx, start_char, end_char, text, state, seed) "
            "VALUES (?, ?, ?, ?, ?, 'pending', ?) ON CONFLICT (job_id, idx) DO UPDATE SET "
            "start_char=excluded.start_char, end_char=excluded.end_char, text=excluded.text, "
            "seed=excluded.seed, state='pending', samples=0 WHERE state!='done'",
            [(job_id, s.idx, s.start, s.end, s.text, (seed + s.idx) % (SEED_MAX + 1)) for s in segments],
        )
        conn.execute(
            "UPDATE segments SET state='running' WHERE job_id=? AND idx=? AND state!='done'", (job_id, begin)
        )
    return True


def load_segments(conn: sqlite3.Connection, job_id: str) -> list[SegmentRow]:
    """All segments of the job in order; empty before they are planned."""
    rows = conn.execute(
        "SELECT job_id, idx, start_char, end_char, text, state, seed, attempt, samples, error_code "
        "FROM segments WHERE job_id=? ORDER BY idx",
        (job_id,),
    )
    return [
        SegmentRow(
            job_id=row["job_id"],
            idx=row["idx"],
            start=row["start_char"],
            end=row["end_char"],
            text=row["text"],
            state=SegmentState(row["state"]),
            seed=row["seed"],
            attempt=row["attempt"],
            samples=row["samples"],
            error_code=row["error_code"],
        )
        for row in rows
    ]


def begin_segment(conn: sqlite3.Connection, job_id: str, idx: int, token: str) -> bool:
    """Mark it running: if the worker dies now, this is the segment it died on."""
    return _change(conn, job_id, idx, token, "state='running'", "state!='done'", {})


def finish_segment(
    conn: sqlite3.Connection,
    job_id: str,
    idx: int,
    token: str,
    *,
    samples: int,
    synthesis_s: float = 0.0,
    first_audio_at: float | None = None,
) -> bool:
    """Mark it done with `samples` at 24 kHz; its file must already be in place. False: not ours, or done.

    `synthesis_s` is the time it took, `first_audio_at` (wall seconds) when its first sample was there; both
    are kept with the job, so that they survive this worker.
    """
    with write_transaction(conn):
        changed = conn.execute(
            "UPDATE segments SET state='done', samples=:samples, error_code=NULL "
            f"WHERE job_id=:job AND idx=:idx AND state!='done' AND {_HELD}",
            {"samples": samples, "job": job_id, "idx": idx, "token": token},
        ).rowcount
        if changed:
            conn.execute(
                "UPDATE job_work SET spoken_s=spoken_s+?, synthesis_s=synthesis_s+?, "
                "first_audio_at=coalesce(first_audio_at, ?) WHERE job_id=?",
                (
                    samples / SAMPLE_RATE,
                    synthesis_s,
                    None if first_audio_at is None else utc_text(first_audio_at),
                    job_id,
                ),
            )
    return changed == 1


def reopen_segments(conn: sqlite3.Connection, job_id: str, idx: int, token: str) -> bool:
    """Segments from `idx` on are to be made again: a file of theirs is gone. False: not ours."""
    with write_transaction(conn):
        if not conn.execute(f"SELECT {_HELD}", {"job": job_id, "token": token}).fetchone()[0]:
            return False
        conn.execute(
            "UPDATE job_work SET spoken_s=max(0, spoken_s-(SELECT coalesce(sum(samples), 0) FROM segments "
            "WHERE job_id=:job AND idx>=:idx)*1.0/:rate) WHERE job_id=:job",
            {"job": job_id, "idx": idx, "rate": SAMPLE_RATE},
        )
        conn.execute(
            "UPDATE segments SET state='pending', samples=0 WHERE job_id=? AND idx>=?", (job_id, idx)
        )
    return True


def fail_segment(conn: sqlite3.Connection, job_id: str, idx: int, token: str, code: str) -> bool:
    """Note why a take was thrown away (`bad_take`) and make the segment ready to be made again."""
    return _change(
        conn, job_id, idx, token, "state='pending', error_code=:code", "state!='done'", {"code": code}
    )


def _change(
    conn: sqlite3.Connection,
    job_id: str,
    idx: int,
    token: str,
    assign: str,
    where: str,
    more: dict[str, object],
) -> bool:
    with write_transaction(conn):
        changed = conn.execute(
            f"UPDATE segments SET {assign} WHERE job_id=:job AND idx=:idx AND {where} AND {_HELD}",
            {"job": job_id, "idx": idx, "token": token, **more},
        ).rowcount
    return changed == 1
