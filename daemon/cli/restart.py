"""`cosyd restart`: asks the running cosyd to restart a part. Nothing that waits is lost."""

from __future__ import annotations

import click

from daemon.cli.control import ANSWER_S, control
from daemon.cli.frame import Command, json_option, note, print_json, state_option
from pipeline.codes import EX_TEMPFAIL
from pipeline.paths import StatePaths
from pipeline.rpc import Link

RESTART_S = 30.0


def _engines(link: Link) -> list[str]:
    """Those there is something to restart of. One that is not loaded starts fresh anyway; one that has
    failed is what people come here for."""
    found = link.call("status", timeout_s=ANSWER_S).get("engines", {})
    return [name for name, engine in found.items() if engine.get("state") != "absent"]


@click.command(cls=Command, help_key="help_restart", example="cosyd restart engine")
@click.argument("target", type=click.Choice(["engine", "web", "all"]))
@state_option
@json_option
def restart(target: str, paths: StatePaths, as_json: bool) -> None:
    """Restart the voice engine, the page or both."""
    with control(paths) as link:
        if link is None:
            note("not_running", state=paths.root)
            raise click.exceptions.Exit(EX_TEMPFAIL)
        engines = [] if target == "web" else _engines(link)
        if target == "engine":
            for name in engines:
                link.call("restart", timeout_s=RESTART_S, target=f"worker:{name}")
        else:
            link.call("restart", timeout_s=RESTART_S, target=target)
    if as_json:
        print_json({"target": target, "engines": engines, "web": target != "engine"})
    elif target == "engine" and not engines:
        note("restart_nothing")
    else:
        note(f"restarted_{target}")
