"""The life of one child as a state machine: absent, starting, ready, draining, stopping, backoff, failed.
Pure.

Each function takes a `Child` and what happened, and gives the new `Child` and the effects that the shell
(`daemon.children`) carries out. No effect is carried out here, no clock read: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from daemon.backoff import Budget
from pipeline.profile.config import Config


class State(StrEnum):
    """As in docs/architecture.md, Messages."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    WAITING_MEMORY = "waiting_memory"
    FAILED = "failed"


ALIVE = frozenset({State.STARTING, State.READY, State.DRAINING, State.STOPPING})
PERMANENT = frozenset({"model_missing", "config_error", "unsafe_bind", "schema_mismatch"})
"""`fatal` codes that another start would only repeat."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat. None is unknown."""

    rss_bytes: int | None = None
    vram_bytes: int | None = None
    job: str | None = None
    segment: int | None = None
    progress_at: float | None = None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process."""


@dataclass(frozen=True, slots=True)
class Send:
    """A notification to the child."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the child's process group."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row in `events`."""

    kind: str
    code: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


Effect = Spawn | Send | Kill | Record


@dataclass(frozen=True, slots=True)
class Child:
    """One child. `name` is `web` or `worker:ENGINE`.

    `until` is when the present state is overdue. `ending` says why we are ending it ourselves; such an exit
    is planned unless `charged`. `killed`: we sent SIGKILL. `again` wants a start right after the exit.
    """

    name: str
    state: State = State.ABSENT
    since: float = 0.0
    until: float | None = None
    ending: str | None = None
    charged: bool = False
    killed: bool = False
    again: bool = False
    budget: Budget = field(default_factory=Budget)
    code: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    fatal: tuple[str, Mapping[str, Any]] | None = None
    heard_at: float = 0.0
    progressed_at: float = 0.0
    beat: Beat = field(default_factory=Beat)
    capabilities: Mapping[str, Any] | None = None
    ready_rss_bytes: int | None = None
    ready_vram_bytes: int | None = None
    restarts: int = 0

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.state in ALIVE

    @property
    def busy(self) -> bool:
        """Whether it said that it holds a job."""
        return self.alive and self.beat.job is not None


Step = tuple[Child, tuple[Effect, ...]]


def start(child: Child, now: float, config: Config) -> Step:
    """Start an absent or waiting child. Anything else stays as it is."""
    if child.state not in (State.ABSENT, State.WAITING_MEMORY):
        return child, ()
    started = replace(
        child, state=State.STARTING, since=now, until=now + config.deadlines.start_s * config.timeout_factor,
        ending=None, charged=False, killed=False, again=False, code=None, params={}, fatal=None, heard_at=now,
        progressed_at=now, beat=Beat(), capabilities=None,
    )  # fmt: skip
    return started, (Spawn(),)


def wait_memory(child: Child, code: str, params: Mapping[str, Any], now: float) -> Step:
    """A start was not admitted. Recorded once for each reason, not at each look."""
    if child.state is State.WAITING_MEMORY and child.code == code:
        return replace(child, params=params), ()
    if child.state not in (State.ABSENT, State.WAITING_MEMORY):
        return child, ()
    waiting = replace(child, state=State.WAITING_MEMORY, since=now, until=None, code=code, params=params)
    return waiting, (Record("admission_refused", code, {"child": child.name, **params}),)


def stop_waiting(child: Child, now: float) -> Child:
    """Nobody wants it any more."""
    if child.state is not State.WAITING_MEMORY:
        return child
    return replace(child, state=State.ABSENT, since=now, code=None, params={})


def said_ready(
    child: Child, now: float, capabilities: Mapping[str, Any], rss_bytes: int | None, vram_bytes: int | None
) -> Step:
    """`ready` came."""
    if child.state is not State.STARTING:
        return child, ()
    ready = replace(
        child, state=State.READY, since=now, until=None, heard_at=now, progressed_at=now,
        capabilities=capabilities, ready_rss_bytes=rss_bytes, ready_vram_bytes=vram_bytes,
    )  # fmt: skip
    seconds = round(now - child.since, 3)
    effects: list[Effect] = [Record("worker_ready", None, {"child": child.name, "seconds": seconds})]
    if child.budget.crashes:
        effects.append(Record("recovered", None, {"child": child.name, "crashes": len(child.budget.crashes)}))
    return ready, tuple(effects)


def said_heartbeat(child: Child, now: float, beat: Beat) -> Child:
    """`heartbeat` came. A changed job, segment or `progress_at` is progress, by our own clock. Progress while
    it starts moves the deadline: a model's first start converts gigabytes, on some disks for many minutes."""
    moved = (beat.job, beat.segment, beat.progress_at) != (
        child.beat.job, child.beat.segment, child.beat.progress_at
    )  # fmt: skip
    known = child.beat.progress_at is not None
    if child.state is State.STARTING and moved and known and child.until is not None:
        child = replace(child, until=child.until + now - child.progressed_at)
    return replace(child, heard_at=now, beat=beat, progressed_at=now if moved else child.progressed_at)


