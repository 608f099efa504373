"""`cosyd run`: becomes the supervisor. It takes our place by exec, so that click is not in its memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from daemon import interrupt
from daemon.cli.control import status
from daemon.cli.frame import Command, Option, state_option, text, usage
from daemon.cli.layers import resolve_all
from daemon.configuration import parse_options
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import PROFILES


def supervisor_command(
    paths: StatePaths,
    *,
    config: Path | None,
    host: str | None,
    port: int | None,
    lan: bool,
    profile: str | None,
    pairs: tuple[str, ...],
) -> list[str]:
    """The argument list that the supervisor is started with. Flags keep their names."""
    command = [sys.executable, "-m", "daemon.supervisor", "--state", str(paths.root)]
    if config is not None:
        command += ["--config", str(config.absolute())]
    if host is not None:
        command += ["--host", host]
    if port is not None:
        command += ["--port", str(port)]
    if lan:
        command.append("--lan")
    if profile is not None:
        command += ["--profile", profile]
    for pair in pairs:
        command += ["--set", pair]
    return command


@click.command(cls=Command, help_key="help_run", example="cosyd run --port 7860")
@state_option
@click.option(
    "--config", cls=Option, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="opt_config"
)
@click.option("--host", cls=Option, metavar="ADDRESS", help="opt_host")
@click.option("--port", cls=Option, type=click.IntRange(0, 65535), metavar="PORT", help="opt_port")
@click.option("--lan", cls=Option, is_flag=True, help="opt_lan")
@click.option("--profile", cls=Option, type=click.Choice(PROFILES), help="opt_profile")
@click.option("--set", "pairs", cls=Option, multiple=True, metavar="KEY=VALUE", help="opt_set")
def run(
    paths: StatePaths,
    config: Path | None,
    host: str | None,
    port: int | None,
    lan: bool,
    profile: str | None,
    pairs: tuple[str, ...],
) -> None:
    """Start cosyd here, in the foreground."""
    if lan and host is not None:
        usage("lan_or_host")
    command = supervisor_command(
        paths, config=config, host=host, port=port, lan=lan, profile=profile, pairs=pairs
    )
    # Looked at here too, so that all that is wrong is told in the person's language before anything starts.
    resolve_all(paths, config, parse_options(command[3:]).flags)
    if (found := status(paths)) is not None:
        raise CosydError("config_error", reason="running", state=str(paths.root), pid=found.get("pid", "?"))
    sys.stdout.flush()
    interrupt.hold()
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise click.ClickException(text("exec_failed", program=command[0], reason=error.strerror)) from None
    finally:  # still here: it did not start
        interrupt.release()
