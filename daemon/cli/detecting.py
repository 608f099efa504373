"""`cosyd admin profile detect`: which hardware class suits this machine, why, which torch, and every fact."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import click

from daemon.cli.frame import language, text
from daemon.hardware.driver import DriverAdvice
from daemon.hardware.facts import Facts
from daemon.hardware.fit import Fit
from pipeline.messages import render, size_text


def to_params(facts: Facts, found: Fit, advice: DriverAdvice) -> dict[str, Any]:
    """The JSON form. `profile` is what suits; `configured` what a person chose, if anything."""
    cards = [
        {"name": gpu.name, "total_bytes": gpu.total_bytes, "uuid": gpu.uuid, "free_bytes": gpu.free_bytes}
        for gpu in facts.gpus
    ]
    values = facts.to_params()
    return {
        "profile": found.suited,
        "reason": found.reason,
        "text": reason_text(found),
        "configured": found.configured,
        "origin": found.origin,
        "cards": cards,
        "error": facts.driver.error,
        "torch": {**found.torch.to_params(), "text": torch_text(found)},
        "driver": {**advice.to_params(), "text": driver_text(advice)},
        "facts": {name: {"value": values[name], "source": source(facts, name)} for name in values},
    }


def source(facts: Facts, name: str) -> str | None:
    """Where a fact came from; None when it is not known."""
    return facts.sources.get(name)


def reason_text(found: Fit) -> str:
    """Why this class suits."""
    return render(f"fit.{found.reason}", language(), found.params)


def torch_text(found: Fit) -> str:
    """Why this torch."""
    return render(f"torch.{found.torch.reason}", language(), found.torch.params)


def driver_text(advice: DriverAdvice) -> str:
    """What to do about the driver."""
    return render(f"driver.{advice.reason}", language(), advice.params)


def ability_text(profile: str) -> str:
    """What a class can do, in plain words."""
    return render(f"fit.ability_{profile.replace('-', '_')}", language())


def lines(found: Fit, advice: DriverAdvice) -> Iterator[str]:
    """What is told beside the name of the class."""
    yield reason_text(found)
    if found.overridden:
        params = {"profile": found.configured, "origin": found.origin, "suited": found.suited}
        yield render("fit.configured", language(), params)
    yield ability_text(found.profile)
    yield torch_text(found)
    if found.torch.requirement is not None:
        yield f"    {found.torch.pip_command}"
    if advice.action not in ("none", "keep"):
        yield driver_text(advice)


def rows(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Every fact, its value and its source."""
    for field in dataclasses.fields(facts):
        if field.name != "sources":
            shown = _shown(field.name, getattr(facts, field.name))
            yield field.name, shown, facts.sources.get(field.name, "")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return text("unknown")
    if name.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, tuple):
        return ", ".join(_shown("", item) for item in value) or "-"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        known = {key: item for key, item in dataclasses.asdict(value).items() if item not in (None, "", ())}
        return json.dumps(known, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value)


def show(facts: Facts, found: Fit, advice: DriverAdvice, *, everything: bool) -> None:
    """For people: the class alone on stdout, so that a script can take it; the rest on stderr, but for the
    table of facts, which was asked for."""
    click.echo(found.suited)
    for line in lines(found, advice):
        click.echo(line, err=True)
    if everything:
        from daemon.cli.tables import print_table

        print_table(["col_fact", "col_value", "col_source"], rows(facts))
