"""Demand, admission, schedule, status: the small pure rules of the supervisor."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from daemon.admission import Need, admit, default_need
from daemon.demand import Demand, is_wanted
from daemon.lifecycle import Child, State
from daemon.policy import PolicyState
from daemon.sample import RamReading, Sample, VramReading
from daemon.schedule import Schedule, Task, is_late, parse_time_of_day
from daemon.status import View, fingerprint, state_object, status_line
from daemon.workers import wait_reason
from pipeline.profile import Config
from pipeline.queue import EngineQueue

MIB = 1024**2
GIB = 1024 * MIB
CONFIG = Config()


@pytest.mark.parametrize(
    ("demand", "keep_alive_s", "wanted"),
    [
        (Demand(), 900.0, False),
        (Demand(queued=1), 0.0, True),
        (Demand(running=1), 0.0, True),
        (Demand(active_at=101.0), 900.0, True),
        (Demand(active_at=99.0), 901.0, False),
        (Demand(active_at=-1e9), math.inf, True),
        (Demand(queued=None, running=None), 0.0, None),
        (Demand(queued=None, running=None, active_at=999.0), 900.0, True),
        (Demand(pinned_until=1001.0), 0.0, True),
    ],
)
def test_when_a_worker_is_wanted(demand: Demand, keep_alive_s: float, wanted: bool | None) -> None:
    assert is_wanted(demand, keep_alive_s=keep_alive_s, now=1000.0) is wanted


def test_a_start_must_leave_the_reserve() -> None:
    state = PolicyState()
    need = Need(300 * MIB)
    reserve = CONFIG.guard.ram.low_enter.bytes_of(4 * GIB)
    fits = Sample(RamReading(300 * MIB + reserve, 4 * GIB))
    assert admit(need, fits, state, CONFIG, {}).admit
    short = admit(need, Sample(RamReading(300 * MIB + reserve - 5, 4 * GIB)), state, CONFIG, {})
    assert (short.admit, short.code, short.params["short_bytes"]) == (False, "waiting_memory", 5)
    assert short.retry_after_s


def test_a_card_must_fit_as_well() -> None:
    sample = Sample(RamReading(8 * GIB, 16 * GIB), VramReading(3 * GIB, 6 * GIB))
    refused = admit(Need(GIB, 4 * GIB), sample, PolicyState(), CONFIG, {})
    assert refused.params["resource"] == "vram"
    assert admit(Need(GIB, None), sample, PolicyState(), CONFIG, {}).admit


def test_unknown_refuses_nobody() -> None:
    assert admit(Need(100 * GIB, 100 * GIB), Sample(), PolicyState(), CONFIG, {}).admit
    assert admit(Need(None), Sample(RamReading(0, GIB)), PolicyState(), CONFIG, {}).admit


def test_under_foreign_pressure_nothing_new_is_loaded_and_the_program_is_named() -> None:
    state = PolicyState(foreign=frozenset({"ram"}))
    refused = admit(Need(1), Sample(RamReading(GIB, 2 * GIB)), state, CONFIG, {"ram": ("ollama", 7)})
    assert (refused.code, refused.params) == (
        "foreign_memory",
        {"resource": "ram", "name": "ollama", "bytes": 7},
    )


def test_an_engine_never_seen_has_a_guess() -> None:
    assert default_need("builtin").rss_bytes and default_need("whatever").rss_bytes


@pytest.mark.parametrize(
    ("last", "now", "late"),
    [
        (None, 1000.0, False),
        (None, 3600.0, True),
        (100_000.0, 100_000.0 + 86_400, False),
        (100_000.0, 100_000.0 + 86_400 * 1.3, True),
        (500_000.0, 100_000.0, False),
    ],
)
def test_a_missed_task_is_seen_to_be_late(last: float | None, now: float, late: bool) -> None:
    assert is_late(Task("backup", 86_400.0), last, now, started_at=0.0) is late


@pytest.mark.parametrize("text", ["24:00", "3", "aa:bb", "03:60", "-1:00"])
def test_a_wrong_time_of_day_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time_of_day(text)


def test_the_schedule_only_posts() -> None:
    posted: list[str] = []
    quick = replace(CONFIG, schedule=replace(CONFIG.schedule, expire_every_s=0.1, retention_every_s=1.0))
    schedule = Schedule(quick, posted.append)
    schedule.start()
    try:
        end = time.monotonic() + 5
        while posted.count("expire") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        schedule.close()


def view(**more: object) -> View:
    base = View(
        pid=1, started_at="t", sample=Sample(RamReading(2 * GIB, 4 * GIB)), state=PolicyState(),
        gpu_state="none",
        web=Child("web", state=State.READY), workers={}, stats={}, reasons={}, others={}, profile="cpu",
        web_url="http://x", stopping=False,
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def test_the_state_has_the_documented_shape_before_anything_ran() -> None:
    found = state_object(view())
    assert found["engines"]["builtin"]["state"] == "absent"
    assert found["engines"]["builtin"]["queued"] == 0
    assert found["ram"]["level"] == "unknown" and found["vram"] is None
    assert found["pressure"] == {"foreign": []}


def test_a_queue_that_cannot_be_read_is_null_not_zero() -> None:
    assert state_object(view(stats=None))["engines"]["builtin"]["queued"] is None
    stats = {"builtin": EngineQueue(3, 1, 0.5, 9.0)}
    assert state_object(view(stats=stats))["engines"]["builtin"]["queued"] == 3


def test_small_movements_are_no_news_and_real_ones_are() -> None:
    def mark(free: int, web: State = State.READY) -> object:
        return fingerprint(
            state_object(view(sample=Sample(RamReading(free, 4 * GIB)), web=Child("web", state=web)))
        )

    assert mark(2 * GIB + 70 * MIB) == mark(2 * GIB + 71 * MIB)
    assert mark(2 * GIB) != mark(3 * GIB)
    assert mark(2 * GIB) != mark(2 * GIB, State.FAILED)


def test_one_line_for_systemctl() -> None:
    line = status_line(view(workers={"builtin": Child("worker:builtin", state=State.READY)}))
    assert line == "page ready, builtin ready, 2.0 GB of RAM free"
    assert status_line(view(gpu_state="driver_mismatch")).endswith("graphics card driver updated")
    assert "card" not in status_line(view(gpu_state="asleep"))


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (Child("w", state=State.READY), None),
        (Child("w", state=State.WAITING_MEMORY, code="foreign_memory"), "foreign_memory"),
        (Child("w", state=State.FAILED, code="model_missing"), "model_missing"),
        (Child("w", state=State.FAILED, code="internal"), "engine_failed"),
        (Child("w", state=State.STARTING), "starting"),
        (Child("w", state=State.DRAINING), "draining"),
    ],
)
def test_why_jobs_wait(child: Child, reason: str | None) -> None:
    assert wait_reason(child) == reason


def test_intervals_count_anew_after_the_clock_was_set_back() -> None:
    """Else no lease expires and no deadline ends a job until the old time comes round again."""
    schedule = Schedule(CONFIG, lambda name: None)
    schedule.start()
    try:
        far = datetime.now(UTC) + timedelta(days=30)
        for name in ("expire", "retention", "backup"):
            schedule._scheduler.modify_job(name, next_run_time=far)
        schedule.clock_jumped()
        for name, most_s in (("expire", 5), ("retention", 3600), ("backup", 86400)):
            due = schedule._scheduler.get_job(name).next_run_time
            assert due - datetime.now(UTC) <= timedelta(seconds=most_s)
    finally:
        schedule.close()
