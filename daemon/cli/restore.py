"""`cosyd restore`: takes a backup in. On the appliance it stops the service, starts it again and, if that
does not become ready, brings back what was there."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daemon.cli import control
from daemon.cli.appliance import Appliance
from daemon.cli.backup import back_up
from daemon.cli.frame import (
    Command,
    Option,
    json_option,
    note,
    print_json,
    private_files,
    state_option,
    text,
)
from daemon.cli.layers import instance_config
from daemon.instance import InstanceHeld, take_lock
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.db import check_schema, connect
from pipeline.store.migrate import os_storage_error

if TYPE_CHECKING:
    from pipeline.backup.restore import Seen


@click.command(cls=Command, help_key="help_restore", example="cosyd restore cosyd.zip")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--no-config", cls=Option, is_flag=True, help="opt_no_config")
@click.option("--yes", cls=Option, is_flag=True, help="opt_yes")
@state_option
@json_option
def restore(file: Path, no_config: bool, yes: bool, paths: StatePaths, as_json: bool) -> None:
    """Take a backup in."""
    from pipeline.backup.restore import look

    appliance = Appliance.of(paths)
    if appliance is None:
        refuse_running(paths)
    seen = look(file)
    if not yes:
        told = summary(seen)
        note("restore_database_only" if seen.about is None else "restore_what", **told)
        note("restore_replaces", state=paths.root)
        if not click.confirm(text("restore_ask"), err=True):
            note("restore_nothing")
            return
    try:
        with private_files():
            result = take_in(paths, seen, appliance, with_config=not no_config)
    except OSError as error:
        raise os_storage_error(error) from error
    if as_json:
        print_json({"file": str(file), **summary(seen), **result})
        return
    note("restore_done", state=paths.root)
    if result["config"] == "aside":
        note("restore_config_aside", file=paths.root / ASIDE_CONFIG)
    if result["previous"]:
        note("restore_previous", previous=result["previous"])


ASIDE_CONFIG = "cosyd.toml.from-backup"
"""Where a configuration goes that does not fit this machine or this cosyd."""


def summary(seen: Seen) -> dict[str, Any]:
    """What a backup holds, for people and programs."""
    about = seen.about
    return {
        "made_at": about.made_at if about else None, "cosyd": about.cosyd if about else None,
        "voices": seen.voices, "outputs": seen.outputs, "bytes": seen.bytes,
    }  # fmt: skip


def refuse_running(paths: StatePaths) -> None:
    """Raise CosydError(config_error) while a cosyd runs that we cannot stop and start."""
    found = control.status(paths)
    if found is not None:
        raise still_running(paths, found.get("pid", "?"))


def still_running(paths: StatePaths, pid: object) -> CosydError:
    """Who is in the way, and what to do."""
    return CosydError("config_error", reason="restore_running", state=str(paths.root), pid=pid)


def take_in(
    paths: StatePaths, seen: Seen, appliance: Appliance | None, *, with_config: bool
) -> dict[str, Any]:
    """All of it; what became of the configuration and where the state of before is kept. Raises CosydError;
    then everything is as it was."""
    from pipeline.backup import restore as back

    with back.staged(paths, seen) as brought:
        was_active = appliance is not None and appliance.active()
        if appliance is not None and was_active:
            appliance.stop()
        try:
            with instance_lock(paths):
                now, had = time.time(), paths.database.exists()
                kept = keep_present(paths, now, seen.file)
                switched = back.switch(paths, brought, now)
                try:
                    check_new(paths)
                    undo = put_config(paths, brought.config) if with_config else Config("none", None)
                except BaseException:
                    back.put_back(paths, switched, now)
                    raise
        except BaseException:
            if appliance is not None and was_active:
                appliance.start()
            raise
        if appliance is not None and was_active and not (appliance.start() and appliance.wait_ready()):
            appliance.stop()
            with instance_lock(paths):
                back.put_back(paths, switched, time.time())
                undo.put_back(paths)
            appliance.start()
            raise CosydError("internal", reason="restore_not_ready")
        if had and kept is None:
            previous: str | None = str(paths.root / switched.aside)
        else:
            back.done(paths, switched)
            previous = str(kept) if kept else None
        return {"config": undo.state, "previous": previous}


@contextmanager
def instance_lock(paths: StatePaths) -> Iterator[None]:
    """Nobody can start meanwhile. Raises CosydError(config_error) when somebody runs."""
    from pipeline.backup.restore import own_like

    try:
        fd = take_lock(paths.instance_lock)
    except InstanceHeld as error:
        raise still_running(paths, error.params.get("pid", "?")) from None
    own_like(paths.root, paths.instance_lock)
    try:
        yield
    finally:
        os.close(fd)


def keep_present(paths: StatePaths, now: float, source: Path) -> Path | None:
    """A backup of what is there, so that a restore can be taken back by another; None where there is nothing
    or it cannot be read, which may be why somebody restores."""
    from pipeline.backup.make import stamp
    from pipeline.backup.restore import own_like

    if not paths.database.exists():
        return None
    target = paths.backups / f"before-restore-{stamp(now)}.zip"
    try:
        paths.backups.mkdir(mode=0o700, exist_ok=True)
        back_up(paths, target, outputs=False, now=now)
    except (CosydError, OSError, sqlite3.Error) as error:
        note("restore_no_copy", reason=error)
        return None
    own_like(paths.root, paths.backups, target)
    for older in paths.backups.glob("before-restore-*.zip"):
        if older.resolve() not in (target.resolve(), source.resolve()):
            older.unlink(missing_ok=True)
    return target


def check_new(paths: StatePaths) -> None:
    """What was put in place can be used. Raises CosydError."""
    with closing(connect(paths.database, "read", busy_s=5.0)) as conn:
        check_schema(conn)


class Config:
    """What became of the configuration: `restored`, `same`, `aside` or `none`; and the way back."""

    def __init__(self, state: str, path: Path | None, before: str | None = None) -> None:
        self.state, self._path, self._before = state, path, before

    def put_back(self, paths: StatePaths) -> None:
        """As it was."""
        from pipeline.backup.restore import write_config

        if self.state != "restored" or self._path is None:
            return
        if self._before is None:
            self._path.unlink(missing_ok=True)
        else:
            write_config(self._path, self._before)


def put_config(paths: StatePaths, brought: str | None) -> Config:
    """The configuration of the backup in its place, with what this machine says of itself; beside, where it
    does not fit or the folder is not ours."""
    from pipeline.backup.restore import machine_lines, merged_config, own_like, write_config

    if brought is None:
        return Config("none", None)
    path = instance_config(paths)
    before = path.read_text("utf-8") if path.exists() else None
    made = merged_config(brought, machine_lines(before or ""))
    if made is not None and made == before:
        return Config("same", None)
    if made is not None:
        with suppress(OSError, CosydError):
            path.parent.mkdir(exist_ok=True)
            write_config(path, made)
            return Config("restored", path, before)
    aside = paths.root / ASIDE_CONFIG
    write_config(aside, brought)
    own_like(paths.root, aside)
    return Config("aside", None)
