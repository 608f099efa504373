"""The user's pronunciation dictionary in the database: add, list, remove, and what a job speaks by.

`kind` says what the replacement is: `markup` has tokens such as `[h][ào]`, `text` is other words. A pattern
(whatever its case) has one entry in a language; adding it again replaces it. Applied by
`pipeline.text.dictionary`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from pipeline.codes import CosydError
from pipeline.jobs import clean_text, has_words
from pipeline.store.db import write_transaction
from pipeline.text.dictionary import Entry
from pipeline.text.language import primary
from pipeline.text.markup import check_markup, find_marks

MAX_ENTRIES = 2000
"""More would make the one expression that finds them slow."""
MAX_PATTERN, MAX_REPLACEMENT = 60, 200


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """A row. `language` "" is every language."""

    id: int
    pattern: str
    replacement: str
    kind: str
    language: str


def parse_entry(pattern: object, replacement: object, language: object = "") -> Entry:
    """A checked entry. Raises CosydError(bad_value) with the field and the reason."""
    words: dict[str, str] = {}
    for name, value, most in (
        ("pattern", pattern, MAX_PATTERN),
        ("replacement", replacement, MAX_REPLACEMENT),
    ):
        if not isinstance(value, str) or not has_words(cleaned := " ".join(clean_text(value).split())):
            raise CosydError("bad_value", field=name, reason="not_text")
        if len(cleaned) > most:
            raise CosydError(
                "bad_value", field=name, reason="out_of_range", value=len(cleaned), low=1, high=most
            )
        words[name] = cleaned
    tag = primary(language) if isinstance(language, str) else "?"
    if tag and not (tag.isascii() and tag.isalpha() and len(tag) in (2, 3)):
        raise CosydError("bad_value", field="language", reason="not_a_language", value=str(language)[:80])
    check_markup(words["replacement"])
    return Entry(words["pattern"], words["replacement"], tag)


def add_entry(conn: sqlite3.Connection, entry: Entry) -> Pronunciation:
    """Store `entry`; one with the same pattern and language is replaced. Raises `bad_value` when full."""
    kind = "markup" if find_marks(entry.replacement) else "text"
    with write_transaction(conn):
        old = [
            row["id"]
            for row in conn.execute(
                "SELECT id, pattern FROM pronunciations WHERE language=?", (entry.language,)
            )
            if row["pattern"].casefold() == entry.pattern.casefold()
        ]
        conn.executemany("DELETE FROM pronunciations WHERE id=?", [(id_,) for id_ in old])
        count = conn.execute("SELECT count(*) FROM pronunciations").fetchone()[0]
        if count >= MAX_ENTRIES:
            raise CosydError(
                "bad_value", field="pattern", reason="out_of_range", value=count + 1, low=0, high=MAX_ENTRIES
            )
        row = conn.execute(
            "INSERT INTO pronunciations (pattern, replacement, kind, language) VALUES (?, ?, ?, ?)"
            " RETURNING *",
            (entry.pattern, entry.replacement, kind, entry.language),
        ).fetchone()
    return _row(row)


def _row(row: Any) -> Pronunciation:
    return Pronunciation(
        row["id"], row["pattern"], row["replacement"], row["kind"] or "text", row["language"] or ""
    )


def list_entries(conn: sqlite3.Connection) -> list[Pronunciation]:
    """All, by pattern."""
    rows = conn.execute("SELECT * FROM pronunciations ORDER BY pattern COLLATE NOCASE, language, id")
    return [_row(row) for row in rows]


def remove_entry(conn: sqlite3.Connection, id_: int) -> bool:
    """False when there was none."""
    with write_transaction(conn):
        return conn.execute("DELETE FROM pronunciations WHERE id=?", (id_,)).rowcount > 0


def remove_pattern(conn: sqlite3.Connection, pattern: str) -> int:
    """Remove the entries of a pattern in all languages; how many there were."""
    wanted = " ".join(clean_text(pattern).split()).casefold()
    found = [entry.id for entry in list_entries(conn) if entry.pattern.casefold() == wanted]
    return sum(remove_entry(conn, id_) for id_ in found)


def dictionary(conn: sqlite3.Connection) -> tuple[Entry, ...]:
    """What `pipeline.text` speaks by, in a fixed order."""
    return tuple(Entry(e.pattern, e.replacement, e.language) for e in list_entries(conn))
