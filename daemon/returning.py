"""What becomes of the jobs of a worker that is gone: whose fault it was (pure), and their return.

Called by `daemon.children` when a process has ended. The tables are changed in the writer thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daemon.lifecycle import Child
from daemon.recorder import Recorder
from daemon.writer import Writer
from pipeline import queue
from pipeline.clock import Clock


@dataclass(frozen=True, slots=True)
class Blame:
    """What a worker's end says against what it held: `segment` (it crashed on it), `job` (one try less)."""

    segment: bool
    job: bool


def blame(child: Child, killer: str | None = None) -> Blame:
    """Of a child that has just ended, before `lifecycle.exited`.

    One that we killed, or the kernel for lack of memory (`killer`), did not crash. Its job has a try less
    only when work brought the kill about (it hung, or memory ran out): a stop or a restart may come as often
    as people like.
    """
    if killer:
        return Blame(segment=False, job=True)
    if not child.killed:
        return Blame(segment=True, job=True)
    return Blame(segment=False, job=child.charged or (child.ending or "").startswith("memory"))


def return_jobs(
    writer: Writer,
    recorder: Recorder,
    clock: Clock,
    child: Child,
    owner: str,
    done: Callable[[list[queue.Requeued]], None],
    killer: str | None = None,
) -> None:
    """Give back what the dead `owner` held, and record it; `done` gets what was returned, in the loop."""
    fault = blame(child, killer)

    def returned(found: list[queue.Requeued]) -> None:
        for job in found:
            if job.code == "cancelled":
                continue
            told = {"job": job.job_id, "engine": job.engine, "attempt": job.attempt, "child": child.name}
            if job.failed:
                reason = "poison" if job.poison else "too_many_attempts"
                recorder.event("worker_exited", job.code, {**told, "reason": reason})
            else:
                recorder.event("job_requeued", None, told)
        done(found)

    writer.do(
        f"requeue:{owner}",
        lambda conn: queue.requeue_owner(conn, owner, clock.wall(), crashed=fault.segment, counted=fault.job),
        returned,
    )
