"""`cosyd why`: the last thing cosyd did by itself, with the numbers behind it. Reads only the database."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import click

from daemon.cli import story
from daemon.cli.frame import Command, json_option, language, note, print_json, state_option, text
from pipeline.clock import utc_text, wall_seconds
from pipeline.messages import Language, event_text, size_text, word
from pipeline.paths import StatePaths
from pipeline.store.db import check_schema, connect

NOT_ACTS = (
    "started",
    "ready",
    "stopped",
    "worker_started",
    "worker_ready",
    "level_changed",
    "maintenance_done",
    "config_reloaded",
    "clock_jumped",
)
"""Kinds that are circumstances or ordinary life, not something that needs an explanation."""

LED_TO_IT_S = 120.0
"""Events so shortly before the act belong to its story."""

READ_S = 5.0
AROUND = 200
"""So many events before and after a restart are read for its story."""


@dataclass(frozen=True, slots=True)
class Told:
    """A row of `events` as it is told; numbers that stood in columns are in `params` too."""

    at: str
    kind: str
    code: str | None
    params: dict[str, Any]
    ram_available_bytes: int | None
    vram_free_bytes: int | None


def _told(row: sqlite3.Row) -> Told:
    try:
        params = json.loads(row["params"] or "{}")
    except ValueError:
        params = {}
    params = params if isinstance(params, dict) else {}
    for name in ("level", "resource", "freed_bytes", "code"):
        if row[name] is not None:
            params.setdefault(name, row[name])
    return Told(
        row["at"], row["kind"], row["code"], params, row["ram_available_bytes"], row["vram_free_bytes"]
    )


def read_story(conn: sqlite3.Connection) -> list[Told]:
    """The last automatic act and what happened in the two minutes before it, the oldest first; [] if none."""
    marks = ",".join("?" * len(NOT_ACTS))
    columns = "id, at, kind, level, resource, code, params, ram_available_bytes, vram_free_bytes, freed_bytes"
    last = conn.execute(
        f"SELECT {columns} FROM events WHERE kind NOT IN ({marks}) ORDER BY id DESC LIMIT 1", NOT_ACTS
    ).fetchone()
    if last is None:
        return []
    act = _told(last)
    before = conn.execute(
        f"SELECT {columns} FROM events WHERE id < ? ORDER BY id DESC LIMIT 6", (last["id"],)
    ).fetchall()
    start = wall_seconds(act.at) - LED_TO_IT_S
    return [told for told in map(_told, reversed(before)) if wall_seconds(told.at) >= start] + [act]


def read_restart(conn: sqlite3.Connection) -> list[story.Row]:
    """The events around the last ending of a child, the oldest first."""
    marks = ",".join("?" * len(story.ENDINGS))
    last = conn.execute(
        f"SELECT id FROM events WHERE kind IN ({marks}) AND json_extract(params, '$.reason') IS NOT 'stop'"
        " ORDER BY id DESC LIMIT 1",
        story.ENDINGS,
    ).fetchone()
    if last is None:
        return []
    rows = conn.execute(
        "SELECT * FROM events WHERE id BETWEEN ? AND ? ORDER BY id",
        (last["id"] - AROUND, last["id"] + AROUND),
    ).fetchall()
    return [story.row_of(row, _told(row).params) for row in rows]


def restart_paragraph(rows: list[story.Row], now: float, lang: Language) -> str:
    """The last restart in words; "" when there was none."""
    from daemon.cli.tables import clock_time

    ending = story.last_ending(rows)
    return story.tell(rows, now, lang, clock_time(utc_text(ending.at))) if ending else ""


def paragraph(told_so_far: Iterable[Told], now: float, lang: Language) -> list[str]:
    """Sentences for people: when, what, with which memory free, and what came before."""
    *before, act = told_so_far
    from daemon.cli.tables import clock_time

    when = text("why_when", when=clock_time(act.at), ago=max(0.0, now - wall_seconds(act.at)))
    lines = [f"{when}{'' if lang == 'zh' else ' '}{event_text(act.kind, lang, act.params)}"]
    free = [
        f"{word('state.resource', name, lang)} {size_text(value)}"
        for name, value in (("ram", act.ram_available_bytes), ("vram", act.vram_free_bytes))
        if value is not None
    ]
    if free:
        lines.append(text("why_free", free=text("separator").join(free)))
    if before:
        lines.append(text("why_before"))
        for told in before:
            lines.append(f"  {clock_time(told.at)[11:]}  {event_text(told.kind, lang, told.params)}")
    return lines


@click.command(cls=Command, help_key="help_why", example="cosyd why")
@state_option
@json_option
def why(paths: StatePaths, as_json: bool) -> None:
    """Say why cosyd last did something by itself."""
    found: list[Told] = []
    around: list[story.Row] = []
    if paths.database.exists():
        conn = connect(paths.database, "read", busy_s=READ_S)
        try:
            check_schema(conn)
            found = read_story(conn)
            around = read_restart(conn)
        finally:
            conn.close()
    if as_json:
        print_json(
            [{**asdict(told), "text": event_text(told.kind, language(), told.params)} for told in found]
        )
    elif not found:
        note("why_nothing")
    else:
        now = time.time()
        if told := restart_paragraph(around, now, language()):
            click.echo(f"{text('why_restart')}\n  {told}\n")
        click.echo("\n".join(paragraph(found, now, language())))
