"""The state machine of one child: what each state does with each thing that can happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import lifecycle as life
from daemon.lifecycle import Beat, Child, Kill, Record, Send, Spawn, State
from daemon.returning import Blame, blame
from pipeline.profile import Config

CONFIG = Config()


def started(now: float = 100.0) -> Child:
    return life.start(Child("worker:x"), now, CONFIG)[0]


def ready(now: float = 101.0) -> Child:
    return life.said_ready(started(), now, {"modes": []}, 50, None)[0]


def kinds(effects: tuple[life.Effect, ...]) -> list[str]:
    return [e.kind if isinstance(e, Record) else type(e).__name__ for e in effects]


def test_a_start_spawns_once() -> None:
    child, effects = life.start(Child("worker:x"), 100.0, CONFIG)
    assert (child.state, effects) == (State.STARTING, (Spawn(),))
    assert life.start(child, 101.0, CONFIG) == (child, ())


def test_ready_is_recorded_with_the_time_it_took() -> None:
    child, effects = life.said_ready(started(100.0), 103.5, {"modes": ["builtin"]}, 7, 8)
    assert child.state is State.READY and child.ready_rss_bytes == 7
    assert effects == (Record("worker_ready", None, {"child": "worker:x", "seconds": 3.5}),)


def test_a_child_that_never_gets_ready_is_killed_and_charged() -> None:
    child = started(100.0)
    assert life.tick(child, 100.0 + CONFIG.deadlines.start_s - 0.1, CONFIG) == (child, ())
    child, effects = life.tick(child, 100.0 + CONFIG.deadlines.start_s, CONFIG)
    assert kinds(effects) == ["Kill", "worker_killed"]
    child, effects = life.exited(child, "signal 9", 161.0, CONFIG)
    assert child.state is State.BACKOFF and len(child.budget.crashes) == 1


def test_progress_while_it_starts_moves_the_deadline_and_its_end_does_not() -> None:
    child, start_s = started(100.0), CONFIG.deadlines.start_s
    for second in range(int(3 * start_s)):  # a first conversion
        child = life.said_heartbeat(child, 100.0 + second, Beat(1, None, None, None, float(second)))
        assert life.tick(child, 100.0 + second, CONFIG) == (child, ())
    last = 100.0 + second
    while (last := last + 1.0) < 100.0 + second + start_s:  # the heart beats on, nothing moves
        child = life.said_heartbeat(child, last, Beat(1, None, None, None, float(second)))
        assert life.tick(child, last, CONFIG) == (child, ())
    assert kinds(life.tick(child, last, CONFIG)[1]) == ["Kill", "worker_killed"]


def test_a_lost_heartbeat_is_an_end_by_force() -> None:
    child = life.said_heartbeat(ready(), 110.0, Beat(1))
    alive_until = 110.0 + CONFIG.deadlines.heartbeat_lost_s
    assert life.tick(child, alive_until, CONFIG)[1] == ()
    assert kinds(life.tick(child, alive_until + 0.1, CONFIG)[1]) == ["Kill", "worker_killed"]


def test_a_busy_child_without_progress_is_killed_although_its_heart_beats() -> None:
    child = life.said_heartbeat(ready(), 110.0, Beat(1, None, "job", 3, 5.0))
    now = 110.0
    while now < 110.0 + life.stuck_after_s(CONFIG):
        assert life.tick(child, now, CONFIG)[1] == ()
        now += 1.0
        child = life.said_heartbeat(child, now, Beat(1, None, "job", 3, 5.0))
    assert kinds(life.tick(child, now + 0.1, CONFIG)[1]) == ["Kill", "worker_killed"]


@pytest.mark.parametrize("moved", [Beat(1, None, "job", 4, 5.0), Beat(1, None, "job", 3, 5.1)])
def test_a_new_segment_or_a_new_chunk_is_progress(moved: Beat) -> None:
    child = life.said_heartbeat(ready(), 110.0, Beat(1, None, "job", 3, 5.0))
    child = life.said_heartbeat(child, 159.0, moved)
    assert life.tick(child, 161.0, CONFIG)[1] == ()


def test_an_idle_child_need_not_progress() -> None:
    child = life.said_heartbeat(ready(), 110.0, Beat(1, None, None, None, 5.0))
    child = life.said_heartbeat(child, 10_000.0, Beat(1, None, None, None, 5.0))
    assert life.tick(child, 10_001.0, CONFIG)[1] == ()


def test_a_drain_is_a_message_first_and_a_kill_after_its_deadline() -> None:
    child, effects = life.drain(ready(), "memory_low", 10.0, 200.0)
    assert child.state is State.DRAINING
    assert effects[0] == Send("drain", {"deadline_s": 10.0, "reason": "memory_low"})
    child = life.said_heartbeat(child, 209.0, Beat(1))
    assert life.tick(child, 209.9, CONFIG)[1] == ()
    child, effects = life.tick(child, 210.0, CONFIG)
    assert kinds(effects) == ["Kill", "worker_killed"]
    assert life.exited(child, "signal 9", 211.0, CONFIG)[0].budget.crashes == ()


def test_a_drained_child_is_absent_and_not_charged() -> None:
    child = life.drain(ready(), "restart", 10.0, 200.0, again=True)[0]
    child, effects = life.exited(child, "exit 0", 203.0, CONFIG)
    assert child.state is State.ABSENT and child.again and child.budget.crashes == ()
    assert kinds(effects) == ["worker_exited", "drained"]


def test_a_child_that_ignores_its_stop_is_killed() -> None:
    child, effects = life.stop(ready(), "idle", 5.0, 200.0)
    assert effects == (Send("shutdown", {"grace_s": 5.0}),)
    assert life.tick(child, 205.0, CONFIG)[1][0] == Kill()


def test_crashes_lead_to_longer_pauses_and_then_to_failed_with_the_cause() -> None:
    child, now, pauses = Child("worker:x"), 0.0, []
    for _ in range(6):
        child = life.start(child, now, CONFIG)[0]
        child, effects = life.exited(child, "exit 1", now, CONFIG)
        if child.state is State.BACKOFF:
            assert child.until is not None
            pauses.append(child.until - now)
            assert life.tick(child, child.until - 0.01, CONFIG)[0].state is State.BACKOFF
            now = child.until
            child = life.tick(child, now, CONFIG)[0]
            assert child.state is State.ABSENT
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert child.state is State.FAILED and kinds(effects) == ["worker_exited", "failed"]
    assert life.tick(child, now + 1e6, CONFIG) == (child, ()), "only a person mends it"
    child = life.forgive(child, now)
    assert child.state is State.ABSENT and child.again


def test_a_cause_that_would_only_repeat_fails_at_once() -> None:
    child = life.said_fatal(started(), "model_missing", {"engine": "x"})
    child, effects = life.exited(child, "exit 75", 101.0, CONFIG)
    assert (child.state, child.code) == (State.FAILED, "model_missing")
    assert isinstance(effects[-1], Record) and effects[-1].code == "model_missing"


def test_poison_gives_the_charge_back() -> None:
    child = replace(started(), budget=life.Budget(tuple(float(n) for n in range(5))))
    child = life.exited(child, "signal 11", 100.0, CONFIG)[0]
    assert child.state is State.FAILED
    child = life.not_its_fault(child, 100.1, CONFIG)
    assert child.state is State.BACKOFF and len(child.budget.crashes) == 5


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda c: c, Blame(segment=True, job=True)),
        (lambda c: life.drain(c, "memory_low", 60, 2.0)[0], Blame(segment=True, job=True)),
        (lambda c: life.kill(c, "memory_critical", 2.0, charge=False)[0], Blame(segment=False, job=True)),
        (lambda c: life.kill(c, "no_progress", 2.0, charge=True)[0], Blame(segment=False, job=True)),
        (lambda c: life.kill(c, "stop", 2.0, charge=False)[0], Blame(segment=False, job=False)),
        (
            lambda c: life.tick(life.drain(c, "memory_low", 1, 200.0)[0], 201.5, CONFIG)[0],
            Blame(segment=False, job=True),
        ),
        (
            lambda c: life.tick(life.stop(c, "restart", 1, 200.0)[0], 201.5, CONFIG)[0],
            Blame(segment=False, job=False),
        ),
    ],
    ids=["crash", "crash while draining", "memory", "hang", "stop", "drain for memory", "restart"],
)
def test_who_sent_the_kill_decides_whose_fault_it_was(end: Callable[[Child], Child], expected: Blame) -> None:
    child = end(ready())
    assert blame(child) == expected
    assert blame(life.start(life.exited(child, "signal 9", 300.0, CONFIG)[0], 301.0, CONFIG)[0]) == Blame(
        True, True
    ), "the next process begins clean"


def test_waiting_for_memory_is_recorded_once_for_each_reason() -> None:
    child, effects = life.wait_memory(Child("worker:x"), "waiting_memory", {"short_bytes": 5}, 1.0)
    assert kinds(effects) == ["admission_refused"]
    child, effects = life.wait_memory(child, "waiting_memory", {"short_bytes": 4}, 2.0)
    assert effects == () and child.params == {"short_bytes": 4}
    assert kinds(life.wait_memory(child, "foreign_memory", {}, 3.0)[1]) == ["admission_refused"]
    assert life.start(child, 4.0, CONFIG)[0].state is State.STARTING


def test_a_recovery_is_told_after_a_crash_only() -> None:
    child = life.exited(started(), "exit 1", 100.0, CONFIG)[0]
    child = life.start(life.tick(child, 101.0, CONFIG)[0], 101.0, CONFIG)[0]
    assert kinds(life.said_ready(child, 102.0, {}, None, None)[1]) == ["worker_ready", "recovered"]


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "ready", "beat", "busy", "drain", "stop", "kill", "exit", "fatal", "wait", "forgive"]
        ),
        st.floats(0.0, 100.0),
    ),
    max_size=60,
)


@given(HAPPENINGS)
def test_whatever_happens_processes_and_states_agree(happenings: list[tuple[str, float]]) -> None:
    """A process is spawned only when there is none, signalled only when there is one, and every state that
    has a process has a way out by time alone."""
    child, now, process = Child("worker:x"), 0.0, False
    for what, gap in happenings:
        now += gap
        steps = [life.tick(child, now, CONFIG)]
        child = steps[0][0]
        match what:
            case "start":
                steps.append(life.start(child, now, CONFIG))
            case "ready":
                steps.append(life.said_ready(child, now, {}, 1, None))
            case "beat" | "busy":
                if process:
                    job = "j" if what == "busy" else None
                    steps.append((life.said_heartbeat(child, now, Beat(1, None, job, 0, 0.0)), ()))
            case "drain":
                steps.append(life.drain(child, "memory_low", 10.0, now))
            case "stop":
                steps.append(life.stop(child, "idle", 10.0, now))
            case "kill":
                steps.append(life.kill(child, "memory_critical", now, charge=False))
            case "exit":
                if process:
                    process = False
                    steps.append(life.exited(child, "exit 1", now, CONFIG))
            case "fatal":
                steps.append((life.said_fatal(child, "internal", {}), ()))
            case "wait":
                steps.append(life.wait_memory(child, "waiting_memory", {}, now))
            case "forgive":
                steps.append((life.forgive(child, now), ()))
        for child, effects in steps:  # noqa: B007
            for effect in effects:
                if isinstance(effect, Spawn):
                    assert not process
                    process = True
                if isinstance(effect, Kill | Send):
                    assert process or what == "exit"
        assert child.alive == process
        if child.state in (State.STARTING, State.DRAINING):
            assert child.until is not None
        if child.state is State.STOPPING and child.until is None:
            assert child.ending is not None
