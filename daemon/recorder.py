"""Every automatic act in three places at once: the events table, the log with a MESSAGE_ID, and
subscribers."""

from __future__ import annotations

import logging
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from daemon.sample import Sample
from pipeline.clock import Clock, utc_text
from pipeline.events import Event
from pipeline.events import Sample as Row
from pipeline.logs import is_journal, set_up
from pipeline.messages import event_text

log = logging.getLogger("cosyd")
KEPT = 200
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122, URL
WARNINGS = frozenset(
    "worker_killed failed foreign_pressure trim_failed oom_caught admission_refused backoff_started".split()
)


def message_id(kind: str) -> str:
    """The journal's MESSAGE_ID of an event kind: fixed, so that `journalctl MESSAGE_ID=` finds them all."""
    return uuid.uuid5(_NAMESPACE, f"https://cosyd/event/{kind}").hex


def set_up_log() -> None:
    """Structured records to journald where we are under it and systemd-python is there, else lines on
    stderr."""
    if is_journal(sys.stderr):
        try:
            from systemd.journal import JournalHandler
        except ImportError:
            pass
        else:
            handler = JournalHandler(SYSLOG_IDENTIFIER="cosyd")
            handler.setFormatter(logging.Formatter("%(message)s"))
            logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
            logging.getLogger("apscheduler").setLevel(logging.WARNING)
            return
    set_up("cosyd")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


class EventSink(Protocol):
    """Where events go; the writer thread."""

    def event(self, event: Event) -> None: ...


class Recorder:
    """`sample` is the latest look at the memory: its numbers go into each event."""

    def __init__(self, sink: EventSink, clock: Clock) -> None:
        self._sink, self._clock = sink, clock
        self.sample = Sample()
        self.level = "ok"
        self.recent: deque[Event] = deque(maxlen=KEPT)
        self.on_event: Callable[[Event], None] | None = None

    def event(
        self,
        kind: str,
        code: str | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        resource: str | None = None,
        freed_bytes: int | None = None,
    ) -> None:
        """Record that something happened now."""
        found = Event(
            at=self._clock.wall(),
            kind=kind,
            level=self.level,
            resource=resource,
            code=code,
            params=dict(params or {}),
            ram_available_bytes=self.sample.free_bytes("ram"),
            vram_free_bytes=self.sample.free_bytes("vram"),
            freed_bytes=freed_bytes,
        )
        self.recent.append(found)
        numbers = " ".join(f"{key}={value}" for key, value in found.params.items())
        log.log(
            logging.WARNING if kind in WARNINGS else logging.INFO,
            "%s [%s%s%s]",
            event_text(kind, "en", found.params),
            kind,
            f" {code}" if code else "",
            f" {numbers}" if numbers else "",
            extra={"MESSAGE_ID": message_id(kind), "COSYD_EVENT": kind},
        )
        self._sink.event(found)
        if self.on_event is not None:
            self.on_event(found)


def telemetry_row(look: Sample, now: float) -> Row:
    """One look at the machine as a row of `samples`; what is unknown stays unknown."""
    workers = [p.rss_bytes for p in look.own if not p.is_web]
    web = [p.rss_bytes for p in look.own if p.is_web]
    vram = look.vram
    return Row(
        at=now,
        ram_available_bytes=look.free_bytes("ram"),
        swap_used_bytes=look.ram.swap_used_bytes if look.ram else None,
        worker_rss_bytes=None if None in workers else sum(size or 0 for size in workers),
        web_rss_bytes=web[0] if web else None,
        vram_used_bytes=look.used_bytes("vram"),
        gpu_util_ratio=vram.utilisation_ratio if vram else None,
        gpu_temp_c=vram.temperature_c if vram else None,
        power_w=vram.power_w if vram else None,
    )


def event_object(event: Event) -> dict[str, Any]:
    """The JSON form for `why` and subscribers."""
    return {
        "at": utc_text(event.at),
        "kind": event.kind,
        "level": event.level,
        "resource": event.resource,
        "code": event.code,
        "params": dict(event.params),
        "ram_available_bytes": event.ram_available_bytes,
        "vram_free_bytes": event.vram_free_bytes,
        "freed_bytes": event.freed_bytes,
    }
