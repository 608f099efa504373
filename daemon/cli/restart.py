"""`cosyd restart`: asks the running cosyd to restart a part. Nothing that waits is lost."""

from __future__ import annotations

import click

from daemon.cli.control import ANSWER_S, control
from daemon.cli.frame import Command, note, state_option
from pipeline.codes import CosydError
from pipeline.paths import StatePaths

RESTART_S = 30.0


@click.command(cls=Command, help_key="help_restart", example="cosyd restart engine")
@click.argument("target", type=click.Choice(["engine", "web", "all"]))
@state_option
def restart(target: str, paths: StatePaths) -> None:
    """Restart the voice engine, the page or both."""
    with control(paths) as link:
        if link is None:
            note("not_running", state=paths.root)
            raise click.exceptions.Exit(CosydError("shutting_down").info.exit_status)
        if target == "engine":
            found = link.call("status", timeout_s=ANSWER_S).get("engines", {})
            # One that is not loaded starts fresh anyway; one that has failed is what people come here for.
            names = [name for name, engine in found.items() if engine.get("state") != "absent"]
            for name in names:
                link.call("restart", timeout_s=RESTART_S, target=f"worker:{name}")
            note("restarted_engine" if names else "restart_nothing")
        else:
            link.call("restart", timeout_s=RESTART_S, target=target)
            note(f"restarted_{target}")
