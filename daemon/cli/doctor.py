"""`cosyd doctor`: the check-up. Reads machine and state folder, changes nothing. Exits 1 on a failure."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import psutil

from daemon.cli import checkup, checkup_card, checkup_machine, control
from daemon.cli.checkup import Check
from daemon.cli.frame import Command, json_option, language, print_json, state_option, text
from daemon.cli.layers import current_config, resolve_all
from daemon.cli.status import can_speak
from daemon.hardware.driver import advise
from daemon.hardware.facts import Facts
from daemon.hardware.fit import fit
from daemon.hardware.host import RealHost
from daemon.hardware.reader import read_facts
from daemon.sockets import find_holder
from daemon.update.layout import Layout
from pipeline.codes import CosydError
from pipeline.messages import problem_text, render
from pipeline.model_files import model_folder
from pipeline.model_state import look_at_files
from pipeline.paths import StatePaths
from pipeline.planning.torch_build import installed_build
from pipeline.profile import Config
from pipeline.store.db import check_schema, connect
from pipeline.store.place import MOUNTINFO, mount_of

MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


def examine(paths: StatePaths, look: Callable[[StatePaths], Facts] | None = None) -> list[Check]:
    """Every check, in the order they are shown. A part that cannot be read is a verdict, not an exception.
    `look` gives the facts about the machine."""
    problems: list[object] = []
    origin: dict[str, str] = {}
    try:
        resolved = resolve_all(paths)
        config, origin = resolved.config, dict(resolved.origin)
    except CosydError as error:
        problems = list(error.params.get("problems", [error.code]))
        config = Config()
    try:
        status = control.status(paths)
    except CosydError:
        status = None
    running = current_config(paths) if status is not None else config
    facts = (look or machine)(paths)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    checks = [
        checkup_machine.check_system(facts),
        checkup.check_python(sys.version_info[:3]),
        _program("espeak-ng", "--version"),
        _program("ffmpeg", "-version"),
        checkup.check_config(problems),
        checkup.check_service(status, status is not None and can_speak(status)),
        _port(running, running=status is not None),
        *([] if status is not None else [_wyoming(config)]),
        *filter(None, [checkup.check_update(_half_updated())]),
        checkup.check_place(str(paths.root), mount_of(paths.root)),
        _database(paths),
        checkup.check_disk(shutil.disk_usage(_existing(paths.root)).free, config.limits.min_free_bytes),
        checkup.check_outputs(folder_bytes(paths.outputs), config.outputs.max_bytes),
        _backup(paths),
        checkup_machine.check_clock(facts, _written(Path(__file__))),
        checkup.check_memory(
            memory.total, memory.available, config.guard.ram.low_enter.bytes_of(memory.total)
        ),
        checkup.check_swap(
            swap.total, swap.used, memory.total, config.swap_bytes, config.swap_below_ram_bytes
        ),
        *_card(facts, config, origin, status),
        _model(paths, config),
    ]
    known = _sources(paths)
    return [c if c.source else replace(c, source=known.get(c.name, "")) for c in checks]


def _sources(paths: StatePaths) -> dict[str, str]:
    """Where the values of the checks come from that have no source of their own, by name."""
    return {
        "python": sys.executable,
        "espeak-ng": shutil.which("espeak-ng") or "PATH",
        "ffmpeg": shutil.which("ffmpeg") or "PATH",
        "config": "configuration",
        "service": str(paths.control_socket),
        "port": "bind",
        "wyoming": "bind",
        "update": "update.json",
        "place": str(MOUNTINFO),
        "database": str(paths.database),
        "disk": f"statvfs {paths.root}",
        "outputs": str(paths.outputs),
        "backup": str(paths.backups),
        "memory": "/proc/meminfo",
        "swap": "/proc/swaps",
    }


def machine(paths: StatePaths, port: int | None = None) -> Facts:
    """The facts about this machine."""
    return read_facts(RealHost(), state=str(paths.root), port=port)


def chosen_class(config: Config, origin: Mapping[str, str]) -> tuple[str | None, str, str | None]:
    """(class, card, layer) as a person set them; the class is None and the card auto where nobody did."""

    def own(key: str) -> bool:
        layer = origin.get(key, "default")
        return layer != "default" and not layer.startswith("profile ")

    card = config.gpu if own("gpu") else "auto"
    return (config.profile, card, origin["profile"]) if own("profile") else (None, card, None)


def _card(
    facts: Facts, config: Config, origin: Mapping[str, str], status: Mapping[str, Any] | None
) -> list[Check]:
    name, card, layer = chosen_class(config, origin)
    found = fit(facts, gpu=card, configured=name or config.profile, origin=layer or "default")
    advice = advise(facts, found.torch)
    source = facts.sources.get("gpus", "")
    build = installed_build()
    ours = _ours(status)
    checks = [
        checkup_card.check_card(facts, found, advice),
        *checkup_card.check_other_cards(facts, found),
        checkup_card.check_headers(facts),
        checkup_card.check_secure_boot(facts),
        checkup_card.check_torch(build, facts, found),
        checkup_card.check_class(found, build is not None),
        checkup_card.check_holders(found.gpu, ours, source),
        checkup_card.check_health(found.gpu, (status or {}).get("gpu_state"), source),
    ]
    return [check for check in checks if check is not None]


def _ours(status: Mapping[str, Any] | None) -> set[int]:
    """The processes of the running cosyd."""
    try:
        above = psutil.Process(int((status or {})["pid"]))
        return {above.pid, *(child.pid for child in above.children(recursive=True))}
    except (KeyError, TypeError, ValueError, psutil.Error):
        return set()


def _model(paths: StatePaths, config: Config) -> Check:
    folder = model_folder(state=paths.root)
    files = look_at_files(folder, quick=True, reinforced=config.cosyvoice.reinforced)
    return checkup_machine.check_model(files, str(folder))


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _program(name: str, flag: str) -> Check:
    path = shutil.which(name)
    version = ""
    if path is not None:
        try:
            told = subprocess.run(
                [path, flag], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
            )
            words = told.stdout.split("\n", 1)[0].split()
            version = next((word for word in words if word[:1].isdigit()), "?")
        except (OSError, subprocess.TimeoutExpired):
            version = "?"
    return checkup.check_program(name, path, version)


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; files that go away meanwhile do not count."""
    total = 0
    for path in folder.rglob("*") if folder.exists() else ():
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _bindable(host: str, port: int) -> tuple[bool, str]:
    """Whether the port can be had, and who has it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            return True, ""
        except OSError:
            held_by = find_holder(port)
    return False, f"{held_by[0]} ({held_by[1]})" if held_by else ""


def _port(config: Config, *, running: bool) -> Check:
    port = config.web.port
    free, holder = _bindable(config.web.host, port)
    return checkup.check_port(port, free=free, ours=running and not free, holder=holder)


def _wyoming(config: Config) -> Check:
    free, holder = _bindable(config.web.host, config.wyoming.port)
    return checkup.check_wyoming(config.wyoming.port, free=free, holder=holder)


def _half_updated() -> str | None:
    layout = Layout.around(Path(sys.prefix))
    return layout.current() if layout is not None and layout.journal.exists() else None


def _database(paths: StatePaths) -> Check:
    if not paths.database.exists():
        return checkup.check_database("absent")
    try:
        conn = connect(paths.database, "read", busy_s=5.0)
        try:
            check_schema(conn)
            verdict = str(conn.execute("PRAGMA quick_check(1)").fetchone()[0])
        finally:
            conn.close()
    except CosydError as error:
        if error.code == "schema_mismatch":
            return checkup.check_database("other_version", f"{error.params.get('found')}")
        damaged = error.params.get("reason") == "database_corrupt"
        return checkup.check_database("damaged" if damaged else "unreadable", error.code)
    except sqlite3.DatabaseError as error:
        return checkup.check_database("damaged", str(error))
    return (
        checkup.check_database("ok") if verdict == "ok" else checkup.check_database("damaged", verdict[:200])
    )


def _backup(paths: StatePaths) -> Check:
    now = time.time()
    files = [path.stat().st_mtime for path in paths.backups.glob("*")] if paths.backups.exists() else []
    there = paths.database.exists()
    born = paths.root.stat().st_ctime if there else now
    try:
        if there:
            conn = connect(paths.database, "read", busy_s=1.0)
            try:
                row = conn.execute("SELECT min(at) FROM events").fetchone()
            finally:
                conn.close()
            from pipeline.clock import wall_seconds

            born = wall_seconds(row[0]) if row and row[0] else now
    except (CosydError, sqlite3.Error, ValueError):
        pass
    return checkup.check_backup(
        now - max(files) if files else None, database=there, database_age_s=now - born
    )


@click.command(cls=Command, help_key="help_doctor", example="cosyd doctor")
@state_option
@json_option
def doctor(paths: StatePaths, as_json: bool) -> None:
    """Check this machine and say how to mend what is wrong."""
    checks = examine(paths)
    lang = language()

    def words(key: str, check: Check) -> str:
        params = dict(check.params)
        if isinstance(problems := params.get("problems"), list):
            params["problems"] = "; ".join(problem_text(problem, lang) for problem in problems)
        return render(key if "." in key else f"doctor.{key}", lang, params) if key else ""

    if as_json:
        print_json(
            [
                {"name": c.name, "verdict": c.verdict, "text": words(c.text, c), "cure": words(c.cure, c),
                 "params": dict(c.params), "source": c.source}
                for c in checks
            ]
        )  # fmt: skip
    else:
        for check in checks:
            colour = {"ok": "green", "warn": "yellow", "fail": "red"}[check.verdict]
            mark = click.style(MARKS[check.verdict], fg=colour)
            click.echo(
                f"{mark} {words(f'name_{check.name}', check)}{text('colon')}{words(check.text, check)}"
            )
            if check.cure:
                click.echo(f"    {words(check.cure, check)}")
        click.echo(render(f"doctor.sum_{checkup.worst(checks)}", lang))
    if checkup.worst(checks) == "fail":
        raise click.exceptions.Exit(1)