def said_fatal(child: Child, code: str, params: Mapping[str, Any]) -> Child:
    """`fatal` came: the exit that follows has this cause."""
    return replace(child, fatal=(code, dict(params)))


def drain(child: Child, reason: str, deadline_s: float, now: float, *, again: bool = False) -> Step:
    """Let it finish the piece in hand, then end. `again`: start it anew afterwards."""
    if child.state is State.STARTING:
        return stop(child, reason, deadline_s, now, again=again)
    if child.state is not State.READY:
        return replace(child, again=child.again or again) if child.alive else child, ()
    draining = replace(
        child, state=State.DRAINING, since=now, until=now + deadline_s, ending=reason, again=again
    )
    return draining, (
        Send("drain", {"deadline_s": deadline_s, "reason": reason}),
        Record("drain_started", None, {"child": child.name, "reason": reason, "deadline_s": deadline_s}),
    )


def stop(child: Child, reason: str, grace_s: float, now: float, *, again: bool = False) -> Step:
    """Ask it to end now; after `grace_s` it is killed."""
    if child.state not in (State.STARTING, State.READY, State.DRAINING):
        return replace(child, again=child.again or again) if child.alive else child, ()
    stopping = replace(
        child, state=State.STOPPING, since=now, until=now + grace_s, ending=child.ending or reason,
        again=child.again or again,
    )  # fmt: skip
    return stopping, (Send("shutdown", {"grace_s": grace_s}),)


def kill(child: Child, reason: str, now: float, *, charge: bool, again: bool = False) -> Step:
    """End it by force. `charge`: the exit counts as a crash."""
    if not child.alive:
        return child, ()
    killed = replace(
        child, state=State.STOPPING, since=now, until=None, ending=reason, charged=charge, killed=True,
        again=child.again or again,
    )  # fmt: skip
    return killed, (
        Kill(),
        Record(
            "worker_killed", None, {"child": child.name, "reason": reason, "rss_bytes": child.beat.rss_bytes}
        ),
    )


