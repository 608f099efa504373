"""`cosyd backup`: everything of this cosyd as one file, while it runs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from daemon.cli.frame import (
    Command,
    Option,
    json_option,
    note,
    print_json,
    private_files,
    program_version,
    state_option,
)
from daemon.cli.layers import current_config, instance_config
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.migrate import os_storage_error

if TYPE_CHECKING:
    from pipeline.backup.make import Made


@click.command(cls=Command, help_key="help_backup", example="cosyd backup cosyd.zip")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--outputs", cls=Option, is_flag=True, help="opt_backup_outputs")
@state_option
@json_option
def backup(file: Path | None, outputs: bool, paths: StatePaths, as_json: bool) -> None:
    """Write everything into one file."""
    from pipeline.backup.make import file_name

    now = time.time()
    target = file or Path(file_name(now))
    if target.is_dir():
        target = target / file_name(now)
    if not target.parent.is_dir():
        raise CosydError("not_found", reason="folder", folder=str(target.parent))
    try:
        made = back_up(paths, target.absolute(), outputs=outputs, now=now)
    except OSError as error:
        raise os_storage_error(error) from error
    if as_json:
        print_json(dataclasses.asdict(made))
        return
    click.echo(str(target))
    note("backup_done", file=target, size=made.bytes, voices=made.voices, recordings=made.recordings)
    if not outputs:
        note("backup_without_outputs")
    elif made.missing:
        note("backup_missing", missing=made.missing)


def back_up(paths: StatePaths, target: Path, *, outputs: bool, now: float) -> Made:
    """The backup of a state folder with what belongs to it. Raises CosydError, OSError."""
    from pipeline.backup.make import write_backup

    config = instance_config(paths)
    try:
        profile = current_config(paths).profile
    except CosydError:  # a configuration that cannot be read is no reason for no backup
        profile = ""
    with private_files():
        return write_backup(
            paths, target, config=config if config.exists() else None, outputs=outputs,
            profile=profile, version=program_version(), now=now,
        )  # fmt: skip
