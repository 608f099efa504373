"""The schema as SQL, one tuple of statements for each version (CONTRACTS 2). Data only.

Applied by `pipeline.store.migrations`. A version that was shipped is never edited: append a new one.

Beyond the contract's columns:
- `generations.seq` is an INTEGER PRIMARY KEY, since the search index points at rows by it and VACUUM
  renumbers rowids that have no name. It grows, so it is also the order "newest first" and the page cursor.
- `job_work` has one row for each job that is not over: what the queue must add up in well under a
  millisecond (estimates) and what must survive a worker's death for the generation row (times).
- `generations_fts` holds the search text (see `pipeline.store.cjk`) with a content of its own, not an
  external one: its deletes then need no recomputed text, which a newer Unicode table could get wrong.
"""

from __future__ import annotations

_V1 = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        created_at TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
        engine TEXT NOT NULL,
        lane TEXT NOT NULL CHECK (lane IN ('interactive', 'page', 'batch')),
        source TEXT NOT NULL,
        client TEXT NOT NULL DEFAULT '',
        owner TEXT NOT NULL DEFAULT '',
        priority INTEGER NOT NULL DEFAULT 0,
        request TEXT NOT NULL DEFAULT '',
        attempt INTEGER NOT NULL DEFAULT 1,
        not_before TEXT,
        deadline_at TEXT,
        cancel_requested_at TEXT,
        lease_owner TEXT,
        lease_token TEXT,
        lease_until TEXT,
        wait_reason TEXT,
        updated_at TEXT NOT NULL,
        error_code TEXT,
        error TEXT
    ) STRICT
    """,
    "CREATE INDEX jobs_by_queue ON jobs (engine, state, lane, created_at)",
    """
    CREATE INDEX jobs_active ON jobs (engine, state, created_at, cancel_requested_at)
    WHERE state IN ('queued', 'running')
    """,
    """
    CREATE TABLE segments (
        job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        idx INTEGER NOT NULL,
        start_char INTEGER NOT NULL,
        end_char INTEGER NOT NULL,
        text TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'done')),
        seed INTEGER NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 0,
        samples INTEGER NOT NULL DEFAULT 0,
        error_code TEXT,
        PRIMARY KEY (job_id, idx)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE job_work (
        job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
        engine TEXT NOT NULL,
        lane TEXT NOT NULL,
        chars INTEGER NOT NULL,
        estimate_s REAL NOT NULL,
        spoken_s REAL NOT NULL DEFAULT 0,
        synthesis_s REAL NOT NULL DEFAULT 0,
        claimed_at TEXT,
        first_audio_at TEXT
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE generations (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        job_id TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        finished_at TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('done', 'failed', 'cancelled')),
        text TEXT NOT NULL,
        language TEXT NOT NULL,
        mode TEXT NOT NULL,
        voice TEXT NOT NULL,
        instruct TEXT,
        seed INTEGER NOT NULL,
        speed REAL NOT NULL,
        engine TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        device TEXT NOT NULL DEFAULT '',
        dtype TEXT NOT NULL DEFAULT '',
        profile TEXT NOT NULL DEFAULT '',
        source TEXT NOT NULL,
        client TEXT NOT NULL,
        owner TEXT NOT NULL,
        audio_path TEXT,
        audio_format TEXT,
        audio_seconds REAL,
        queue_seconds REAL,
        first_audio_seconds REAL,
        synthesis_seconds REAL,
        rtf REAL,
        peak_rss_bytes INTEGER,
        peak_vram_bytes INTEGER,
        segments INTEGER NOT NULL DEFAULT 0,
        retries INTEGER NOT NULL DEFAULT 0,
        stand_in INTEGER NOT NULL DEFAULT 0,
        degraded INTEGER NOT NULL DEFAULT 0,
        error_code TEXT,
        error TEXT
    ) STRICT
    """,
    "CREATE INDEX generations_by_engine ON generations (engine, status)",
    "CREATE INDEX generations_by_owner ON generations (owner)",
    "CREATE INDEX generations_with_audio ON generations (finished_at) WHERE audio_path IS NOT NULL",
    """
    CREATE VIRTUAL TABLE generations_fts USING fts5 (
        words, tokenize = "unicode61 remove_diacritics 2", prefix = '1 2 3'
    )
    """,
    """
    CREATE TRIGGER generations_unindexed AFTER DELETE ON generations BEGIN
        DELETE FROM generations_fts WHERE rowid = old.seq;
    END
    """,
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at TEXT NOT NULL,
        kind TEXT NOT NULL,
        level TEXT,
        resource TEXT,
        code TEXT,
        params TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(params)),
        ram_available_bytes INTEGER,
        vram_free_bytes INTEGER,
        freed_bytes INTEGER
    ) STRICT
    """,
    "CREATE INDEX events_by_time ON events (at)",
    """
    CREATE TABLE samples (
        at TEXT NOT NULL,
        ram_available_bytes INTEGER,
        swap_used_bytes INTEGER,
        worker_rss_bytes INTEGER,
        web_rss_bytes INTEGER,
        vram_used_bytes INTEGER,
        gpu_util_ratio REAL,
        gpu_temp_c REAL,
        power_w REAL
    ) STRICT
    """,
    "CREATE INDEX samples_by_time ON samples (at)",
    """
    CREATE TABLE voices (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        engine TEXT NOT NULL,
        created_at TEXT NOT NULL,
        deleted_at TEXT,
        transcript TEXT,
        language TEXT,
        seconds REAL,
        source TEXT,
        content_hash TEXT,
        consent TEXT CHECK (consent IS NULL OR json_valid(consent)),
        exposed_to TEXT,
        tags TEXT
    )
    """,
    """
    CREATE TABLE pronunciations (
        id INTEGER PRIMARY KEY,
        pattern TEXT NOT NULL,
        replacement TEXT NOT NULL,
        kind TEXT,
        language TEXT
    )
    """,
    "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT)",
    """
    CREATE TABLE api_keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        hash TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        last_used_at TEXT,
        revoked_at TEXT
    )
    """,
    """
    CREATE TABLE people (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        password_hash TEXT,
        created_at TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE maintenance (
        name TEXT PRIMARY KEY,
        last_success_at TEXT,
        last_error TEXT
    ) STRICT
    """,
)

VERSIONS: tuple[tuple[str, ...], ...] = (_V1,)
"""`VERSIONS[n - 1]` leads from version n - 1 to version n."""

SCHEMA_VERSION = len(VERSIONS)
"""What `PRAGMA user_version` says in a database of ours."""
