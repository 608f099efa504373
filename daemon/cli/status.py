"""`cosyd status`: levels, memory, engines and queue of the running cosyd. Exit status 0 when it can speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from daemon.cli import control
from daemon.cli.frame import Command, json_option, language, note, print_json, state_option, text
from pipeline.codes import EX_TEMPFAIL
from pipeline.messages import catalogue, error_text, event_text, render, size_text, word
from pipeline.paths import StatePaths

SPEAKING_STATES = frozenset({"absent", "starting", "ready", "draining"})
"""States of an engine from which a request is spoken without anybody doing anything."""


def can_speak(state: Mapping[str, Any]) -> bool:
    """True when the page answers and at least one engine is ready or loads when asked."""
    web = (state.get("web") or {}).get("state")
    engines = state.get("engines") or {}
    able = not engines or any(engine.get("state") in SPEAKING_STATES for engine in engines.values())
    return able and web != "failed"


def memory_line(found: Mapping[str, Any] | None, free: str) -> str:
    """`2.1 GB of 16 GB free`, or unknown: a reading that failed is never a zero."""
    if not found or found.get(free) is None or found.get("total_bytes") is None:
        return text("unknown")
    return text("free_of", free=found[free], total=found["total_bytes"])


def rows(state: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What is shown: name, state, numbers."""
    lang = language()

    def level(found: Mapping[str, Any] | None) -> str:
        return word("state.level", str((found or {}).get("level") or "unknown"), lang)

    ram, vram, swap = state.get("ram"), state.get("vram"), state.get("swap") or {}
    shown = [(word("state.resource", "ram", lang), level(ram), memory_line(ram, "available_bytes"))]
    if vram:
        name = f"{word('state.resource', 'vram', lang)} {vram.get('name') or ''}".strip()
        shown.append((name, level(vram), memory_line(vram, "free_bytes")))
    if swap.get("total_bytes"):
        used = text("used_of", used=swap.get("used_bytes"), total=swap["total_bytes"])
        shown.append((word("state.resource", "swap", lang), "", used))
    for name, engine in sorted((state.get("engines") or {}).items()):
        numbers = []
        if engine.get("rss_bytes"):
            numbers.append(size_text(engine["rss_bytes"]))
        if engine.get("vram_bytes"):
            numbers.append(f"{size_text(engine['vram_bytes'])} {word('state.resource', 'vram', lang)}")
        if engine.get("queued") or engine.get("running"):
            numbers.append(
                text("queue", queued=engine.get("queued") or 0, running=engine.get("running") or 0)
            )
        if reason := engine.get("wait_reason"):
            numbers.append(render(f"wait.{reason}", lang))
        shown.append(
            (
                render("state.child.worker", lang, {"engine": name}),
                word("state.engine", str(engine.get("state")), lang),
                text("separator").join(numbers),
            )
        )
    if web := state.get("web"):
        found = (size_text(web["rss_bytes"]) if web.get("rss_bytes") else "", str(web.get("url") or ""))
        size = text("separator").join(part for part in found if part)
        shown.append(
            (word("state.child", "web", lang), word("state.engine", str(web.get("state")), lang), size)
        )
    return shown


def troubles(state: Mapping[str, Any]) -> list[str]:
    """Sentences under the table: what is wrong and what to do."""
    lang = language()
    lines = [
        event_text("foreign_pressure", lang, foreign)
        for foreign in (state.get("pressure") or {}).get("foreign") or []
    ]
    if storage := state.get("storage"):
        lines.insert(0, error_text(storage["code"], lang, storage.get("params")))
    if f"gpu.{state.get('gpu_state')}" in catalogue(lang):
        lines.append(event_text("gpu_state_changed", lang, {"state": state["gpu_state"]}))
    for name, engine in sorted((state.get("engines") or {}).items()):
        if code := engine.get("code"):
            lines.append(error_text(code, lang, {"engine": name, **(engine.get("params") or {})}))
    return lines


@click.command(cls=Command, help_key="help_status", example="cosyd status")
@state_option
@json_option
def status(paths: StatePaths, as_json: bool) -> None:
    """Show whether cosyd runs and how it is."""
    state = control.status(paths)
    if as_json:
        print_json(
            {
                "running": state is not None,
                "can_speak": state is not None and can_speak(state),
                **(state or {}),
            }
        )
    elif state is None:
        note("not_running", state=paths.root)
    else:
        from daemon.cli.tables import print_table

        print_table(["col_part", "col_state", "col_numbers"], rows(state))
        for line in troubles(state):
            click.echo(line)
    if state is None or not can_speak(state):
        raise click.exceptions.Exit(EX_TEMPFAIL)
