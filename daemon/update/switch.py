"""The change-over: stop, back up, change the link, start, wait until it is ready; else all the way back.

Run as `python -m daemon.update.switch HOME` by the old environment, in a unit of its own (`cosyd-update`), so
that neither a lost connection nor Ctrl+C stops it half-way. What it is at stands in a journal; whoever finds
one, the unit's ExecStopPost after a `kill -9` or the next `cosyd update`, goes on with `recover`. What was
interrupted before the link was changed has changed nothing; after that, the new one stays if it gets ready.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from daemon.cli.appliance import Appliance
from daemon.update.layout import Layout, prunable
from pipeline.audio.files import write_whole
from pipeline.backup.make import stamp
from pipeline.backup.moves import Move, finish, perform
from pipeline.backup.restore import own_like
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.backup import copy_database
from pipeline.store.db import connect
from pipeline.store.migrate import migration_lock

BEGUN, SWITCHED, BACK = "begun", "switched", "back"
BACKUPS_KEPT = 2


class Service(Protocol):
    """What is asked of the service (`daemon.cli.appliance`)."""

    def active(self) -> bool: ...
    def stop(self) -> None: ...
    def start(self) -> bool: ...
    def wait_ready(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What the journal holds: environments by name, whether the service ran, the copy of the database and the
    schema that it has, and how far it is."""

    state: str
    old: str
    new: str
    was_active: bool
    schema: int
    backup: str = ""
    phase: str = BEGUN

    @property
    def paths(self) -> StatePaths:
        from daemon.cli.frame import state_paths

        return state_paths(Path(self.state))


def write_plan(layout: Layout, plan: Plan) -> None:
    """Whole or not at all."""
    write_whole(layout.journal, json.dumps(asdict(plan)).encode())


def read_plan(layout: Layout) -> Plan | None:
    """The change-over that is on its way; None when there is none."""
    try:
        found: Mapping[str, Any] = json.loads(layout.journal.read_text("utf-8"))
        return Plan(**found)
    except FileNotFoundError:
        return None


def schema_of(paths: StatePaths) -> int:
    """The schema of the database that is there; 0 without one."""
    if not paths.database.exists():
        return 0
    with closing(sqlite3.connect(paths.database.absolute().as_uri() + "?mode=ro", uri=True)) as conn:
        return int(conn.execute("PRAGMA user_version").fetchone()[0])


def change_over(layout: Layout, plan: Plan, service: Service | None, now: float) -> None:
    """From old to new. Raises CosydError(internal, reason=update_back) when the new one did not become ready
    and the old one is back; other errors before anything was changed."""
    write_plan(layout, plan)
    try:
        if service is not None and plan.was_active:
            service.stop()
        backup = save_database(plan, now)
        plan = replace(plan, backup=backup, schema=schema_of(plan.paths))
        write_plan(layout, plan)
    except BaseException:
        if service is not None and plan.was_active:
            service.start()
        layout.journal.unlink(missing_ok=True)
        raise
    layout.point_to(plan.new)
    plan = replace(plan, phase=SWITCHED)
    write_plan(layout, plan)
    settle(layout, plan, service, now)


def settle(layout: Layout, plan: Plan, service: Service | None, now: float) -> None:
    """The link is changed: does the new one become ready? Raises CosydError(internal, update_back)."""
    ready = True
    if service is not None and plan.was_active:
        ready = service.start() and service.wait_ready()
    if not ready:
        go_back(layout, plan, service, now)
        raise CosydError("internal", reason="update_back", old=plan.old, new=plan.new)
    layout.journal.unlink(missing_ok=True)
    prune(layout, plan)


def go_back(layout: Layout, plan: Plan, service: Service | None, now: float) -> None:
    """The old environment, and the old database where the new one had changed its schema."""
    write_plan(layout, replace(plan, phase=BACK))
    if service is not None:
        service.stop()
    layout.point_to(plan.old)
    paths = plan.paths
    if plan.backup:
        with migration_lock(paths):
            finish(paths)  # of a way back that was interrupted too
    if plan.backup and schema_of(paths) > plan.schema:
        aside = f"restored-{stamp(now)}"
        with migration_lock(paths):
            (paths.root / aside).mkdir(mode=0o700, exist_ok=True)
            # A copy under a name of this folder, so that the rename is one; the backup itself stays.
            copy = paths.root / f"{paths.database.name}.back"
            copy.unlink(missing_ok=True)  # the folder is the service's: nothing is written through a link
            shutil.copyfile(plan.backup, copy)
            os.chmod(copy, 0o600)
            own_like(paths.root, copy, paths.root / aside)
            names = [paths.database.name + end for end in ("", "-wal", "-shm")]
            moves = [Move(name, f"{aside}/{name}") for name in names if (paths.root / name).exists()]
            perform(paths, [*moves, Move(copy.name, paths.database.name)])
    if service is not None and plan.was_active:
        service.start()
        service.wait_ready()
    layout.journal.unlink(missing_ok=True)


def recover(layout: Layout, service: Service | None, now: float) -> str | None:
    """Go on with a change-over that was interrupted: `old` or `new` is in use afterwards, None: there was
    none."""
    plan = read_plan(layout)
    if plan is None:
        return None
    if plan.phase == BEGUN and layout.current() == plan.new:
        plan = replace(plan, phase=SWITCHED)  # killed between the link and the journal
    if plan.phase == SWITCHED:
        try:
            settle(layout, plan, service, now)
        except CosydError:
            return "old"
        return "new"
    if plan.phase == BACK:
        go_back(layout, plan, service, now)
        return "old"
    if service is not None and plan.was_active:
        service.start()
    layout.journal.unlink(missing_ok=True)
    return "old"


def save_database(plan: Plan, now: float) -> str:
    """A checked copy of the database, made while nobody writes; "" without one. The newest two stay."""
    paths = plan.paths
    if not paths.database.exists():
        return ""
    paths.backups.mkdir(mode=0o700, exist_ok=True)
    target = paths.backups / f"before-update-{stamp(now)}.db"
    with closing(connect(paths.database, "work")) as conn:
        copy_database(conn, target)
    os.chmod(target, 0o600)
    own_like(paths.root, paths.backups, target)
    for older in sorted(paths.backups.glob("before-update-*.db"))[:-BACKUPS_KEPT]:
        older.unlink(missing_ok=True)
    return str(target)


def prune(layout: Layout, plan: Plan) -> None:
    """All environments but the one in use and the one before."""
    names = [path.name for path in layout.venvs.iterdir() if path.is_dir()]
    for name in prunable(names, keep=(plan.old, plan.new)):
        shutil.rmtree(layout.venvs / name, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Entry of the unit. Exit 0: the new one is in use, or there was nothing to do; 70: the old one is."""
    parser = argparse.ArgumentParser(prog="python -m daemon.update.switch", description=__doc__)
    parser.add_argument("home", type=Path, metavar="HOME")
    parser.add_argument("--recover", action="store_true", help="go on with what was interrupted")
    options = parser.parse_args(argv)
    os.umask(0o077)
    layout = Layout(options.home)
    plan = read_plan(layout)
    if plan is None:
        return 0
    service = Appliance.of(plan.paths)
    if options.recover:
        found = recover(layout, service, time.time())
        return 70 if found == "old" else 0
    try:
        change_over(layout, plan, service, time.time())
    except CosydError as error:
        print(json.dumps({"code": error.code, "params": error.params}, default=str), flush=True)
        return error.info.exit_status
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
