"""What can be asked of a voice here: modes by engine, by what is known of the voice, and why not. Pure.

Page and API grey out by this before an engine was ever loaded; once it is, what it says itself counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.jobs import MODES
from pipeline.model_files import ENGINE
from pipeline.voices.catalogue import Voice

CLONED_MODES = ("zero_shot", "cross_lingual", "instruct", "convert")
"""What CosyVoice 3 offers before it says so itself."""


def engine_modes(state: Mapping[str, Any], engine: str) -> frozenset[str]:
    """Modes of an engine: from its `ready` in the supervisor's state, else what is known of it."""
    entry = (state.get("engines") or {}).get(engine) or {}
    said = (entry.get("capabilities") or {}).get("modes")
    if isinstance(said, list) and said:
        return frozenset(mode for mode in said if mode in MODES)
    return frozenset(CLONED_MODES if engine == ENGINE else ("builtin",))


def voice_modes(voice: Voice, state: Mapping[str, Any], *, cloning: bool) -> tuple[str, ...]:
    """The modes `voice` can be spoken in, in the order of MODES. `cloning`: torch and model are here."""
    if voice.builtin:
        return ("builtin",)
    if not cloning:
        return ()
    offered = engine_modes(state, voice.engine)
    if not voice.transcript:
        offered -= {"zero_shot"}
    return tuple(mode for mode in CLONED_MODES if mode in offered)
