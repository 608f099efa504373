"""`cosyd model check`: the files one by one, and the trial with its report."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from daemon.cli.frame import language, print_json
from daemon.cli.layers import current_config
from daemon.cli.model_progress import Line, words
from pipeline.audio.files import disk_errors
from pipeline.codes import CosydError
from pipeline.messages import catalogue, render, size_text
from pipeline.model_child import run_tool
from pipeline.model_files import missing_packages
from pipeline.model_state import FileState, look_at_files, with_problems
from pipeline.paths import StatePaths

RANDOM_BYTES = 3_600_000_000
"""What a checkpoint of full size takes: 3.44 GB of fp32 and a little."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found in a folder; `inside` None: nobody could look into the files."""

    folder: Path
    files: list[FileState]
    packages: tuple[str, ...]
    quick: bool
    inside: Mapping[str, Any] | None = None

    @property
    def bad(self) -> list[FileState]:
        """Files that cannot be used."""
        return [file for file in self.files if file.bad]

    @property
    def whole(self) -> bool:
        """Whether nothing is missing or wrong."""
        return not self.bad and not self.packages

    def to_params(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "folder": str(self.folder),
            "whole": self.whole,
            "missing": [file.name for file in self.files if file.state in ("missing", "empty")],
            "packages": list(self.packages),
            "files": [
                {"name": f.name, "state": f.state, "size": f.size, "bad": f.bad, **f.params}
                for f in self.files
            ],
            "dtypes": dict((self.inside or {}).get("dtypes", {})),
        }


def look(folder: Path, paths: StatePaths, *, quick: bool) -> Looked:
    """Names, sizes and checksums, then what is inside where PyTorch is there. Raises CosydError(internal)."""
    packages, config = missing_packages(), current_config(paths)
    with Line() as line:
        files = look_at_files(folder, quick=quick, reinforced=config.cosyvoice.reinforced, told=line.reading)
        if packages or not any(file.size for file in files):
            return Looked(folder, files, packages, quick)
        arguments = ["--quick"] if quick else []
        inside = run_tool("check", folder, paths, config, line.reading, arguments)
    return Looked(folder, with_problems(files, inside["problems"]), packages, quick, inside)


def state_text(file: FileState) -> str:
    """People's words for a file's state."""
    if f"model.file_{file.state}" in catalogue("en"):
        return words(f"file_{file.state}", **file.params)
    return render(f"cosyvoice3.{file.state}", language(), file.params)


def show(found: Looked, as_json: bool) -> None:
    """Print it; raises CosydError(model_missing) when the model cannot be used."""
    if as_json:
        print_json(found.to_params())
        if not found.whole:
            raise click.exceptions.Exit(CosydError("model_missing").info.exit_status)
        return
    for file in found.files:
        size = f" ({size_text(file.size)})" if file.size else ""
        click.echo(f"{'-' if file.bad else '+'} {found.folder / file.name}{size}: {state_text(file)}")
    if found.inside is None and found.packages:
        click.echo(words("check_no_torch"), err=True)
    refuse(found)
    click.echo(words("check_sizes" if found.quick else "check_good"), err=True)


def refuse(found: Looked) -> None:
    """Raises CosydError(model_missing) for what is missing first, else for what is wrong."""
    absent = [file.name for file in found.bad if file.state in ("missing", "empty")]
    if absent:
        raise CosydError("model_missing", reason="no_files", missing=", ".join(absent))
    if found.bad:
        names = ", ".join(file.name for file in found.bad)
        raise CosydError("model_missing", reason="damaged", files=names)
    if found.packages:
        raise CosydError("model_missing", reason="no_torch", detail=", ".join(found.packages))


def write_random(folder: Path, paths: StatePaths, as_json: bool) -> None:
    """A model of noise. Raises CosydError: `storage_full`, `model_missing` (no_torch), `engine_failed`."""
    from pipeline.fetching.model import check_room

    if packages := missing_packages():
        raise CosydError("model_missing", reason="no_torch", detail=", ".join(packages))
    if folder.exists() and any(folder.iterdir()):
        raise CosydError("bad_value", field="--random-weights", reason="not_empty", value=str(folder))
    check_room(folder, RANDOM_BYTES)
    with Line() as line:
        done = run_tool("random", folder, paths, current_config(paths), line.part)
    if as_json:
        print_json({"folder": str(folder), **done})
    else:
        click.echo(words("random_done", size=done["bytes"], folder=folder), err=True)


def try_out(folder: Path, paths: StatePaths, report: Path | None, as_json: bool) -> None:
    """Speak five sentences and write the report. Raises CosydError; `bad_take` when a sentence is unsound."""
    from pipeline.voices import starter

    target = report or _report_path(paths)
    with disk_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
    with Line() as line, tempfile.TemporaryDirectory() as scratch:
        clip = Path(scratch) / "starter.wav"
        starter.make_clip(clip)
        arguments = ["--clip", str(clip), "--transcript", starter.TEXT]
        found = run_tool("speak", folder, paths, current_config(paths), line.trial, arguments)
    with disk_errors():
        target.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", "utf-8")
    if as_json:
        print_json(found)
    else:
        _print_report(found)
    click.echo(words("speak_report", file=target), err=True)
    if found["unsound"]:
        which = ", ".join(map(str, found["unsound"]))
        click.echo(words("speak_bad", which=which), err=True)
        raise click.exceptions.Exit(CosydError("bad_take").info.exit_status)
    click.echo(words("speak_good"), err=True)


def _report_path(paths: StatePaths) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
    return paths.root / "reports" / f"model-{stamp}.json"


def _print_report(found: Mapping[str, Any]) -> None:
    start, vram = found["start"], found["peak_vram_bytes"]
    rows = [
        ("speak_load", f"{start['seconds']:.1f} s"),
        ("speak_first", f"{found['first_audio_seconds'] or 0:.2f} s"),
        ("speak_rtf", f"{found['rtf'] or 0:.2f} s"),
        ("speak_rss", size_text(found["peak_rss_bytes"])),
        *([("speak_vram", size_text(vram))] if vram is not None else []),
    ]
    click.echo(f"{found['device']}, {found['dtype']}")
    for key, value in rows:
        click.echo(f"{words(key)}: {value}")
