"""The numbered migrations, run by sqlite-utils. Imported by the migrate child alone.

`import sqlite_utils` costs 50 MB where pandas is installed, so nobody else may import this module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from sqlite_utils import Database, Migrations

from pipeline.store.schema import VERSIONS


def _migration(version: int, statements: tuple[str, ...]) -> Callable[[Database], None]:
    def apply(db: Database) -> None:
        for statement in statements:
            db.execute(statement)
        # In the same transaction as the tables: the number and the schema cannot disagree.
        db.execute(f"PRAGMA user_version={version:d}")

    return apply


def build(versions: tuple[tuple[str, ...], ...] = VERSIONS) -> Migrations:
    """The migration set for `versions`, named v0001, v0002, ..."""
    migrations = Migrations("cosyd")
    for version, statements in enumerate(versions, start=1):
        migrations(name=f"v{version:04d}")(_migration(version, statements))
    return migrations


def apply(conn: sqlite3.Connection, versions: tuple[tuple[str, ...], ...] = VERSIONS) -> None:
    """Bring the database to the last of `versions`, each step in a transaction of its own."""
    build(versions).apply(Database(conn, execute_plugins=False))
