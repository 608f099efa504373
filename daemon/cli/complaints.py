"""What click finds wrong with a command line: in the person's language, with what would have been right."""

from __future__ import annotations

import difflib
import re

import click

from pipeline.messages import Language, render


def complaint(error: click.ClickException, language: Language) -> str:
    """The sentence for a refused command line; click's own words where it is none of the usual troubles."""

    def text(key: str, **params: object) -> str:
        return render(f"cli.{key}", language, params)

    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.5)
        return text("no_option", name=error.option_name, near=_near(near, language))
    if isinstance(error, click.MissingParameter):
        return text("missing", name=_name(error), wanted=_wanted(error, language)).strip()
    if isinstance(error, click.BadParameter) and error.param is not None:
        # click keeps the value only inside its sentences: 'abc' is not one of ..., 0 is not in the range ...
        value = re.match(
            r"'(?P<text>.*?)' is not |(?P<number>\S+) is not in the range", error.message, re.DOTALL
        )
        wanted = _wanted(error, language)
        if value is None or not wanted:
            return text("not_right_because", name=_name(error), reason=error.message)
        return text("not_right", name=_name(error), value=value["text"] or value["number"], wanted=wanted)
    return error.format_message()


def no_command(name: str, known: list[str], language: Language) -> str:
    """There is no such command; the nearest one is named."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return render("cli.no_command", language, {"name": name, "near": _near(near, language)})


def _near(found: list[str], language: Language) -> str:
    return render("cli.did_you_mean", language, {"near": found[0]}) if found else ""


def _name(error: click.BadParameter) -> str:
    """`--limit` or `TEXT`, as it is written in the help."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.make_metavar(error.ctx).strip("[]{}.") if param is not None and error.ctx else "?"


def _wanted(error: click.BadParameter, language: Language) -> str:
    """What would be taken; "" where the name says it all."""
    kind = error.param.type if error.param is not None else None
    if isinstance(kind, click.Choice):
        listed = render("cli.separator", language).join(str(choice) for choice in kind.choices)
        return render("cli.wanted_choice", language, {"choices": listed})
    if isinstance(kind, click.IntRange) and kind.min is not None and kind.max is not None:
        return render("cli.wanted_range", language, {"low": kind.min, "high": kind.max})
    if kind in (click.INT, click.FLOAT):
        return render("cli.wanted_number", language)
    return ""
