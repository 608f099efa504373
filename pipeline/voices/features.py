"""The voice of a job for its engine: a ready-made id, or features from disk, else enrolled now.

Only the worker comes here. A voice is encoded once in its life: `features-ENGINE.safetensors` beside the clip
holds the arrays and the hash of the clip they came from; with another hash they are made again.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from pathlib import Path

from pipeline.audio.files import write_whole
from pipeline.codes import CosydError
from pipeline.engines.base import Engine, VoiceFeatures
from pipeline.paths import StatePaths
from pipeline.voices.catalogue import ready_made
from pipeline.voices.feature_file import HASH_KEY, features_path
from pipeline.voices.registry import clip_path
from pipeline.voices.saved import find_saved, saved_folder

log = logging.getLogger(__name__)


def find_row(conn: sqlite3.Connection, voice_id: str) -> sqlite3.Row | None:
    """The row of a cloned voice, deleted ones included."""
    row: sqlite3.Row | None = conn.execute(
        "SELECT id, transcript, content_hash, deleted_at FROM voices WHERE id = ?", (voice_id,)
    ).fetchone()
    return row


def voice_for(
    engine: Engine, paths: StatePaths, voice_id: str, row: sqlite3.Row | None
) -> VoiceFeatures | str:
    """What `synthesize` is given. Raises CosydError: `unknown_voice` for a deleted one, `bad_audio`, and what
    the engine raises."""
    if row is None:
        return _saved(paths, voice_id) or voice_id
    if row["deleted_at"] is not None:
        known = ", ".join(voice.id for voice in ready_made({}))
        raise CosydError("unknown_voice", voice=voice_id, known=known, nearest="")
    path = features_path(paths, voice_id, engine.name)
    kept = _load(path, row["content_hash"], row["transcript"])
    if kept is not None:
        return kept
    from safetensors.numpy import save

    enrolled = _enrol(engine, clip_path(paths, voice_id), row["content_hash"], row["transcript"])
    try:
        write_whole(path, save(dict(enrolled.arrays), {HASH_KEY: enrolled.content_hash}))
    except CosydError as error:
        log.warning("the features of a voice are not kept: %s", error.code)
    return enrolled


def _saved(paths: StatePaths, voice_id: str) -> VoiceFeatures | None:
    """A voice of the model's own spk2info.pt, or None."""
    entry = find_saved(paths, voice_id)
    if entry is None:
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(saved_folder(paths) / f"{voice_id}.safetensors")
    except (OSError, SafetensorError) as error:
        raise CosydError("bad_audio", reason="changed") from error
    return VoiceFeatures(arrays, entry["content_hash"], entry["transcript"] or None)


def _enrol(engine: Engine, clip: Path, content_hash: str, transcript: str | None) -> VoiceFeatures:
    import soundfile

    try:
        if hashlib.sha256(clip.read_bytes()).hexdigest() != content_hash:
            raise CosydError("bad_audio", reason="changed")
        audio, rate = soundfile.read(clip, dtype="float32")
    except (OSError, soundfile.LibsndfileError) as error:
        raise CosydError("bad_audio", reason="unreadable") from error
    made = engine.enrol(audio, rate, transcript)
    return VoiceFeatures(made.arrays, content_hash, transcript)


def _load(path: Path, content_hash: str, transcript: str | None) -> VoiceFeatures | None:
    """The kept features, or None when there are none of this clip."""
    if not path.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            if (file.metadata() or {}).get(HASH_KEY) != content_hash:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        log.warning("kept features of a voice cannot be read; they are made again")
        return None
    return VoiceFeatures(arrays, content_hash, transcript)
