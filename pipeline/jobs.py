"""What a job is: the request (CONTRACTS 1), its lane, its states. Pure values and validation.

Used by everyone who makes a job (ui, cli) and everyone who works on it (queue, runner).
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import unicodedata
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Literal, get_args

from pipeline.codes import CosydError
from pipeline.text.markup import check_markup

SAMPLE_RATE = 24_000
"""Samples a second of everything that cosyd stores or streams; mono."""

Mode = Literal["builtin", "zero_shot", "cross_lingual", "instruct", "convert"]
Markup = Literal["plain", "markdown", "ssml"]
AudioFormat = Literal["wav", "flac", "mp3", "opus", "aac", "pcm"]
Source = Literal["page", "openai", "wyoming", "cli", "api"]

MODES: tuple[str, ...] = get_args(Mode)
MARKUPS: tuple[str, ...] = get_args(Markup)
FORMATS: tuple[str, ...] = get_args(AudioFormat)
SOURCES: tuple[str, ...] = get_args(Source)

SPEED_MIN, SPEED_MAX = 0.25, 4.0
SEED_MAX = 2**31 - 1
VOICE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LANGUAGE = re.compile(r"auto|[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")

HAN_PER_SECOND = 4.5
LETTERS_PER_SECOND = 15.0


class JobState(StrEnum):
    """`jobs.state`. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SegmentState(StrEnum):
    """`segments.state`."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


class Lane(IntEnum):
    """Who goes first, smallest first; stored by name in `jobs.lane`."""

    interactive = 0
    page = 1
    batch = 2


_UNTYPED = ("wyoming",)
"""Sources whose text nobody typed: a slip in a language model's reply is text, never a silent answer."""

FINAL_STATES = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A validated request to speak. Build it with `parse_request`, which refuses what is wrong.

    `seed` None means: draw one when the job is accepted. `owner` "" is the house.
    """

    text: str
    voice: str
    language: str = "auto"
    mode: Mode = "builtin"
    instruct: str | None = None
    speed: float = 1.0
    seed: int | None = None
    markup: Markup = "plain"
    format: AudioFormat = "wav"
    source: Source = "api"
    client: str = ""
    owner: str = ""

    def to_json(self) -> str:
        """The form stored in `jobs.request`."""
        return json.dumps({"v": 1, **dataclasses.asdict(self)}, ensure_ascii=False, separators=(",", ":"))


def _shown(value: object) -> str:
    """What was given, short and without what a terminal or UTF-8 cannot carry, for the error message."""
    try:
        return clean_text(str(value)[:80])
    except ValueError:  # a whole number of more digits than Python writes out
        return "…"


def _bad(field: str, reason: str, **params: Any) -> CosydError:
    return CosydError("bad_value", field=field, reason=reason, **params)


def _text_field(fields: dict[str, Any], name: str, allowed: tuple[str, ...], code: str = "bad_value") -> None:
    value = fields.get(name)
    if name in fields and (not isinstance(value, str) or value not in allowed):
        if code != "bad_value":
            raise CosydError(code, value=_shown(value), allowed=", ".join(allowed))
        raise _bad(name, "not_one_of", value=_shown(value), allowed=", ".join(allowed))


def clean_text(text: str) -> str:
    """NFC, without control characters other than line breaks and tabs, lone surrogates dropped.

    Never raises; what it removes cannot be heard.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    kept = (
        ch if ch in "\n\t" or unicodedata.category(ch) not in ("Cc", "Cs", "Co", "Cn") else " " for ch in text
    )
    return unicodedata.normalize("NFC", "".join(kept))


def has_words(text: str) -> bool:
    """True when something in `text` can be spoken: a letter or a digit of any script."""
    return any(unicodedata.category(ch)[0] in "LN" for ch in text)


