"""A state folder with something of everything, and what two of them have in common."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import queue
from pipeline.access import create_api_key
from pipeline.audio.files import SegmentWriter, remove_segments, write_final_flac
from pipeline.paths import StatePaths
from pipeline.queue import Outcome, Planned
from pipeline.store.db import connect, write_transaction
from pipeline.voices.feature_file import features_bytes, features_path
from pipeline.voices.registry import add_voice, parse_new_voice
from tests.unit.storekit import NOW, new_state, submit

RATE = 24_000
TABLES = (
    "jobs", "segments", "job_work", "generations", "voices", "pronunciations", "settings", "api_keys",
    "people",
)  # fmt: skip


def tone(seconds: float = 2.0, hertz: float = 220.0) -> Any:
    """A clip."""
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def arrays(tokens: int = 50) -> dict[str, Any]:
    """Features of a voice, in shape."""
    draw = np.random.default_rng(5)
    return {
        "speech_tokens": draw.integers(0, 6561, tokens).astype(np.int32),
        "prompt_mel": draw.normal(size=(2 * tokens, 80)).astype(np.float32),
        "speaker": draw.normal(size=192).astype(np.float32),
    }


def new_voice(conn: sqlite3.Connection, paths: StatePaths, name: str, hertz: float = 220.0) -> str:
    """A voice that has spoken: its features are kept."""
    fields = {"name": name, "consent": "agreed", "person": "Anna B.", "transcript": "Guten Tag."}
    made = add_voice(conn, paths, parse_new_voice(fields, NOW), tone(hertz=hertz), RATE, NOW)
    (digest,) = conn.execute("SELECT content_hash FROM voices WHERE id = ?", (made.id,)).fetchone()
    features_path(paths, made.id, made.engine).write_bytes(features_bytes(arrays(), digest))
    return made.id


def recording(conn: sqlite3.Connection, paths: StatePaths, text: str) -> str:
    """A finished recording with its sound."""
    job = submit(conn, text)
    claim = queue.claim(conn, job, "w1", NOW, 15.0)
    assert claim is not None
    queue.plan_segments(conn, job, claim.token, [Planned(0, text, 0, len(text))], seed=1)
    folder = paths.job_dir(claim.job.created_at, job)
    with SegmentWriter(folder, 0) as writer:
        writer.append(tone(0.5))
        writer.finish()
    final = paths.final_audio(claim.job.created_at, job)
    write_final_flac(folder, final, 1)
    remove_segments(folder)
    outcome = Outcome("done", audio_path=str(final.relative_to(paths.root)))
    assert queue.end_job(conn, job, outcome, NOW + 1, token=claim.token)
    return job


def filled(root: Path, name: str = "Großmutter 外婆") -> StatePaths:
    """Two voices, two recordings, a waiting text, a key, a setting, a person."""
    paths = new_state(root)
    with closing(connect(paths.database)) as conn:
        conn.execute("PRAGMA synchronous = OFF")
        new_voice(conn, paths, name)
        new_voice(conn, paths, "Second", 330.0)
        recording(conn, paths, "今天天气很好。")
        recording(conn, paths, "A second recording.")
        submit(conn, "This one still waits.")
        create_api_key(conn, "Open WebUI", NOW)
        with write_transaction(conn):
            conn.execute("INSERT INTO settings VALUES ('keep_alive', '5 min')")
            conn.execute("INSERT INTO people VALUES ('p1', 'Ada', 'owner', NULL, 'x')")
    return paths


def rows(paths: StatePaths) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that a person would miss."""
    with closing(connect(paths.database)) as conn:
        return {
            table: sorted(map(tuple, conn.execute(f"SELECT * FROM {table}")), key=repr) for table in TABLES
        }


def files(root: Path) -> dict[str, str]:
    """Voices, recordings and database below a state folder, each with its checksum. Locks, logs and what is
    kept for the way back are left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and name.split("/")[0] in ("cosyd.db", "voices", "outputs"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rewritten(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A backup with other members, its manifest made right again unless `change` took it away: what somebody
    would make who knows the form."""
    import zipfile

    with zipfile.ZipFile(source) as made:
        members = {name: made.read(name) for name in made.namelist()}
    change(members)
    if "manifest.json" in members:
        about = json.loads(members["manifest.json"])
        about["files"] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
            if name != "manifest.json"
        }
        members["manifest.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(target, "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    return target
