"""What every command shares: texts in the person's language, options, and the way errors leave.

Imports click but neither rich nor numpy, so that `cosyd run` and `cosyd status` start at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from daemon.cli.complaints import complaint, no_command
from daemon.interrupt import EXIT_INTERRUPTED
from pipeline.codes import EX_SOFTWARE, CosydError
from pipeline.messages import Language, catalogue, error_text, render, terminal_language
from pipeline.paths import StatePaths, default_state_root
from pipeline.profile.problems import BadValue

PACKAGED_ROOT, PACKAGED_RUN = Path("/var/lib/cosyd"), Path("/run/cosyd")

F = TypeVar("F", bound=Callable[..., Any])


def language() -> Language:
    """By COSYD_LANG or the locale, looked up each time."""
    return terminal_language(os.environ)


def text(key: str, **params: Any) -> str:
    """A text of the [cli] section."""
    return render(f"cli.{key}", language(), params)


def note(key: str, **params: Any) -> None:
    """Tell the person something that is not the result: on stderr."""
    click.echo(text(key, **params), err=True)


def print_json(value: Any) -> None:
    """The machine-readable form of a result."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=1))


def report(error: CosydError) -> int:
    """Say on stderr what happened and what to do; returns the exit status of the code."""
    click.echo(error_text(error.code, language(), error.params), err=True)
    if detail := error.params.get("detail"):
        click.echo(f"  {detail}", err=True)
    if error.retry_after_s is not None:
        note("retry_after", seconds=error.retry_after_s)
    return error.info.exit_status


def unfit(error: BadValue) -> str:
    """What is wrong with a value, in the person's language."""
    return render(f"config.{error.what}", language(), error.params)


def usage(key: str, **params: Any) -> NoReturn:
    """End with a usage error (exit status 2)."""
    raise click.UsageError(text(key, **params))


class Option(click.Option):
    """An option whose help is a key of [cli]."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        key = self.help
        if key is not None and f"cli.{key}" in catalogue("en"):
            self.help = text(key)
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = key


class Command(click.Command):
    """A command with a help text in both languages and an example that works as it stands."""

    def __init__(self, *args: Any, example: str = "", help_key: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.help_key = help_key

    def get_short_help_str(self, limit: int = 45) -> str:
        return text(self.help_key) if self.help_key else super().get_short_help_str(limit)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Words too many are refused in the person's language."""
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        rest = super().parse_args(ctx, args)
        ctx.allow_extra_args = allowed
        if rest and not allowed and not ctx.resilient_parsing:
            raise click.UsageError(text("extra_words", words=" ".join(rest)), ctx)
        return rest

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pieces = [_METAVARS.get(piece, piece) for piece in self.collect_usage_pieces(ctx)]
        words = (text(piece) if piece in _METAVARS.values() else piece for piece in pieces)
        formatter.write_usage(ctx.command_path, " ".join(words), prefix=text("usage") + " ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                own = next((key for name, key in _OWN.items() if name in param.opts), "")
                rows.append((record[0], text(own) if own else record[1]))
        if rows:
            with formatter.section(text("options")):
                formatter.write_dl(rows)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.get_short_help_str())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            with formatter.section(text("example")):
                formatter.write_text(self.example)


_OWN = {"--help": "opt_help", "--version": "opt_version"}
"""Options that click adds with its own words."""

_METAVARS = {
    "[OPTIONS]": "meta_options",
    "COMMAND [ARGS]...": "meta_command",
    "[COMMAND] [ARGS]...": "meta_command",
}
"""click's words in the usage line, and our texts for them."""


class Group(Command, click.Group):
    """A group whose errors leave as people's words, never as a traceback."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str()) for name, command in found if command is not None]
        with formatter.section(text("commands")):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(no_command(args[0], known, language()), ctx)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; ends the process with the exit status of what happened.

        A closed stdout (`| head`) ends it quietly with 1; click sees to that.
        """
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except CosydError as error:
            code = report(error)
        except click.exceptions.Exit as error:
            code = error.exit_code
        except click.ClickException as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                click.echo(error.format_message(), err=True)
                sys.exit(error.exit_code)
            click.echo(complaint(error, language()), err=True)
            context = getattr(error, "ctx", None)
            note("see_help", command=context.command_path if context is not None else "cosyd")
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            note("interrupted")
            code = EXIT_INTERRUPTED
        except Exception as error:
            click.echo(error_text("internal", language()), err=True)
            click.echo(f"  {type(error).__name__}: {error}", err=True)
            code = EX_SOFTWARE
        sys.exit(code if isinstance(code, int) else 0)


Group.group_class = Group


@contextmanager
def private_files() -> Iterator[None]:
    """What is made in this block is for its owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def program_version() -> str:
    """The version that is installed; `0+checkout` where nothing is."""
    try:
        return version("cosyd")
    except PackageNotFoundError:
        return "0+checkout"


def state_paths(root: Path | None) -> StatePaths:
    """Paths of the instance a command is about. The packaged service keeps its sockets in /run/cosyd."""
    root = (root or default_state_root()).absolute()
    if root == PACKAGED_ROOT and not os.environ.get("RUNTIME_DIRECTORY"):
        return StatePaths(root, PACKAGED_RUN)
    return StatePaths.at(root)


def state_option(function: F) -> F:
    """`--state DIR`, given to the command as `paths: StatePaths`."""
    return click.option(
        "--state",
        "paths",
        cls=Option,
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        callback=lambda _ctx, _param, value: state_paths(value),
        help="opt_state",
    )(function)


def json_option(function: F) -> F:
    """`--json`, given as `as_json`."""
    return click.option("--json", "as_json", cls=Option, is_flag=True, help="opt_json")(function)
