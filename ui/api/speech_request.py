"""OpenAI's speech request to ours: pure translation. Unknown fields pass, wrong ones are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.codes import CosydError
from pipeline.jobs import FORMATS

MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Listed models. Any model name is taken: many clients cannot change theirs, and the voice decides."""


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """`fields` go to `Desk.check`; `sse` is whether the audio is wanted as server-sent events."""

    fields: Mapping[str, Any]
    format: str
    sse: bool


def _text(body: Mapping[str, Any], name: str, default: str) -> str:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise CosydError("bad_value", field=name, reason="not_text")
    return value


def translate(body: Mapping[str, Any]) -> SpeechRequest:
    """Raises CosydError: `bad_value(field)`, `unknown_format`, `empty_text`; the rest is checked by the desk.

    `instructions` become the style; the desk drops them for a voice that has none. A `seed` that some
    clients add is used when it is a whole number; it is none of OpenAI's fields, so a strange one is ignored.
    """
    text = body.get("input")
    if text is not None and not isinstance(text, str):
        raise CosydError("bad_value", field="input", reason="not_text")
    _text(body, "model", "tts-1")
    instructions = _text(body, "instructions", "")
    voice = body.get("voice")
    if isinstance(voice, Mapping):
        voice = voice.get("id")
        if not isinstance(voice, str):
            raise CosydError("bad_value", field="voice", reason="not_text")
    elif voice is None:
        voice = ""
    elif not isinstance(voice, str):
        raise CosydError("bad_value", field="voice", reason="not_text")
    format_ = _text(body, "response_format", "mp3").lower()
    if format_ not in FORMATS:
        raise CosydError("unknown_format", value=format_[:80], allowed=", ".join(FORMATS))
    stream_format: Literal["audio", "sse"] | str = _text(body, "stream_format", "audio")
    if stream_format not in ("audio", "sse"):
        raise CosydError(
            "bad_value",
            field="stream_format",
            reason="not_one_of",
            value=stream_format[:80],
            allowed="audio, sse",
        )
    fields: dict[str, Any] = {"text": text or "", "voice": voice, "format": format_, "source": "openai"}
    if instructions:
        fields["instruct"] = instructions
    if body.get("speed") is not None:
        fields["speed"] = body["speed"]
    seed = body.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**31:
        fields["seed"] = seed
    return SpeechRequest(fields, format_, stream_format == "sse")
