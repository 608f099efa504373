"""Voices taken over from the model's `spk2info.pt`: listed and spoken, never changed. Imports no torch.

`pipeline.engines.cosyvoice3.saved_voices` writes what is read here, when the model is loaded or prepared. The
list is looked up at each request, so it is kept while its file is the same.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.model_files import ENGINE, SAVED_INDEX
from pipeline.paths import StatePaths
from pipeline.voices.catalogue import Voice

SAVED_ID = re.compile(r"saved-[0-9a-f]{12}")


def saved_folder(paths: StatePaths) -> Path:
    """Where the converted weights of the engine lie."""
    return paths.root / "cache" / ENGINE


def saved_voices(paths: StatePaths) -> tuple[Voice, ...]:
    """The voices of spk2info.pt, in its order; none where there is no such file."""
    return tuple(
        Voice(entry["id"], entry["name"], ENGINE, (), builtin=False, transcript=bool(entry["transcript"]))
        for entry in _entries(paths)
    )


def find_saved(paths: StatePaths, voice_id: str) -> dict[str, Any] | None:
    """`id`, `name`, `transcript`, `content_hash` of one, or None."""
    return next((entry for entry in _entries(paths) if entry["id"] == voice_id), None)


def _entries(paths: StatePaths) -> tuple[dict[str, Any], ...]:
    index = saved_folder(paths) / SAVED_INDEX
    try:
        stat = index.stat()
    except OSError:
        return ()
    return _read(str(index), stat.st_mtime_ns, stat.st_ino, stat.st_size)


@lru_cache(maxsize=4)
def _read(path: str, *_: int) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(Path(path).read_text("utf-8"))["voices"]
        return tuple(
            {key: str(entry[key]) for key in ("id", "name", "transcript", "content_hash")}
            for entry in found
            if SAVED_ID.fullmatch(str(entry["id"]))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()
