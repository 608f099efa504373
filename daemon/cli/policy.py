"""`cosyd admin policy`: what the memory guard saw, and what it decides about it, with the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from daemon import replay as replaying
from daemon.cli import control
from daemon.cli.frame import (
    Command,
    Group,
    Option,
    json_option,
    language,
    note,
    print_json,
    state_option,
    text,
)
from daemon.trace import read_trace
from pipeline.codes import EX_TEMPFAIL, CosydError
from pipeline.messages import render, word
from pipeline.paths import StatePaths

TRACE_S = 20.0


@click.group("policy", cls=Group, help_key="help_policy", example="cosyd admin policy trace -o trace.jsonl")
def policy() -> None:
    """The memory guard's decisions."""


def sentence(line: replaying.Line) -> str:
    """One decision in words."""
    lang, params = language(), dict(line.params)
    for name in ("new", "old"):
        if isinstance(params.get(name), str) and line.key != "condition":
            params[name] = word("state.level", params[name], lang)
    if "resource" in params:
        params["resource"] = word("state.resource", params["resource"], lang)
    if "state" in params:
        params["state"] = word("state.gpu", params["state"], lang)
    if isinstance(params.get("targets"), str):
        names = [word("state.child", name.strip(), lang) for name in params["targets"].split(",")]
        params["targets"] = text("separator").join(n[:1].lower() + n[1:] for n in names)
    return render(f"replay.{line.key}", lang, params)


@policy.command(
    "replay", cls=Command, help_key="help_replay", example="cosyd admin policy replay trace.jsonl"
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def replay(file: Path, as_json: bool) -> None:
    """Run a trace through the guard."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    except UnicodeDecodeError:
        raise CosydError("bad_value", field="trace", reason="trace_line", line=1) from None
    config, looks = read_trace(lines)
    found = list(replaying.replay(config, looks))
    if as_json:
        shown: list[dict[str, Any]] = [
            {"at": round(x.at, 3), "key": x.key, "params": x.params} for x in found
        ]
        print_json(shown)
        return
    for line in found:
        click.echo(f"{line.at:>10.1f} s  {sentence(line)}")


@policy.command(
    "trace", cls=Command, help_key="help_trace", example="cosyd admin policy trace -o trace.jsonl"
)
@click.option(
    "-o", "--output", cls=Option, type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="opt_trace_output",
)  # fmt: skip
@state_option
def trace(output: Path | None, paths: StatePaths) -> None:
    """Write what the guard saw last."""
    found = running_trace(paths)
    if found is None:
        note("not_running", state=paths.root)
        raise click.exceptions.Exit(EX_TEMPFAIL)
    if output is None:
        click.echo(found, nl=False)
    else:
        output.write_text(found, "utf-8")
        note("trace_written", file=output, count=max(0, len(found.splitlines()) - 1))


def running_trace(paths: StatePaths) -> str | None:
    """The trace of the cosyd that runs here, None when none does or it cannot tell. The file goes again."""
    with control.control(paths) as link:
        if link is None:
            return None
        answer = link.call("trace", timeout_s=TRACE_S)
    file = Path(str(answer.get("path"))) if isinstance(answer, dict) else None
    if file is None:
        return None
    try:
        return file.read_text("utf-8")
    except OSError:
        return None
