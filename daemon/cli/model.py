"""`cosyd model`: get the CosyVoice model, look through it, prepare it, show it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click

from daemon.cli.frame import EXIT_INTERRUPTED, Group, Option, json_option, language, print_json, state_option
from daemon.cli.keys import open_database
from daemon.cli.layers import current_config
from daemon.cli.model_progress import Line, words
from pipeline.codes import CosydError
from pipeline.model_files import ENGINE, missing_files, missing_packages, model_folder
from pipeline.paths import StatePaths

SOURCES = ("auto", "huggingface", "hf-mirror", "modelscope")


@click.group(cls=Group, help_key="help_model", example="cosyd model check")
def model() -> None:
    """The CosyVoice model."""


@model.command("fetch", help_key="help_model_fetch", example="cosyd model fetch --source modelscope")
@click.option("--source", cls=Option, default="auto", type=click.Choice(SOURCES), help="opt_model_source")
@click.option(
    "--from", "origin", cls=Option, metavar="DIR", help="opt_model_from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--rl", "reinforced", cls=Option, is_flag=True, help="opt_model_rl")
@state_option
@json_option
def fetch(source: str, origin: Path | None, reinforced: bool, paths: StatePaths, as_json: bool) -> None:
    """Download or copy the model, then make the starter voice."""
    import os

    from pipeline.fetching.model import as_json as fetched_json
    from pipeline.fetching.model import copy_model, fetch_model
    from pipeline.fetching.sources import choose_sources

    folder = model_folder(state=paths.root)
    reinforced = reinforced or current_config(paths).cosyvoice.reinforced
    now = time.time()
    with Line() as line:
        try:
            if origin is not None:
                line.say(words("fetch_local", folder=origin))
                done = copy_model(folder, origin, line.fetched, now=now, reinforced=reinforced)
            else:
                done = fetch_model(
                    folder,
                    choose_sources(source, os.environ, language()),
                    line.fetched,
                    now=now,
                    reinforced=reinforced,
                    on_listing=lambda place, size, count: line.say(
                        words("fetch_begin", source=place.name, bytes=size, count=count, folder=folder)
                    ),
                )
        except KeyboardInterrupt:
            line.say(words("fetch_interrupted"))
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        if done.kept:
            line.say(words("fetch_kept", count=len(done.kept)))
        line.say(words("fetch_done", folder=folder))
        _wake(paths)
        voice = _starter(paths, line, now)
        line.say(words("fetch_no_torch") if missing_packages() else words("fetch_next"))
    if as_json:
        print_json({"folder": str(folder), **fetched_json(done), "starter": voice})


def _wake(paths: StatePaths) -> None:
    """A running service that gave up on the engine for want of the model may try again now."""
    from daemon.cli.control import control

    with contextlib.suppress(CosydError), control(paths) as link:
        if link is None:
            return
        engine = (link.call("status", timeout_s=5.0).get("engines") or {}).get(ENGINE) or {}
        if engine.get("state") == "failed":
            link.call("restart", timeout_s=5.0, target=f"worker:{ENGINE}")


def _starter(paths: StatePaths, line: Line, now: float) -> str | None:
    """Make the starter voice where there is none; its id. Not having one is no failure of the fetch."""
    from pipeline.voices.starter import ensure_starter

    try:
        with open_database(paths) as conn:
            voice = ensure_starter(conn, paths, words("starter_name"), now)
    except CosydError as error:
        line.say(words("starter_failed", detail=error.params.get("detail", error.code)))
        return None
    line.say(words("starter_made", id=voice.id))
    return voice.id


@model.command("check", help_key="help_model_check", example="cosyd model check --speak")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--quick", cls=Option, is_flag=True, help="opt_model_quick")
@click.option("--speak", cls=Option, is_flag=True, help="opt_model_speak")
@click.option(
    "--report", cls=Option, metavar="FILE", help="opt_model_report",
    type=click.Path(dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--random-weights", "random", cls=Option, metavar="DIR", help="opt_model_random",
    type=click.Path(file_okay=False, path_type=Path),
)  # fmt: skip
@state_option
@json_option
def check(
    folder: Path | None,
    quick: bool,
    speak: bool,
    report: Path | None,
    random: Path | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Say of each file whether it is there, whole and what it should be; try it out."""
    from daemon.cli import model_check

    if random is not None:
        model_check.write_random(random, paths, as_json)
        folder = folder or random
        if not speak:
            return
    folder = folder or model_folder(state=paths.root)
    found = model_check.look(folder, paths, quick=quick or speak)
    if not speak:
        model_check.show(found, as_json)
        return
    model_check.refuse(found)
    model_check.try_out(folder, paths, report, as_json)


@model.command("convert", help_key="help_model_convert", example="cosyd model convert")
@state_option
@json_option
def convert(paths: StatePaths, as_json: bool) -> None:
    """Make the converted weights that this machine will load."""
    from pipeline.model_child import run_tool
    from pipeline.model_files import require_model

    require_model(paths.root)
    folder, cache = model_folder(state=paths.root), paths.root / "cache" / "cosyvoice3"
    begun = time.monotonic()
    with Line() as line:
        done = run_tool("convert", folder, paths, current_config(paths), line.part)
    if as_json:
        print_json(done)
        return
    key = "convert_done" if done["made"] else "convert_already"
    click.echo(words(key, size=done["bytes"], folder=cache, seconds=time.monotonic() - begun))


@model.command("info", help_key="help_model_info", example="cosyd model info")
@state_option
@json_option
def info(paths: StatePaths, as_json: bool) -> None:
    """Where the model lies, what it takes, how it will run here."""
    from daemon.cli import model_info

    folder = model_folder(state=paths.root)
    found, plan = model_info.gather(folder, paths)
    if as_json:
        print_json(found)
        return
    model_info.show(found, plan)
    if missing := missing_files(folder):
        raise CosydError("model_missing", reason="no_files", missing=", ".join(missing))
