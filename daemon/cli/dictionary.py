"""`cosyd dictionary`: how words are pronounced here: add, list, remove."""

from __future__ import annotations

import dataclasses

import click

from daemon.cli.frame import Group, Option, json_option, note, print_json, state_option
from daemon.cli.keys import open_database
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.pronunciations import Pronunciation, add_entry, list_entries, parse_entry, remove_pattern


@click.group(cls=Group, help_key="help_dictionary", example="cosyd dictionary list")
def dictionary() -> None:
    """How words are pronounced."""


@dictionary.command("add", help_key="help_dictionary_add", example='cosyd dictionary add SQL "sequel"')
@click.argument("pattern", metavar="WORD")
@click.argument("replacement", metavar="SPOKEN")
@click.option("--language", "tag", cls=Option, metavar="TAG", default="", help="opt_dictionary_language")
@state_option
@json_option
def add(pattern: str, replacement: str, tag: str, paths: StatePaths, as_json: bool) -> None:
    """Speak a word in another way from now on."""
    entry = parse_entry(pattern, replacement, tag)
    with open_database(paths) as conn:
        added = add_entry(conn, entry)
    if as_json:
        print_json(dataclasses.asdict(added))
    else:
        note("dictionary_added", word=added.pattern, spoken=added.replacement)


@dictionary.command("list", help_key="help_dictionary_list", example="cosyd dictionary list --json")
@state_option
@json_option
def list_(paths: StatePaths, as_json: bool) -> None:
    """Show all words."""
    from pipeline.store.db import check_schema, connect

    found: list[Pronunciation] = []
    if paths.database.exists():
        conn = connect(paths.database, "read", busy_s=5.0)
        try:
            check_schema(conn)
            found = list_entries(conn)
        finally:
            conn.close()
    if as_json:
        print_json([dataclasses.asdict(entry) for entry in found])
    elif not found:
        note("dictionary_empty")
    else:
        from daemon.cli.tables import print_table

        print_table(
            ["col_word", "col_spoken", "col_languages"],
            [(e.pattern, e.replacement, e.language) for e in found],
        )


@dictionary.command("remove", help_key="help_dictionary_remove", example="cosyd dictionary remove SQL")
@click.argument("pattern", metavar="WORD")
@state_option
def remove(pattern: str, paths: StatePaths) -> None:
    """Forget a word."""
    with open_database(paths) as conn:
        if not remove_pattern(conn, pattern):
            raise CosydError("not_found")
    note("dictionary_removed", word=pattern)
