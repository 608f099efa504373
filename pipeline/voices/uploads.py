"""What was uploaded to be looked at, kept for a day so that a part of it can be chosen. Imports no engine.

`<state>/uploads/ID/` holds the decoded recording (two minutes at most, mono) and what is known of its file;
the file itself is gone once it is read. The maintenance child removes it after `KEPT_S`; at most `MOST` are
kept, the oldest go first.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from pipeline.audio.files import disk_errors
from pipeline.audio.mixdown import RATE
from pipeline.audio.recording import Recording
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.voices.registry import write_clip

KEPT_S = 86_400.0
MOST = 40
"""6 MB each at most."""
_ID = re.compile(r"u-[0-9a-f]{24}")


def keep_upload(paths: StatePaths, recording: Recording, now: float) -> str:
    """Keep a recording; its id, which cannot be guessed. Raises CosydError(storage_full)."""
    upload_id = f"u-{secrets.token_hex(12)}"
    folder = paths.uploads / upload_id
    facts = dataclasses.asdict(dataclasses.replace(recording, audio=recording.audio[:0])) | {"kept_at": now}
    del facts["audio"]
    try:
        with disk_errors():
            paths.uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        peak = float(abs(recording.audio).max(initial=0.0))
        write_clip(folder / "recording.flac", recording.audio / max(1.0, peak), RATE)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for _, old in sorted((_kept_at(entry), entry) for entry in _folders(paths))[:-MOST]:
        shutil.rmtree(old, ignore_errors=True)
    return upload_id


def upload_audio(paths: StatePaths, upload_id: str) -> Path:
    """Its recording as FLAC. Raises CosydError(not_found)."""
    file = paths.uploads / upload_id / "recording.flac"
    if not _ID.fullmatch(upload_id) or not file.is_file():
        raise CosydError("not_found")
    return file


def load_upload(paths: StatePaths, upload_id: str) -> Recording:
    """The recording again. Raises CosydError: `not_found`, `bad_audio(changed)`."""
    import soundfile

    file = upload_audio(paths, upload_id)
    try:
        facts = json.loads((file.parent / "facts.json").read_text("utf-8"))
        audio, rate = soundfile.read(file, dtype="float32")
        known: dict[str, Any] = {
            f.name: facts[f.name] for f in dataclasses.fields(Recording) if f.name != "audio"
        }
        if rate != RATE or audio.ndim != 1:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, soundfile.LibsndfileError) as error:
        raise CosydError("bad_audio", reason="changed") from error
    return Recording(audio=audio, **known)


def remove_upload(paths: StatePaths, upload_id: str) -> bool:
    """Delete it before its day is over; False when there is none."""
    if not _ID.fullmatch(upload_id) or not (paths.uploads / upload_id).is_dir():
        return False
    shutil.rmtree(paths.uploads / upload_id, ignore_errors=True)
    return True


def sweep_uploads(paths: StatePaths, now: float) -> int:
    """Remove those whose day is over; how many went. A clock that was set back keeps nothing for longer than
    another day."""
    gone = 0
    for folder in _folders(paths):
        if abs(now - _kept_at(folder)) >= KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)
            gone += 1
    return gone


def _folders(paths: StatePaths) -> list[Path]:
    if not paths.uploads.is_dir():
        return []
    return [e for e in paths.uploads.iterdir() if _ID.fullmatch(e.name) and e.is_dir() and not e.is_symlink()]


def _kept_at(folder: Path) -> float:
    """By its facts, else by the folder: it may be half written."""
    try:
        return float(json.loads((folder / "facts.json").read_text("utf-8"))["kept_at"])
    except (OSError, ValueError, KeyError, TypeError):
        try:
            return folder.stat().st_mtime
        except OSError:
            return float("inf")
