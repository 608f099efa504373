"""A trace run through the guard's decisions again: each with the numbers that led to it. Pure.

Used by `cosyd admin policy replay`. The trace is what happened; the decisions are those of this version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from daemon import decide
from daemon.decide import ConditionChanged, Decision, Mind
from daemon.renewal import Predicted, Renew, Soothe
from daemon.rungs import Act, Foreign, Judged, LevelChanged
from daemon.sample import Resource, Sample
from pipeline.profile import Config


@dataclass(frozen=True, slots=True)
class Line:
    """One decision. `key` is a key of `[replay]`, `at` seconds since the first look."""

    at: float
    key: str
    params: dict[str, Any] = field(default_factory=dict)


def replay(config: Config, looks: Iterable[tuple[float, Sample]]) -> Iterator[Line]:
    """Every decision, in order; readings that are missing are told once. The last line is the sum."""
    mind, began, now, count, acts = Mind(), None, 0.0, 0, 0
    missing: frozenset[Resource] = frozenset()
    for now, sample in looks:
        began = now if began is None else began
        count += 1
        gone = _missing(sample, missing)
        for resource in sorted(gone - missing):
            yield Line(now - began, "unknown", {"resource": resource})
        missing = gone
        mind, decisions = decide.step(mind, sample, now, config)
        for decision in decisions:
            acts += isinstance(decision, Act | Renew | Soothe)
            yield Line(now - began, *describe(decision, mind, sample, config))
    yield Line(now - (began or 0.0), "sum", {"looks": count, "seconds": now - (began or 0.0), "acts": acts})


def _missing(sample: Sample, before: frozenset[Resource]) -> frozenset[Resource]:
    """Resources that cannot be read. A machine that never had a card does not miss it."""
    found: set[Resource] = set()
    if sample.ram is None:
        found.add("ram")
    if sample.vram is None and (any(p.vram_bytes for p in sample.own) or "vram" in before):
        found.add("vram")
    return frozenset(found)


def describe(decision: Decision, mind: Mind, sample: Sample, config: Config) -> tuple[str, dict[str, Any]]:
    """Key and params of the sentence."""
    match decision:
        case LevelChanged(resource, old, new, free):
            lines = numbers(sample, resource, config)
            return "level", {**lines, "resource": resource, "old": old.word, "new": new.word, "free": free}
        case Foreign(resource, own, used):
            return "foreign", {"resource": resource, "own": own, "used": used}
        case Act(rung, resource, targets):
            level = mind.policy.of(resource).level.word
            told = {**numbers(sample, resource, config), "resource": resource, "new": level}
            return f"act_{rung.name.lower()}", {
                **told,
                "targets": ", ".join(targets),
                "seconds": decision.deadline_s,
            }
        case Judged(act, helped, freed):
            key = "judged_unknown" if freed is None else "judged_helped" if helped else "judged_failed"
            return key, {"targets": ", ".join(act.targets), "freed": freed}
        case Predicted(name, _, resource, rate, eta, size, free, line):
            told = {"targets": name, "resource": resource, "rate": rate * 3600, "eta": eta}
            return "predicted", {**told, "size": size, "free": free, "low": line}
        case Soothe(name):
            return "soothe", {"targets": name}
        case Renew(name, _, reason, age, size):
            return f"renew_{reason}", {"targets": name, "age": age, "size": size}
        case ConditionChanged(old, new):
            return "condition", {"state": new, "old": old}


def numbers(sample: Sample, resource: Resource, config: Config) -> dict[str, Any]:
    """What a decision about a resource goes by: free, total, what is ours, and both lines."""
    reading = sample.ram if resource == "ram" else sample.vram
    guard = config.guard.ram if resource == "ram" else config.guard.vram
    total = reading.total_bytes if reading else None
    return {
        "free": sample.free_bytes(resource),
        "total": total,
        "own": sample.own_bytes(resource),
        "low": guard.low_enter.bytes_of(total) if total is not None else None,
        "critical": guard.critical_enter.bytes_of(total) if total is not None else None,
    }
