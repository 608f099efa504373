"""Clips without a voice: what a process left that was killed while it added or removed one. Removed here.

The clip comes before its row, and a removed voice's row goes before its folder, so that a voice that is
listed can always be spoken; a death in between leaves a recording of a person that nobody can see. Called by
the maintenance child with retention.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from pipeline.jobs import VOICE_ID
from pipeline.paths import StatePaths

GRACE_S = 600.0
"""A folder younger than this perhaps only waits for its row."""


def sweep_voices(conn: sqlite3.Connection, paths: StatePaths, now: float, grace_s: float = GRACE_S) -> int:
    """Remove folders of no living voice, and half-written files of living ones; how many went."""
    if not paths.voices.is_dir():
        return 0
    old = [entry for entry in paths.voices.iterdir() if now - _touched(entry) > grace_s]
    # Looked up after the folders: a voice added meanwhile has a young folder.
    alive = {row["id"] for row in conn.execute("SELECT id FROM voices WHERE deleted_at IS NULL")}
    gone = 0
    for folder in old:
        if not VOICE_ID.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue  # not ours
        if folder.name not in alive:
            shutil.rmtree(folder, ignore_errors=True)
            gone += 1
            continue
        for part in folder.glob("*.part"):
            if now - _touched(part) > grace_s:
                part.unlink(missing_ok=True)
                gone += 1
    return gone


def _touched(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return float("inf")
