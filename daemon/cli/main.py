"""The `cosyd` command: its groups and where each command lives. Started by `daemon.cli.entry`."""

from __future__ import annotations

import importlib

import click

from daemon.cli.frame import Group, program_version, text
from daemon.interrupt import EXIT_INTERRUPTED
from pipeline.codes import EX_CONFIG, EX_SOFTWARE, EX_TEMPFAIL, EX_USAGE

COMMANDS = {
    "run": "daemon.cli.run:run",
    "say": "daemon.cli.say:say",
    "convert": "daemon.cli.convert:convert",
    "status": "daemon.cli.status:status",
    "why": "daemon.cli.why:why",
    "history": "daemon.cli.history:history",
    "voices": "daemon.cli.voices:voices",
    "dictionary": "daemon.cli.dictionary:dictionary",
    "model": "daemon.cli.model:model",
    "doctor": "daemon.cli.doctor:doctor",
    "backup": "daemon.cli.backup:backup",
    "restore": "daemon.cli.restore:restore",
    "update": "daemon.cli.update:update",
    "restart": "daemon.cli.restart:restart",
    "login-link": "daemon.cli.keys:login_link",
    "key": "daemon.cli.keys:key",
    "support-bundle": "daemon.cli.support_bundle:support_bundle",
    "admin": "daemon.cli.admin:admin",
}
"""Name -> where it lives, in the order of the help. Loaded when used: `cosyd run` needs no rich."""


class LazyGroup(Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section(text("exit_statuses")):
            formatter.write_dl([(str(status), text(f"exit_{status}")) for status in EXIT_STATUSES])


EXIT_STATUSES = (0, 1, EX_USAGE, EX_SOFTWARE, EX_TEMPFAIL, EX_CONFIG, EXIT_INTERRUPTED)
"""All that a command ends with; docs/command-line.md says the same."""


@click.command(
    cls=LazyGroup,
    help_key="help_cosyd",
    example='cosyd say "Good evening."',
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(program_version(), "--version", prog_name="cosyd")
def main() -> None:
    """Speech from your own machine."""


if __name__ == "__main__":
    main()