def exited(
    child: Child,
    reason: str,
    now: float,
    config: Config,
    *,
    killer: str | None = None,
    peak: int | None = None,
) -> Step:
    """The process is gone; `reason` is `exit 1` or `signal 9`, `killer` a word for the kernel's OOM killer
    (`daemon.deaths`), `peak` the most it held. A planned end leads to ABSENT, a crash to BACKOFF or, with the
    budget used up or a cause that would only repeat, to FAILED."""
    if not child.alive:
        return child, ()
    cause = "out_of_memory" if killer else child.fatal[0] if child.fatal else None
    told: dict[str, Any] = {
        "child": child.name,
        "reason": killer or child.ending or cause or reason,
        "status": reason,
    }
    if peak is not None:
        told["peak_bytes"] = peak
    gone = replace(
        child,
        since=now,
        until=None,
        ending=None,
        charged=False,
        killed=False,
        beat=Beat(),
        capabilities=None,
        fatal=None,
    )
    effects: list[Effect] = [Record("worker_exited", cause, told)]
    if child.ending is not None and not child.charged:
        if child.state is State.DRAINING:
            effects.append(Record("drained", None, {"child": child.name, "reason": child.ending}))
        return replace(gone, state=State.ABSENT, code=None, params={}), tuple(effects)
    budget = child.budget.charge(now, config.restart)
    gone = replace(gone, budget=budget, restarts=child.restarts + 1, again=False)
    delay_s = budget.delay_s(config.restart)
    if cause in PERMANENT or delay_s is None:
        code, params = child.fatal or (cause or "engine_failed", {"reason": str(told["reason"])})
        failed = replace(gone, state=State.FAILED, code=code, params=params)
        effects.append(
            Record("failed", code, {**params, "child": child.name, "restarts": len(budget.crashes)})
        )
        return failed, tuple(effects)
    waiting = replace(
        gone, state=State.BACKOFF, until=now + delay_s, code=cause or "worker_died",
        params={"reason": str(told["reason"])},
    )  # fmt: skip
    effects.append(
        Record(
            "backoff_started",
            cause,
            {
                "child": child.name,
                "delay_s": delay_s,
                "reason": told["reason"],
                "crashes": len(budget.crashes),
            },
        )
    )
    return waiting, tuple(effects)


def not_its_fault(child: Child, now: float, config: Config) -> Child:
    """Poison: the text ended the worker. The last charge goes back, and with it the longer pause or
    FAILED."""
    budget = child.budget.refund()
    if child.state is State.BACKOFF or (child.state is State.FAILED and child.code not in PERMANENT):
        pause_s = min(config.restart.backoff_initial_s, config.restart.backoff_max_s)
        return replace(child, budget=budget, state=State.BACKOFF, until=now + pause_s, code="worker_died")
    return replace(child, budget=budget)


def forgive(child: Child, now: float) -> Child:
    """A person asked for a restart: the budget is fresh, FAILED and BACKOFF are over."""
    fresh = replace(child, budget=Budget())
    if child.state in (State.FAILED, State.BACKOFF, State.WAITING_MEMORY):
        return replace(fresh, state=State.ABSENT, since=now, until=None, code=None, params={}, again=True)
    return fresh


def stuck_after_s(config: Config) -> float:
    """How long a child may hold a job without any progress. Progress is marked at each chunk, which is at
    most one second of audio, so this is the segment deadline of one second."""
    deadlines = config.deadlines
    return (deadlines.segment_base_s + deadlines.segment_per_audio_s) * config.timeout_factor


def tick(child: Child, now: float, config: Config) -> Step:
    """What time alone does: overdue states, lost heartbeats, no progress, the end of a backoff."""
    overdue = child.until is not None and now >= child.until
    if child.state is State.BACKOFF and overdue:
        return replace(child, state=State.ABSENT, since=now, until=None), ()
    if child.state is State.STARTING and overdue:
        return kill(child, "start_timeout", now, charge=True)
    if child.state in (State.DRAINING, State.STOPPING) and overdue:
        return kill(child, f"{child.ending or 'stop'}_timeout", now, charge=False)
    if child.state in (State.READY, State.DRAINING):
        # The time alone does not make an accusation: in a slow VM everything scales by one factor.
        if now - child.heard_at > config.deadlines.heartbeat_lost_s * config.timeout_factor:
            return kill(child, "heartbeat_lost", now, charge=True, again=True)
        if child.beat.job is not None and now - child.progressed_at > stuck_after_s(config):
            return kill(child, "no_progress", now, charge=True)
    return child, ()
