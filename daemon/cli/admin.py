"""`cosyd admin profile`: which hardware class this machine is, and what the configuration comes to."""

from __future__ import annotations

import json
from pathlib import Path

import click

from daemon.cli import detecting, explaining, hardware
from daemon.cli.doctor import chosen_class, machine
from daemon.cli.frame import Group, Option, json_option, language, note, print_json, state_option, text, unfit
from daemon.cli.layers import config_file, read_layer, resolve_all
from daemon.cli.policy import policy
from daemon.cli.swap import swap
from daemon.hardware.driver import advise
from daemon.hardware.fit import fit
from daemon.ram_reader import RamReader
from pipeline.codes import CosydError
from pipeline.messages import problem_text
from pipeline.paths import StatePaths
from pipeline.planning.processor import fast_bf16
from pipeline.profile import PROFILES, Layer, Resolved, to_json
from pipeline.profile.load import flatten, resolve
from pipeline.profile.problems import BadValue
from pipeline.profile.values import parse_size


@click.group(cls=Group, help_key="help_admin", example="cosyd admin profile show")
def admin() -> None:
    """For who looks after the machine."""


admin.add_command(swap)
admin.add_command(policy)


@admin.group("profile", cls=Group, help_key="help_profile", example="cosyd admin profile detect")
def profile() -> None:
    """The hardware class and the configuration."""


@profile.command("detect", help_key="help_profile_detect", example="cosyd admin profile detect")
@click.option("--facts", "everything", cls=Option, is_flag=True, help="opt_facts")
@click.option("--gpu", cls=Option, metavar="UUID", help="opt_gpu")
@state_option
@json_option
def detect(everything: bool, gpu: str | None, paths: StatePaths, as_json: bool) -> None:
    """Say which class suits this machine."""
    try:
        resolved = resolve_all(paths)
        name, card, layer = chosen_class(resolved.config, resolved.origin)
    except CosydError:  # the machine can be looked at whatever the configuration says
        name, card, layer = None, "auto", None
    facts = machine(paths)
    found = fit(facts, gpu=gpu or card, configured=name, origin=layer)
    advice = advise(facts, found.torch)
    if as_json:
        print_json(detecting.to_params(facts, found, advice))
        return
    detecting.show(facts, found, advice, everything=everything)


def shown_values(resolved: Resolved) -> dict[str, dict[str, object]]:
    """Dotted key -> value and the layer it came from."""
    values = flatten(json.loads(to_json(resolved.config)))
    return {key: {"value": values[key], "origin": origin} for key, origin in resolved.origin.items()}


@profile.command("show", help_key="help_profile_show", example="cosyd admin profile show")
@state_option
@json_option
def show(paths: StatePaths, as_json: bool) -> None:
    """Show every value and where it comes from."""
    values = shown_values(resolve_all(paths))
    if as_json:
        print_json(values)
        return
    from daemon.cli.tables import print_table

    def plain(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    print_table(
        ["col_key", "col_value", "col_origin"],
        [(key, plain(entry["value"]), entry["origin"]) for key, entry in values.items()],
    )


@profile.command("check", help_key="help_profile_check", example="cosyd admin profile check cosyd.toml")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@json_option
def check(file: Path | None, as_json: bool) -> None:
    """Look for mistakes in a configuration file."""
    found = config_file(file)
    try:
        if found is not None:
            resolve([read_layer(found)])
    except CosydError as error:
        if not as_json:
            raise
        problems = [{**wrong, "text": problem_text(wrong, language())} for wrong in error.params["problems"]]
        print_json({"file": str(found), "problems": problems})
        raise click.exceptions.Exit(error.info.exit_status) from None
    if as_json:
        print_json({"file": None if found is None else str(found), "problems": []})
    elif found is None:
        note("config_none")
    else:
        click.echo(text("config_good", file=found))


@profile.command(
    "explain", help_key="help_profile_explain", example="cosyd admin profile explain --profile gpu-4g"
)
@click.option("--profile", "name", cls=Option, type=click.Choice(PROFILES), help="opt_profile")
@click.option("--vram", cls=Option, metavar="SIZE", help="opt_plan_vram")
@state_option
@json_option
def explain(name: str | None, vram: str | None, paths: StatePaths, as_json: bool) -> None:
    """Say how much memory the model needs, and what will be chosen."""
    flags = Layer("flags", {"profile": name} if name else {})
    resolved = resolve_all(paths, flags=flags)
    try:
        card = parse_size(vram) if vram else None
    except BadValue as error:
        raise click.BadParameter(unfit(error), param_hint="--vram") from None
    explained = explaining.explain(
        resolved.config, hardware.probe(), RamReader().read(), card, fast_bf16(), resolved.origin
    )
    if as_json:
        print_json(explained.to_params())
        return
    from daemon.cli.tables import print_table

    click.echo(explaining.title(explained))
    click.echo(detecting.ability_text(explained.profile))
    print_table(["col_part", "col_size"], explaining.rows(explained))
    click.echo(explaining.verdict(explained))
    for line in explaining.origins(explained):
        click.echo(line, err=True)
