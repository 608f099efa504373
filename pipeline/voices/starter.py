"""The starter voice: made from the built-in one when the model came, so that there is a voice to speak with.

The model ships no speaker. OpenAI's voice names map to this one while it is there and the model can be used
(`pipeline.voices.catalogue.find_voice`). It is an ordinary voice otherwise: listed, spoken, removed.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from pipeline.audio.files import disk_errors
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.model_child import STARTER, read_child
from pipeline.paths import StatePaths
from pipeline.voices.catalogue import Voice
from pipeline.voices.reference import read_clip
from pipeline.voices.registry import STARTER_SOURCE, Consent, NewVoice, add_voice, cloned_voices

TEXT = (
    "This voice was made by a computer and belongs to nobody. "
    "It is here so that you can hear the model at once."
)
"""Six seconds of speech: enough for a voice, short enough for every profile."""

VOICE, SEED = "heart", 1
MAX_SECONDS = 10.0


def make_clip(out: Path) -> None:
    """Write the reference as wav, by a child. Raises CosydError."""
    read_child([sys.executable, "-m", STARTER, "--out", str(out)])
    if not out.is_file():
        raise CosydError("internal", reason="tool_died", detail="no clip")


def ensure_starter(conn: sqlite3.Connection, paths: StatePaths, name: str, now: float) -> Voice:
    """The starter voice, made when there is none. `name` is what people see. Raises CosydError."""
    for voice in cloned_voices(conn):
        if voice.starter:
            return voice
    with disk_errors():
        paths.tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.tmp) as folder:
        clip = Path(folder) / "starter.wav"
        make_clip(clip)
        found = read_clip(clip, max_seconds=MAX_SECONDS, transcript=TEXT)
    consent = Consent("synthetic", utc_text(now))
    new = NewVoice(name, consent, TEXT, "en", source=STARTER_SOURCE)
    return add_voice(conn, paths, new, found.audio, found.rate, now)