def parse_request(fields: dict[str, Any], *, max_chars: int) -> JobRequest:
    """Validate loosely typed `fields` (from JSON, a form or the CLI) into a JobRequest.

    Raises CosydError: `empty_text`, `text_too_long(length, limit)`, `unknown_format`, `unknown_voice` for a
    malformed id, `bad_value(field, reason)` for the rest: unknown keys, mistakes in pronunciation markup
    (`reason="markup"`, with its position and what is nearest). Whether the voice exists
    and the mode is supported is checked by whoever knows the voices.
    """
    fields = dict(fields)
    version = fields.pop("v", 1)
    if isinstance(version, bool) or version != 1:
        raise _bad("v", "not_one_of", value=_shown(version), allowed="1")
    known = {f.name for f in dataclasses.fields(JobRequest)}
    if unknown := sorted(set(fields) - known):
        raise _bad(_shown(unknown[0]), "unknown_key", allowed=", ".join(sorted(known)))
    text = fields.get("text")
    if not isinstance(text, str):
        raise _bad("text", "not_text") if text is not None else CosydError("empty_text")
    if len(text) > max_chars:
        raise CosydError("text_too_long", length=len(text), limit=max_chars)
    fields["text"] = clean_text(text)
    if not has_words(fields["text"]):
        raise CosydError("empty_text")
    if fields.get("markup", "plain") == "plain" and fields.get("source") not in _UNTYPED:
        check_markup(fields["text"])
    voice = fields.get("voice")
    if not isinstance(voice, str) or not VOICE_ID.fullmatch(voice):
        raise CosydError("unknown_voice", voice=_shown(voice), known="", reason="malformed")
    _text_field(fields, "mode", MODES)
    _text_field(fields, "markup", MARKUPS)
    _text_field(fields, "source", SOURCES)
    _text_field(fields, "format", FORMATS, code="unknown_format")
    if "language" in fields and not (
        isinstance(fields["language"], str) and _LANGUAGE.fullmatch(fields["language"])
    ):
        raise _bad("language", "not_a_language", value=_shown(fields["language"]))
    for name in ("client", "owner", "instruct"):
        if name not in fields or (name == "instruct" and fields[name] is None):
            continue
        if not isinstance(fields[name], str):
            raise _bad(name, "not_text")
        fields[name] = clean_text(fields[name])  # a lone surrogate would not go into the database
    if "speed" in fields:
        fields["speed"] = _speed(fields["speed"])
    if fields.get("seed") is not None:
        seed = fields["seed"]
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= SEED_MAX:
            raise _bad("seed", "out_of_range", value=_shown(seed), low=0, high=SEED_MAX)
    return JobRequest(**fields)


def _speed(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad("speed", "not_a_number", value=_shown(value))
    # Compared before anything else: a whole number of 400 digits does not become a float.
    if not SPEED_MIN <= value <= SPEED_MAX:  # NaN is refused here too
        raise _bad("speed", "out_of_range", value=_shown(value), low=SPEED_MIN, high=SPEED_MAX)
    return float(value)


def request_from_json(text: str) -> JobRequest:
    """Read `jobs.request` back. Raises CosydError(bad_value) for what no version of ours wrote."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad("request", "not_json") from None
    if not isinstance(fields, dict):
        raise _bad("request", "not_json")
    return parse_request(fields, max_chars=2**31)


def draw_seed() -> int:
    """A seed for a request that came without one."""
    return secrets.randbelow(SEED_MAX + 1)


def new_job_id() -> str:
    """16 hex digits."""
    return secrets.token_hex(8)


def is_han(ch: str) -> bool:
    """True for CJK ideographs (all planes)."""
    cp = ord(ch)
    return (
        0x4E00 <= cp <= 0x9FFF or 0x3400 <= cp <= 0x4DBF or 0x20000 <= cp <= 0x323AF or 0xF900 <= cp <= 0xFAFF
    )


def estimate_seconds(text: str, speed: float = 1.0) -> float:
    """Expected seconds of speech: 4.5 Han characters or 15 letters a second (DESIGN 6)."""
    han = sum(is_han(ch) for ch in text)
    other = sum(not ch.isspace() for ch in text) - han
    return (han / HAN_PER_SECOND + other / LETTERS_PER_SECOND) / speed


def choose_lane(request: JobRequest, *, interactive_chars: int, text_chars: int) -> Lane:
    """Wyoming and short API texts are interactive, texts above the page limit are batch, the rest page."""
    if request.source == "wyoming":
        return Lane.interactive
    if request.mode == "convert":  # its text is a label and says nothing of how long it takes
        return Lane.page
    if len(request.text) > text_chars:
        return Lane.batch
    if request.source in ("openai", "api") and len(request.text) < interactive_chars:
        return Lane.interactive
    return Lane.page
