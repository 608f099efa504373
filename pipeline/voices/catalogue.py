"""Which voices there are and which engine speaks them. Pure; imports no engine.

Ready-made voices of the built-in engine stand here; cloned ones are rows of the `voices` table.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pipeline.codes import CosydError

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx",
    "nova", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip
"""Names that OpenAI clients send untouched; each maps to the starter voice, else the default."""

CONSENTS = ("own", "agreed", "guardian", "synthetic")
"""My own voice; this person agreed (with a name); my child and I am the guardian; synthetic or licensed."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice people can choose. `languages` are BCP-47 tags it is offered for, the best first.

    `transcript`: whether the words of a cloned voice's clip are known; without them it is cross-lingual only.
    `starter`: made by us with the model, the one that OpenAI's names mean while the model can be used.
    """

    id: str
    name: str
    engine: str
    languages: tuple[str, ...]
    owner: str = ""
    builtin: bool = True
    transcript: bool = False
    starter: bool = False
    tags: tuple[str, ...] = ()


def has_espeak() -> bool:
    """Whether espeak-ng is there; without it the built-in voices speak English only."""
    return shutil.which("espeak-ng") is not None


_ESPEAK_LANGUAGES = (
    "zh", "en", "de", "fr", "es", "it", "pt", "ru", "ko", "nl", "pl", "sv", "tr", "uk", "vi", "yue",
)  # fmt: skip
"""Not Japanese: espeak-ng reads kana only, and Japanese prose is refused for its Han characters."""


def ready_made(extra_engines: Mapping[str, str], *, espeak: bool | None = None) -> tuple[Voice, ...]:
    """Voices that need no cloning: `heart` (neural English, espeak-ng for the rest), `espeak`, and one for
    each extra engine, named as the engine."""
    espeak = has_espeak() if espeak is None else espeak
    others = tuple(tag for tag in _ESPEAK_LANGUAGES if tag != "en") if espeak else ()
    voices = [Voice("heart", "Heart", "builtin", ("en", *others))]
    if espeak:
        voices.append(Voice("espeak", "eSpeak", "builtin", _ESPEAK_LANGUAGES))
    voices += [Voice(name, name.capitalize(), name, ("en",)) for name in sorted(extra_engines)]
    return tuple(voices)


def find_voice(
    wanted: str, voices: Iterable[Voice], default: str, model_ready: Callable[[], bool] = lambda: False
) -> Voice:
    """The voice with id `wanted`; "" or "default" give the default. OpenAI's names (any case) give the
    starter voice where there is one and its model can be used, else the default.

    Raises CosydError(unknown_voice) naming the ones there are and the nearest.
    """
    by_id = {voice.id: voice for voice in voices}
    key = wanted.strip()
    if key in by_id:
        return by_id[key]
    if key.lower() in OPENAI_VOICES:
        starter = next((voice for voice in by_id.values() if voice.starter), None)
        if starter is not None and model_ready():
            return starter
    if key.lower() in OPENAI_VOICES or key.lower() in ("", "default"):
        return by_id[default] if default in by_id else next(iter(by_id.values()))
    near = difflib.get_close_matches(key.lower(), by_id, n=1)
    raise CosydError("unknown_voice", voice=key[:80], known=", ".join(by_id), nearest=near[0] if near else "")
