"""G09: daylight saving, a long sleep, overlap. What APScheduler is asked for, and the rule of lateness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from daemon.schedule import Schedule, Task, is_late, too_soon
from pipeline.profile import Config
from pipeline.profile.config import Schedule as Times

DAILY = Task("backup", 86400.0)
BERLIN = ZoneInfo("Europe/Berlin")


def runs(at: str, begin: datetime, days: int) -> list[datetime]:
    """When a daily task at `at` runs, in local time."""
    from apscheduler.triggers.cron import CronTrigger

    hour, minute = map(int, at.split(":"))
    trigger = CronTrigger(hour=hour, minute=minute, timezone=BERLIN)
    found: list[datetime] = []
    now, end = begin.astimezone(UTC), begin.astimezone(UTC) + timedelta(days=days)
    for _ in range(3 * days):
        # As the scheduler asks: after what has run, and as time goes on (UTC: local sums know no fold).
        moment = trigger.get_next_fire_time(None, now.astimezone(BERLIN))
        if moment is None or moment.astimezone(UTC) >= end:
            break
        if not found or not too_soon(DAILY, found[-1].timestamp(), moment.timestamp()):
            found.append(moment)
        now = max(now, moment.astimezone(UTC)) + timedelta(seconds=1)
    return found


@pytest.mark.parametrize("month", [3, 10])
@pytest.mark.parametrize("at", ["02:30", "03:17"])
def test_g09_a_daily_task_runs_once_a_day_through_both_changes_of_the_clock(month: int, at: str) -> None:
    # 2027: the clock goes forward on 28 March and back on 31 October.
    day = 26 if month == 3 else 29
    found = runs(at, datetime(2027, month, day, tzinfo=BERLIN), 5)
    utc = [moment.astimezone(UTC) for moment in found]
    gaps = [(b - a).total_seconds() / 3600 for a, b in pairwise(utc)]
    assert all(gap >= 22.9 for gap in gaps), (found, gaps)
    # A time that does not exist on one night may be left out; `is_late` makes up for it.
    assert len(found) >= 4 and (at == "02:30" or len(found) == 5)


def test_g09_only_what_runs_once_a_day_can_come_too_soon() -> None:
    assert too_soon(DAILY, 100.0, 3700.0) and not too_soon(DAILY, 100.0, 86500.0)
    assert not too_soon(DAILY, None, 1.0) and not too_soon(DAILY, 100.0, 50.0), "the clock was set back"
    assert not too_soon(Task("retention", 3600.0), 100.0, 101.0)


def test_g09_what_was_missed_is_made_up_for_once() -> None:
    backup, day = Task("backup", 86400.0), 86400.0
    assert not is_late(backup, 0.0, 1.0 * day, 0.0)
    assert is_late(backup, 0.0, 4.0 * day, 3.9 * day), "after three days of sleep"
    assert not is_late(backup, 4.0 * day, 4.1 * day, 3.9 * day), "and then not again"


def test_g09_jobs_coalesce_and_never_overlap() -> None:
    schedule = Schedule(Config(schedule=Times()), lambda name: None)
    schedule._scheduler.start(paused=True)
    try:
        jobs = schedule._scheduler.get_jobs()
        assert {job.id for job in jobs} == {"expire", "checkpoint", "retention", "backup", "thin-samples"}
        for job in jobs:
            assert job.coalesce and job.max_instances == 1 and job.misfire_grace_time is None
    finally:
        schedule.close()
