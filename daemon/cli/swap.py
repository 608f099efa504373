"""`cosyd admin swap`: what swap there is, what cosyd would change, and doing it.

Asks the running cosyd, which puts it on record; where none runs, the root helper itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from daemon.cli.control import control
from daemon.cli.frame import Group, Option, json_option, language, print_json, state_option, unfit
from daemon.cli.layers import resolve_all
from daemon.swap import plan as plans
from daemon.swap.client import ANSWER_S, CHANGE_S, SOCKET, STATUS, ask_now, set_request
from daemon.swap.keeper import outcome, refused, shown
from pipeline.codes import EX_TEMPFAIL
from pipeline.messages import render
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.profile.problems import BadValue
from pipeline.profile.values import parse_size


def words(key: str, params: Mapping[str, Any] | None = None) -> str:
    """A text of the [swap] section."""
    return render(f"swap.{key}", language(), params or {})


@click.group("swap", cls=Group, help_key="help_swap", example="cosyd admin swap status")
def swap() -> None:
    """Swap that cosyd made."""


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return parse_size(value)
    except BadValue as error:
        raise click.BadParameter(unfit(error), param_hint="--total") from None


total_option = click.option(
    "--total", cls=Option, metavar="SIZE", callback=_size, help="opt_swap_total"
)  # fmt: skip


def _ask(paths: StatePaths, method: str, total: int | None, timeout_s: float) -> dict[str, Any]:
    """The answer of `swap_METHOD`."""
    with control(paths) as link:
        if link is not None:
            params = {} if total is None else {"total_bytes": total}
            answer = link.call(f"swap_{method}", timeout_s=timeout_s, **params)
            return answer if isinstance(answer, dict) else {}
    config = resolve_all(paths).config
    return _alone(config, method, total)


def _alone(config: Config, method: str, total: int | None) -> dict[str, Any]:
    """The same, straight from the helper."""
    answer = ask_now(STATUS, SOCKET, ANSWER_S)
    if method == "status":
        return shown(answer, config)
    view = plans.parse_view(answer) if answer.get("ok") else None
    if view is None:
        return outcome("refuse", *refused(answer), None)
    plan = plans.standing(view, config) if total is None else plans.resize(view, total)
    if method == "plan" or plan.action in ("none", "refuse"):
        return outcome(plan.action, plan.reason, plan.params, view, plan.own_bytes)
    done = ask_now(set_request(plan.own_bytes), SOCKET, CHANGE_S)
    after = plans.parse_view(done) or view
    if not done.get("ok"):
        return outcome("refuse", *refused(done), after)
    return outcome(plan.action, None, {}, after)


def _refuse(answer: Mapping[str, Any]) -> None:
    """Say why not and what to do; ends with 75."""
    click.echo(words(f"refused_{answer.get('reason')}", answer.get("params") or {}), err=True)
    raise click.exceptions.Exit(EX_TEMPFAIL)


@swap.command("status", help_key="help_swap_status", example="cosyd admin swap status --json")
@state_option
@json_option
def status(paths: StatePaths, as_json: bool) -> None:
    """Show what swap there is and whose it is."""
    found = _ask(paths, "status", None, ANSWER_S)
    if as_json:
        print_json(found)
        if not found.get("helper"):
            raise click.exceptions.Exit(EX_TEMPFAIL)
        return
    if not found.get("helper"):
        _refuse(found)
    from daemon.cli.tables import print_table
    from pipeline.messages import size_text

    rows = [(words("own"), size_text(found["own_bytes"]), size_text(found["own_used_bytes"]))]
    if found["inactive_bytes"]:
        rows.append((words("inactive"), size_text(found["inactive_bytes"]), "-"))
    rows += [(words(o["kind"]), size_text(o["bytes"]), size_text(o["used_bytes"])) for o in found["others"]]
    print_table(["col_swap", "col_size", "col_used"], rows)
    click.echo(words("total", {"total": found["total_bytes"]}))
    click.echo(words("wanted", {"wanted": found["wanted_bytes"], "free": found["disk_free_bytes"]}))
    if found["obstacle"]:
        click.echo(words(f"refused_{found['obstacle']}", found))


@swap.command("plan", help_key="help_swap_plan", example="cosyd admin swap plan")
@total_option
@state_option
@json_option
def plan(total: int | None, paths: StatePaths, as_json: bool) -> None:
    """Say what would be changed, and why not."""
    _tell(_ask(paths, "plan", total, ANSWER_S), as_json, {"grow": "plan_grow", "shrink": "plan_shrink"})


@swap.command("apply", help_key="help_swap_apply", example="cosyd admin swap apply --total 4GiB")
@total_option
@state_option
@json_option
def apply(total: int | None, paths: StatePaths, as_json: bool) -> None:
    """Make it so."""
    _tell(_ask(paths, "apply", total, CHANGE_S), as_json, {"grow": "grown", "shrink": "shrunk"})


def _tell(answer: dict[str, Any], as_json: bool, keys: Mapping[str, str]) -> None:
    refuses = answer.get("action") == "refuse"
    if as_json:
        print_json(answer)
        if refuses:
            raise click.exceptions.Exit(EX_TEMPFAIL)
        return
    if refuses:
        _refuse(answer)
    click.echo(words(keys.get(str(answer.get("action")), "none"), answer))
