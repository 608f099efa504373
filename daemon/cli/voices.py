"""`cosyd voices`: which voices there are; and the list itself, for `cosyd say`."""

from __future__ import annotations

import dataclasses

import click

from daemon.cli.frame import Command, json_option, note, print_json, state_option
from daemon.cli.layers import current_config
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import connect
from pipeline.voices.catalogue import Voice, has_espeak, ready_made


def all_voices(paths: StatePaths, config: Config) -> list[Voice]:
    """Ready-made voices, and the cloned ones where there is a database."""
    voices = list(ready_made(config.engines.extra))
    if not paths.database.exists():
        return voices
    conn = connect(paths.database, "read", busy_s=5.0)
    try:
        rows = conn.execute(
            "SELECT id, name, owner, engine, language FROM voices"
            " WHERE deleted_at IS NULL ORDER BY created_at"
        )
        voices += [
            Voice(
                id=row["id"],
                name=row["name"],
                engine=row["engine"],
                languages=(row["language"],) if row["language"] else (),
                owner=row["owner"] or "",
                builtin=False,
            )
            for row in rows
        ]
    finally:
        conn.close()
    return voices


@click.command(cls=Command, help_key="help_voices", example="cosyd voices")
@state_option
@json_option
def voices(paths: StatePaths, as_json: bool) -> None:
    """List the voices."""
    found = all_voices(paths, current_config(paths))
    if as_json:
        print_json([dataclasses.asdict(voice) for voice in found])
        return
    from daemon.cli.tables import print_table

    print_table(
        ["col_voice", "col_name", "col_engine", "col_languages"],
        [(v.id, v.name, v.engine, " ".join(v.languages)) for v in found],
    )
    if not has_espeak():
        note("voices_no_espeak")
