"""A database that comes from elsewhere (a backup to be restored), looked at as if an enemy had made it.

Only what a cosyd itself wrote is taken: one of the released schemas to the letter, so no trigger or view that
would run in our hands; a sound file; ids, times and paths of the form that ours have, since files are found
by them. Read only: the file is not changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.store.schema import SCHEMA_VERSION, VERSIONS

_MIGRATIONS = "_sqlite_migrations"
_OBJECTS = (
    "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
    f"AND tbl_name != '{_MIGRATIONS}'"
)
_HEX16 = "[0-9a-f]" * 16
_TIME = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-*"
_FORMS = (
    f"SELECT 1 FROM jobs WHERE id NOT GLOB '{_HEX16}' OR created_at NOT GLOB '{_TIME}'",
    f"SELECT 1 FROM generations WHERE id NOT GLOB '{_HEX16}' OR job_id != id OR created_at NOT GLOB '{_TIME}'"
    " OR audio_path NOT NULL AND (audio_path NOT GLOB 'outputs/[0-9][0-9][0-9][0-9]-[0-9][0-9]/*.flac'"
    " OR substr(audio_path, 17) != id || '.flac')",
    "SELECT 1 FROM voices WHERE length(id) NOT BETWEEN 1 AND 64 OR id GLOB '*[^a-z0-9_-]*'"
    " OR id GLOB '[_-]*'",
)
"""Rows whose id, time or path could lead out of the state folder; there must be none."""


def expected_objects(version: int) -> dict[str, str | None]:
    """Name and SQL of every table, index and trigger of a released schema, as SQLite keeps them."""
    with closing(sqlite3.connect(":memory:")) as conn:
        for statement in (s for step in VERSIONS[:version] for s in step):
            conn.execute(statement)
        return dict(conn.execute(_OBJECTS))


def objects_of(conn: sqlite3.Connection) -> Mapping[str, str | None]:
    """The same of a database that is there, without the table of the migrations."""
    return dict(conn.execute(_OBJECTS))


def examine_database(path: Path) -> int:
    """The schema version of a database file that may be taken in. Raises CosydError: `schema_mismatch` for a
    newer one, `bad_value` (field FILE, reason backup_database) for anything that is not sound and ours."""
    try:
        # immutable: no log beside it is read or made; a copy that was closed has none.
        uri = path.absolute().as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as conn:
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON"):
                conn.execute(f"PRAGMA {pragma}")
            version = int(conn.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise CosydError("schema_mismatch", found=version, expected=SCHEMA_VERSION)
            if version < 1 or objects_of(conn) != expected_objects(version):
                raise refused("schema")
            if (verdict := [row[0] for row in conn.execute("PRAGMA integrity_check(1)")]) != ["ok"]:
                raise refused(str(verdict[0])[:200])
            if any(conn.execute(query + " LIMIT 1").fetchone() for query in _FORMS):
                raise refused("rows")
    except sqlite3.Error as error:
        raise refused(str(error)) from error
    return version


def refused(detail: str) -> CosydError:
    """The database cannot be taken in."""
    return CosydError("bad_value", field="FILE", reason="backup_database", detail=detail)
