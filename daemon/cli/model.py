"""`cosyd model check`: whether the CosyVoice model is whole, and exactly what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from daemon.cli.frame import Group, json_option, note, print_json, state_option
from pipeline.codes import CosydError
from pipeline.model_files import NEEDED, missing_files, missing_packages, model_folder
from pipeline.paths import StatePaths


@click.group(cls=Group, help_key="help_model", example="cosyd model check")
def model() -> None:
    """The CosyVoice model."""


@model.command("check", help_key="help_model_check", example="cosyd model check")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@state_option
@json_option
def check(folder: Path | None, paths: StatePaths, as_json: bool) -> None:
    """Name each file and package that is missing."""
    folder = folder or model_folder(state=paths.root)
    missing, packages = missing_files(folder), missing_packages()
    if as_json:
        whole = not missing and not packages
        print_json(
            {"folder": str(folder), "whole": whole, "missing": list(missing), "packages": list(packages)}
        )
        if not whole:
            raise click.exceptions.Exit(CosydError("model_missing").info.exit_status)
        return
    for name in NEEDED:
        click.echo(f"{'-' if name in missing else '+'} {folder / name}")
    if packages:
        raise CosydError("model_missing", reason="no_torch", detail=", ".join(packages))
    if missing:
        raise CosydError("model_missing", reason="no_files", missing=", ".join(missing))
    note("model_whole")
