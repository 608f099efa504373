"""`cosyd model info`: what is installed, what is prepared, and how it will run on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from daemon.cli import explaining, hardware
from daemon.cli.layers import current_config
from daemon.cli.model_progress import words
from daemon.ram_reader import RamReader
from pipeline.codes import CosydError
from pipeline.messages import size_text
from pipeline.model_child import run_tool
from pipeline.model_files import LANGUAGES, RECORD, SAVED_INDEX, missing_packages
from pipeline.model_state import look_at_files
from pipeline.paths import StatePaths
from pipeline.planning.processor import fast_bf16
from pipeline.voices.saved import saved_folder


def gather(folder: Path, paths: StatePaths) -> tuple[dict[str, Any], explaining.Explained]:
    """All of it as JSON, and the plan; `dtype` is "" where PyTorch is not there to look."""
    config, packages = current_config(paths), missing_packages()
    files = look_at_files(folder, quick=True, reinforced=config.cosyvoice.reinforced)
    dtypes: dict[str, str] = {}
    voices = 0
    if not packages and any(file.size for file in files):
        try:
            inside = run_tool("check", folder, paths, config, arguments=["--quick"])
            dtypes, voices = inside["dtypes"], inside["voices"]
        except CosydError:
            pass  # `check` says what is wrong; here it is only not known
    plan = explaining.explain(config, hardware.probe(), RamReader().read(), None, fast_bf16())
    found = {
        "folder": str(folder),
        "whole": not any(file.bad for file in files),
        "files": [
            {"name": f.name, "size": f.size, "state": f.state, "dtype": dtypes.get(f.name, "")} for f in files
        ],
        "bytes": sum(file.size for file in files),
        "origin": _origin(folder),
        "cache": {"folder": str(saved_folder(paths)), "parts": _cache(saved_folder(paths))},
        "languages": list(LANGUAGES),
        "saved_voices": voices,
        "packages": list(packages),
        "plan": plan.to_params(),
    }
    return found, plan


def _origin(folder: Path) -> dict[str, str] | None:
    try:
        found = json.loads((folder / RECORD).read_text("utf-8"))
        return {key: str(found[key]) for key in ("source", "repository", "revision", "at")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cache(folder: Path) -> list[dict[str, Any]]:
    """The converted parts by their stamps."""
    found = []
    for stamp in sorted(folder.glob("*.json")):
        if stamp.name == SAVED_INDEX:
            continue
        try:
            told = json.loads(stamp.read_text("utf-8"))
            size = (folder / Path(told["file"]).name).stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found.append({"part": stamp.stem, "size": size})
    return found


def show(found: dict[str, Any], plan: explaining.Explained) -> None:
    """For people."""
    from daemon.cli.tables import print_table

    if not found["bytes"]:
        click.echo(words("info_absent", folder=found["folder"]))
    else:
        click.echo(f"{words('info_folder')}: {found['folder']}")
        if origin := found["origin"]:
            click.echo(words("info_source", source=origin["source"], at=origin["at"][:10]))
        there = [file for file in found["files"] if file["size"]]
        for file in there:
            dtype = f", {file['dtype']}" if file["dtype"] else ""
            click.echo(f"  {file['name']}: {size_text(file['size'])}{dtype}")
        click.echo(words("info_size", size=found["bytes"], count=len(there)))
    parts = found["cache"]["parts"]
    made = ", ".join(f"{part['part']} {size_text(part['size'])}" for part in parts)
    click.echo(f"{words('info_cache')}: {made or words('info_cache_none')}")
    click.echo(f"{words('info_languages')}: {' '.join(found['languages'])}")
    if found["saved_voices"]:
        click.echo(words("info_voices", count=found["saved_voices"]))
    if found["packages"]:
        click.echo(words("info_packages", names=", ".join(found["packages"])))
    click.echo(explaining.title(plan))
    print_table(["col_part", "col_size"], explaining.rows(plan))
    click.echo(explaining.verdict(plan))
