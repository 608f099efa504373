"""What may leave the machine in a support bundle: an allow-list, by key and by value. Pure.

Numbers and truth values pass; words pass only from closed sets. Everything else is left out: text, names of
voices, people, programs and files, addresses, ids. A key that is new is left out until somebody lists it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from daemon import gpu_states
from pipeline.codes import CODES
from pipeline.messages import catalogue
from pipeline.profile import PROFILES

ENGINES = frozenset({"builtin", "cosyvoice3"})
OTHER = "other"
NUMBERS = frozenset(
    """attempt available_bytes bytes count crashes critical_bytes deadline_s delay_s eta_s free_bytes
    freed_bytes hourly_bytes jump_s low_bytes need_bytes oldest_age_s own_bytes peak_bytes power_w queued
    ram_available_bytes restarts rss_after rss_before rss_bytes running seconds short_bytes step
    temperature_c total_bytes used_bytes utilisation_ratio vram_after vram_before vram_bytes
    vram_free_bytes""".split()
)
_LEVELS = frozenset({"ok", "low", "critical", "unknown"})
_STATES = frozenset(
    {"absent", "starting", "ready", "draining", "stopping", "backoff", "waiting_memory", "failed"}
)
WORDS: Mapping[str, frozenset[str]] = {
    "resource": frozenset({"ram", "vram", "swap", "disk"}),
    "old": _LEVELS | gpu_states.WORDS,
    "new": _LEVELS,
    "level": _LEVELS,
    "state": _STATES | gpu_states.WORDS,
    "gpu_state": gpu_states.WORDS,
    "code": frozenset(CODES),
    "profile": frozenset(PROFILES),
    "task": frozenset({"retention", "checkpoint", "backup", "thin-samples"}),
    "source": frozenset({"meminfo", "meminfo+cache", "meminfo+arc", "meminfo+cache+arc", "cgroup"}),
    "wait_reason": frozenset(name[5:] for name in catalogue("en") if name.startswith("wait.")),
}
_INSIDE = frozenset(
    "child engine targets reason status stopping ram vram swap web pressure foreign params".split()
)
_EXIT = re.compile(r"(exit|signal) \d{1,3}")
_SETTING = re.compile(r"always|max\([0-9.]+ %, [0-9]+ B\)")


def child(name: str) -> str:
    """`web`, `worker:builtin`, `worker:cosyvoice3`; an engine that somebody added has no name here."""
    if name == "web":
        return name
    engine = name.removeprefix("worker:")
    return f"worker:{engine if engine in ENGINES else OTHER}"


def word_of(key: str, value: str) -> str | None:
    """The word if it is from the closed set of its key, else None."""
    if key == "child":
        return child(value)
    if key == "engine":
        return value if value in ENGINES else OTHER
    if key == "targets":
        return ", ".join(child(part.strip()) for part in value.split(",") if part.strip())
    if key in ("reason", "status"):
        known = f"state.reason.{value.removesuffix('_timeout')}" in catalogue("en")
        told = _EXIT.fullmatch(value) or known or f"state.reason.{value}" in catalogue("en")
        return value if told or value in CODES or value in gpu_states.WORDS else None
    return value if value in WORDS.get(key, ()) else None


def scrub(value: Any, key: str = "") -> Any:
    """The value with all left out that is not on the list; None where nothing is left of it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if key in NUMBERS and math.isfinite(value) else None
    if isinstance(value, str):
        return word_of(key, value)
    if isinstance(value, Mapping):
        allowed = {name: item for name, item in value.items() if name in NUMBERS | _INSIDE or name in WORDS}
        found = {name: scrub(item, name) for name, item in allowed.items()}
        return {name: item for name, item in found.items() if item is not None}
    if isinstance(value, list | tuple):
        return [found for item in value if (found := scrub(item, key)) is not None]
    return None


def state(found: Mapping[str, Any]) -> dict[str, Any]:
    """The object of `status`. The keys of `engines` are names, which the general rule would refuse."""
    engines = found.get("engines")
    shown: dict[str, Any] = {}
    for name, value in engines.items() if isinstance(engines, Mapping) else ():
        plain = name if name in ENGINES else f"{OTHER}-{len(shown) + 1}"
        shown[plain] = scrub(value)
    rest = scrub({key: value for key, value in found.items() if key != "engines"})
    return {**rest, "engines": shown}


def setting(key: str, value: Any) -> Any:
    """A configuration value: numbers, thresholds, durations, times of day; never a name or an address."""
    if isinstance(value, bool | int | float):
        return None if key.endswith("port") else value
    if key == "gpu" and isinstance(value, str):
        return value if value in ("auto", "none") else "by UUID"
    if key in ("profile", "weights", "keep_warm"):
        return value  # each is refused by the configuration itself when it is anything else
    return value if isinstance(value, str) and _SETTING.fullmatch(value) else None


def trace_line(line: str) -> str:
    """A line of a trace with the names of added engines taken out."""
    return re.sub(r'"((?:worker:|web:)[^"]*)"', lambda match: f'"{child(match[1])}"', line)
