"""The object that `status` answers and that the page gets as `state` (docs/architecture.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon import gpu_states
from daemon.levels import Level
from daemon.lifecycle import Child
from daemon.policy import PolicyState
from daemon.sample import Resource, Sample
from pipeline.messages import word
from pipeline.queue import EngineQueue

NOISE = 64
"""A number that moves by less than 1/64 is no change worth a message."""


@dataclass(frozen=True, slots=True)
class View:
    """All that the object is made from."""

    pid: int
    started_at: str
    sample: Sample
    state: PolicyState
    gpu_state: str
    web: Child
    workers: Mapping[str, Child]
    stats: Mapping[str, EngineQueue] | None
    reasons: Mapping[str, str | None]
    others: Mapping[Resource, list[tuple[str, int]]]
    profile: str
    web_url: str
    stopping: bool
    storage: Mapping[str, Any] | None = None


def state_object(view: View) -> dict[str, Any]:
    """JSON-ready. Unknown numbers are null."""
    ram, vram = view.sample.ram, view.sample.vram

    def level(resource: Resource) -> str:
        levels = view.state.of(resource)
        return levels.level.word if levels.known else "unknown"

    return {
        "pid": view.pid,
        "started_at": view.started_at,
        "level": view.state.level.word,
        "ram": {
            "available_bytes": ram.available_bytes if ram else None,
            "total_bytes": ram.total_bytes if ram else None,
            "level": level("ram"),
            "source": ram.source if ram else None,
        },
        "vram": None
        if vram is None
        else {
            "free_bytes": vram.free_bytes,
            "total_bytes": vram.total_bytes,
            "level": level("vram"),
            "name": vram.name,
            "uuid": vram.uuid,
        },
        "gpu_state": view.gpu_state,
        "swap": {
            "used_bytes": ram.swap_used_bytes if ram else None,
            "total_bytes": ram.swap_total_bytes if ram else None,
        },
        "engines": {name: _engine(name, view) for name in sorted({*view.workers, "builtin"})},
        "web": {
            "state": view.web.state.value,
            "rss_bytes": view.web.beat.rss_bytes,
            "restarts": view.web.restarts,
            "url": view.web_url,
        },
        "pressure": {
            "foreign": [
                {"name": name, "bytes": size, "resource": resource}
                for resource, found in view.others.items()
                for name, size in found
            ]
        },
        "profile": view.profile,
        "stopping": view.stopping,
        "storage": None if view.storage is None else dict(view.storage),
    }


def _engine(name: str, view: View) -> dict[str, Any]:
    child = view.workers.get(name, Child(f"worker:{name}"))
    found = view.stats.get(name) if view.stats is not None else None
    known = view.stats is not None
    return {
        "state": child.state.value,
        "code": child.code,
        "params": dict(child.params),
        "rss_bytes": child.beat.rss_bytes,
        "vram_bytes": child.beat.vram_bytes,
        "capabilities": child.capabilities,
        "queued": found.queued if found else 0 if known else None,
        "running": found.running if found else 0 if known else None,
        "wait_reason": view.reasons.get(name),
        "restarts": child.restarts,
    }


def fingerprint(value: Any) -> Any:
    """The object with its noise taken out: two equal fingerprints need no message."""
    if isinstance(value, Mapping):
        return tuple((key, fingerprint(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(fingerprint(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 1 << 20:
        return round(value / max(1, 1 << max(0, value.bit_length() - NOISE.bit_length())))
    return value


def status_line(view: View) -> str:
    """One line for `systemctl status`."""
    parts = [f"page {view.web.state.value}"]
    if view.storage is not None:
        parts.append(f"database {view.storage['params']['reason']}")
    parts += [f"{name} {child.state.value}" for name, child in sorted(view.workers.items())]
    if view.sample.ram is not None:
        parts.append(f"{view.sample.ram.available_bytes / 2**30:.1f} GB of RAM free")
    if view.state.level is not Level.OK:
        parts.append(f"memory {view.state.level.word}")
    if view.gpu_state in gpu_states.TROUBLE | gpu_states.CONDITIONS:
        parts.append(f"graphics card {word('state.gpu', view.gpu_state, 'en')}")
    return ", ".join(parts)
