"""The check-up's verdicts on system, clock and model files. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.cli.checkup import Check
from daemon.hardware.facts import Facts
from pipeline.clock import utc_text
from pipeline.model_state import FileState

DAY_S = 86400.0
WIDE_S = 20 * 365 * DAY_S


def check_system(facts: Facts) -> Check:
    """What this is: nothing is wrong with any of it, but all advice depends on it."""
    params = {
        "name": facts.os_name or "?",
        "kernel": facts.kernel or "?",
        "machine": facts.machine,
        "cpu": facts.cpu_name or "?",
        "kind": facts.virtualization or "?",
    }
    text = "system_bare" if facts.virtualization == "none" else "system_inside"
    return Check("system", "ok", text, params, "", facts.sources.get("os_name", ""))


def check_clock(facts: Facts, floor_s: float) -> Check:
    """A clock that is wrong breaks https, schedules and the order of the history. `floor_s` is a time that is
    surely past: when the newest file of this installation was written."""
    source = facts.sources.get("clock_synced") or facts.sources.get("clock_s", "")
    if facts.clock_s is None:
        return Check("clock", "ok", "clock_unknown", {}, "", source)
    params = {"date": utc_text(facts.clock_s)[:16].replace("T", " ")}
    if not floor_s - DAY_S <= facts.clock_s <= floor_s + WIDE_S:
        return Check("clock", "fail", "clock_wrong", params, "cure_clock", source)
    if facts.clock_synced is False and not facts.container:
        return Check("clock", "warn", "clock_unsynced", params, "cure_clock", source)
    return Check("clock", "ok", "clock_good", params, "", source)


def check_model(files: Sequence[FileState], folder: str) -> Check:
    """Not fetched at all is a choice; half of it is a fault."""
    bad = [file.name for file in files if file.bad]
    params = {"folder": folder, "names": ", ".join(bad[:3]), "count": len(bad)}
    if not bad:
        return Check("model", "ok", "model_whole", params, "", folder)
    if all(file.state == "missing" for file in files):
        return Check("model", "ok", "model_absent", params, "", folder)
    return Check("model", "warn", "model_incomplete", params, "cure_model", folder)
