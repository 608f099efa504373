"""When periodic work is due: APScheduler jobs that only post messages to the loop, and the pure rule of
lateness.

Heavy work is a child, started by `daemon.housekeeping`; nothing is done in the scheduler's threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.profile import Config

DAY_S = 86400.0
FIRST_RUN_AFTER_S = 3600.0
"""A task that never ran here is late an hour after the start: a machine that sleeps at night gets its
backup."""


@dataclass(frozen=True, slots=True)
class Task:
    """A maintenance task. `every_s` is how often it should succeed."""

    name: str
    every_s: float


def tasks(config: Config) -> tuple[Task, ...]:
    """All tasks of `pipeline.maintenance`."""
    return (
        Task("checkpoint", config.schedule.checkpoint_every_s),
        Task("retention", config.schedule.retention_every_s),
        Task("backup", DAY_S),
        Task("thin-samples", DAY_S),
    )


def is_late(task: Task, last_success: float | None, now: float, started_at: float) -> bool:
    """Whether its time has passed without a success (the machine was off or asleep); wall seconds."""
    if last_success is None:
        return now - started_at >= min(task.every_s, FIRST_RUN_AFTER_S)
    if last_success > now:
        return False  # the clock was set back; the regular time comes
    return now - last_success > task.every_s * 1.25


def too_soon(task: Task, last_done: float | None, now: float) -> bool:
    """Whether a daily task has just run: in the night in which the clock goes back, 02:30 comes twice."""
    return task.every_s >= DAY_S and last_done is not None and 0 <= now - last_done < task.every_s / 2


def parse_time_of_day(text: str) -> tuple[int, int]:
    """`03:17` to (3, 17). Raises ValueError."""
    hour, _, minute = text.partition(":")
    found = int(hour), int(minute)
    if not (0 <= found[0] < 24 and 0 <= found[1] < 60):
        raise ValueError(f"{text!r} is no time of day")
    return found


class Schedule:
    """`post(name)` is called (through the loop) with `expire` or a task's name when it is due."""

    def __init__(self, config: Config, post: Callable[[str], None]) -> None:
        from apscheduler.executors.debug import DebugExecutor
        from apscheduler.schedulers.background import BackgroundScheduler
        from apscheduler.triggers.cron import CronTrigger
        from apscheduler.triggers.interval import IntervalTrigger

        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        # Jobs only post, so they run in the scheduler's own thread: no pool of idle threads.
        self._scheduler = BackgroundScheduler(
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        hour, minute = parse_time_of_day(config.schedule.backup_at)
        schedule = config.schedule
        triggers = {
            "expire": IntervalTrigger(seconds=schedule.expire_every_s),
            "checkpoint": IntervalTrigger(seconds=schedule.checkpoint_every_s),
            "retention": IntervalTrigger(seconds=schedule.retention_every_s),
            "backup": CronTrigger(hour=hour, minute=minute),
            "thin-samples": CronTrigger(hour=(hour + 1) % 24, minute=minute),
        }
        self._triggers = triggers
        for name, trigger in triggers.items():
            self._scheduler.add_job(post, trigger, args=(name,), id=name)

    def clock_jumped(self) -> None:
        """Count all intervals anew: times that were computed before a jump back lie far in the future now,
        and until then no lease would expire and no deadline end a job."""
        for name, trigger in self._triggers.items():
            self._scheduler.reschedule_job(name, trigger=trigger)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def close(self) -> None:
        """End without waiting."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
