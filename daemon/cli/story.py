"""The last restart as a paragraph with its numbers: what ended, why, what was tried before, what came of it.

Pure: rows of `events` to sentences. `cosyd why` prints them; the texts are in `[story]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.clock import wall_seconds
from pipeline.messages import Language, render, word

ENDINGS = ("worker_killed", "unloaded", "web_recycled", "worker_exited")
"""Kinds that end a child, the one that knows most first: a kill is followed by the exit it brings about."""

BEFORE_S, SAME_S, AFTER_S = 600.0, 90.0, 900.0
"""How far back a cause may lie, how long one ending may take, and how long its outcome is followed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `events`; `at` in wall seconds."""

    at: float
    kind: str
    code: str | None
    params: dict[str, Any]
    ram_available_bytes: int | None = None
    vram_free_bytes: int | None = None

    @property
    def child(self) -> str:
        """`web` or `worker:NAME`."""
        name = str(self.params.get("child") or "")
        engine = self.params.get("engine")
        return name or (f"worker:{engine}" if engine else "web")


def last_ending(rows: Sequence[Row]) -> Row | None:
    """The last child that ended, told by the row that says why (`rows` oldest first)."""
    ends = [row for row in rows if row.kind in ENDINGS and row.params.get("reason") != "stop"]
    if not ends:
        return None
    last = ends[-1]
    same = [row for row in ends if row.child == last.child and last.at - row.at <= SAME_S]
    restarted = [r for r in rows if r.kind == "worker_ready" and r.child == last.child and r.at < last.at]
    since = restarted[-1].at if restarted else float("-inf")
    return min((r for r in same if r.at > since), key=lambda r: (ENDINGS.index(r.kind), -r.at), default=last)


def tell(rows: Sequence[Row], now: float, language: Language, when: str) -> str:
    """The paragraph, "" when nothing ever ended. `when` is the local time of the ending, as shown."""
    ending = last_ending(rows)
    if ending is None:
        return ""

    def say(key: str, **params: Any) -> str:
        return render(f"story.{key}", language, params)

    reason = str(ending.params.get("reason") or "")
    before = [row for row in rows if 0 <= ending.at - row.at <= BEFORE_S and row is not ending]
    after = [row for row in rows if 0 <= row.at - ending.at <= AFTER_S and row is not ending]
    name = word("state.child", ending.child, language)
    name = name[:1].lower() + name[1:]  # it stands inside a sentence
    key = {"unloaded": "unloaded", "web_recycled": "recycled", "worker_killed": "killed"}.get(
        ending.kind, "ended"
    )
    parts = [say(key, when=when, ago=max(0.0, now - ending.at), name=name)]
    parts.append(_cause(ending, reason, before, language))
    size = ending.params.get("rss_bytes")
    if size:
        parts.append(say("held", size=size))
    parts += _tried(before, language)
    parts += _outcome(ending, after, language)
    return ("" if language == "zh" else " ").join(part for part in parts if part)


def _cause(ending: Row, reason: str, before: Sequence[Row], language: Language) -> str:
    def last(kind: str, **wanted: Any) -> Row | None:
        found = [r for r in before if r.kind == kind and all(r.params.get(k) == v for k, v in wanted.items())]
        return found[-1] if found else None

    if reason in ("memory_low", "memory_critical"):
        level = reason.removeprefix("memory_")
        row = last("level_changed", new=level) or last("level_changed")
        resource = str(row.params.get("resource")) if row else str(ending.params.get("resource") or "ram")
        column = ending.vram_free_bytes if resource == "vram" else ending.ram_available_bytes
        told = {
            "resource": word("state.resource", resource, language),
            "level": word("state.level", level, language),
            "free": column if column is not None else row.params.get("free_bytes") if row else None,
            "total": row.params.get("total_bytes") if row else None,
            "line": row.params.get(f"{level}_bytes") if row else None,
        }
        return render("story.memory" if told["line"] is not None else "story.memory_short", language, told)
    if reason == "creep" and (row := last("creep_predicted", child=ending.child)):
        told = {**row.params, "resource": word("state.resource", str(row.params.get("resource")), language)}
        return render("story.creep", language, told)
    if reason.startswith("signal") and ending.params.get("status") == reason:
        return render("story.signal", language, {"number": reason.partition(" ")[2]})
    said = word("state.reason", reason, language)
    return render("story.because", language, {"reason": said or "?"})


def _tried(before: Sequence[Row], language: Language) -> list[str]:
    """What was tried first, the last time of each."""
    found: list[str] = []
    trims = [row for row in before if row.kind in ("trim_done", "trim_failed")]
    if trims:
        freed = trims[-1].params.get("freed_bytes")
        key = "trimmed_unknown" if freed is None else "trimmed"
        found.append(render(f"story.{key}", language, {"freed": freed}))
    if any(row.kind == "drain_started" for row in before):
        row = [row for row in before if row.kind == "drain_started"][-1]
        found.append(render("story.drained", language, {"seconds": row.params.get("deadline_s")}))
    return found


def _outcome(ending: Row, after: Sequence[Row], language: Language) -> list[str]:
    """Whether it came back, how soon, and what became of the text in hand."""
    found: list[str] = []
    mine = [row for row in after if row.child == ending.child]
    jobs = [row for row in after if row.kind == "job_requeued" and row.child == ending.child]
    if jobs:
        found.append(render("story.requeued", language, {"count": len(jobs)}))
    ready = [row for row in mine if row.kind == "worker_ready"]
    failed = [row for row in mine if row.kind == "failed"]
    refused = [row for row in mine if row.kind == "admission_refused"]
    if ending.kind == "web_recycled":
        found.append(render("story.unnoticed", language))
    elif ready:
        found.append(render("story.back", language, {"seconds": ready[0].at - ending.at}))
    elif failed:
        found.append(render("story.failed", language, {"count": failed[-1].params.get("restarts")}))
    elif refused:
        found.append(render("story.waiting", language, {"short": refused[-1].params.get("short_bytes")}))
    elif ending.kind == "unloaded":
        found.append(render("story.next_time", language))
    return found


def row_of(row: Any, params: dict[str, Any]) -> Row:
    """From a row of the table."""
    return Row(
        wall_seconds(row["at"]), row["kind"], row["code"], params, row["ram_available_bytes"],
        row["vram_free_bytes"],
    )  # fmt: skip
