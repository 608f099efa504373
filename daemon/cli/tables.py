"""Tables, times and words for the terminal. The only module of the CLI that imports rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daemon.cli.frame import text
from pipeline.clock import wall_seconds


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns are keys of [cli]. Cells are shown as they are: no markup is read from people's texts."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        # only free text may be broken into lines; an id or a date in two parts cannot be read
        table.add_column(
            text(column), overflow="fold", no_wrap=column in ("col_id", "col_made", "col_length")
        )
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    Console(highlight=False, emoji=False).print(table)


def day(utc: str | None) -> str:
    """A row's UTC text as local date and minute; empty for None."""
    return f"{datetime.fromtimestamp(wall_seconds(utc)):%Y-%m-%d %H:%M}" if utc else ""


def clock_time(utc: str) -> str:
    """Local date, time of day and seconds."""
    return f"{datetime.fromtimestamp(wall_seconds(utc)):%Y-%m-%d %H:%M:%S}"
