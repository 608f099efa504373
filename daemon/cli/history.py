"""`cosyd history`: what was spoken, newest first, searched in any script. Reads only the database."""

from __future__ import annotations

import dataclasses

import click

from daemon.cli.frame import Command, Option, json_option, language, note, print_json, state_option
from pipeline.codes import CosydError
from pipeline.messages import time_text, word
from pipeline.paths import StatePaths

READ_S = 5.0
SHOWN_CHARS = 60


def _subtitles(paths: StatePaths, generation_id: str, format: str) -> None:
    from pipeline.store.db import check_schema, connect
    from pipeline.subtitles import subtitles

    if not paths.database.exists():
        raise CosydError("not_found")
    conn = connect(paths.database, "read", busy_s=READ_S)
    try:
        check_schema(conn)
        click.echo(subtitles(conn, generation_id, format), nl=False)
    finally:
        conn.close()


def shorten(spoken: str) -> str:
    """One line of a table: line breaks become blanks, the end is cut."""
    line = " ".join(spoken.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


@click.command(cls=Command, help_key="help_history", example="cosyd history weather --limit 5")
@click.argument("query", default="")
@click.option("--srt", cls=Option, metavar="ID", help="opt_srt")
@click.option("--vtt", cls=Option, metavar="ID", help="opt_vtt")
@click.option("--limit", cls=Option, type=click.IntRange(1, 1000), default=20, help="opt_limit")
@state_option
@json_option
def history(
    query: str, srt: str | None, vtt: str | None, limit: int, paths: StatePaths, as_json: bool
) -> None:
    """List recordings, all or those with these words; or print the subtitles of one."""
    if srt is not None or vtt is not None:
        _subtitles(paths, srt or vtt or "", "srt" if srt is not None else "vtt")
        return
    from pipeline.history import search
    from pipeline.store.db import check_schema, connect

    found = []
    if paths.database.exists():
        conn = connect(paths.database, "read", busy_s=READ_S)
        try:
            check_schema(conn)
            found = search(conn, query, limit=limit)
        finally:
            conn.close()
    if as_json:
        print_json([dataclasses.asdict(generation) for generation in found])
    elif not found:
        note("history_nothing" if query else "history_empty")
    else:
        from daemon.cli.tables import day, print_table

        lang = language()
        print_table(
            ["col_made", "col_voice", "col_length", "col_text", "col_id"],
            [
                (
                    day(g.created_at),
                    g.voice,
                    # a length is only there when it went well; else the reason why there is none
                    time_text(g.audio_seconds or 0.0, lang)
                    if g.status == "done"
                    else word("state.job", g.status, lang),
                    shorten(g.text),
                    g.id,
                )
                for g in found
            ],
        )
