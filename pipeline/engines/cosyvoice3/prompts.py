"""What the language model and the flow are given in each mode. Pure: texts and arrays to requests.

The system sentence goes into the prompt text in every mode, so that segments of one text share its keys and
values; upstream puts it into the text itself in cross-lingual mode, which gives the same sequence but longer
length limits.
"""

from __future__ import annotations

from typing import Protocol

from pipeline.codes import CosydError
from pipeline.engines.cosyvoice3.bistream import BistreamRequest
from pipeline.engines.cosyvoice3.decode import LlmRequest
from pipeline.engines.cosyvoice3.special_tokens import END_OF_PROMPT
from pipeline.engines.cosyvoice3.text import without_control
from pipeline.jobs import Mode, has_words

SYSTEM = "You are a helpful assistant."
MAX_TEXT_IDS = 4096
"""Far above any segment; it bounds the KV cache against nonsense."""


class Tokenizer(Protocol):
    """What `tokenizer.TextTokenizer` offers."""

    end_of_prompt: int

    def encode(self, text: str) -> tuple[int, ...]: ...


def prompt_text(mode: Mode, transcript: str | None, instruct: str | None) -> str:
    """The text before what is spoken. Raises CosydError(unsupported_mode) where the mode's own text is
    missing."""
    if mode == "zero_shot":
        if not (transcript and has_words(transcript)):
            raise CosydError("unsupported_mode", mode=mode, reason="no transcript")
        return SYSTEM + END_OF_PROMPT + without_control(transcript).strip()
    if mode == "instruct":
        if not (instruct and has_words(instruct)):
            raise CosydError("bad_value", field="instruct", reason="not_text")
        return f"{SYSTEM} {without_control(instruct).strip()}{END_OF_PROMPT}"
    if mode == "cross_lingual":
        return SYSTEM + END_OF_PROMPT
    raise CosydError("unsupported_mode", mode=mode)


def effective_mode(mode: Mode, transcript: str | None, instruct: str | None) -> Mode:
    """Zero-shot without a transcript is cross-lingual; an instruction makes it instruct mode."""
    if mode == "zero_shot" and instruct and has_words(instruct):
        return "instruct"
    if mode == "zero_shot" and not (transcript and has_words(transcript)):
        return "cross_lingual"
    return mode


def llm_request(
    tokenizer: Tokenizer,
    mode: Mode,
    text: str,
    speech_tokens: tuple[int, ...],
    *,
    transcript: str | None = None,
    instruct: str | None = None,
    seed: int = 0,
    enforce_min: bool = True,
    max_tokens: int | None = None,
) -> LlmRequest:
    """The ids of one segment. Only zero-shot gives the prompt's speech to the language model.

    Raises CosydError: empty_text, text_too_long, unsupported_mode, bad_value.
    """
    spoken = without_control(text).strip()
    if not has_words(spoken):
        raise CosydError("empty_text")
    ids = tokenizer.encode(spoken)
    before = tokenizer.encode(prompt_text(mode, transcript, instruct))
    if len(ids) + len(before) > MAX_TEXT_IDS:
        raise CosydError("text_too_long", length=len(text), limit=MAX_TEXT_IDS)
    if tokenizer.end_of_prompt not in before:
        raise CosydError("bad_value", field="instruct", reason="not_text")
    return LlmRequest(
        text=ids,
        prompt_text=before,
        prompt_speech=speech_tokens if mode == "zero_shot" else (),
        seed=seed,
        enforce_min=enforce_min,
        max_tokens=max_tokens,
    )


def pieces_request(
    tokenizer: Tokenizer,
    mode: Mode,
    speech_tokens: tuple[int, ...],
    *,
    transcript: str | None = None,
    instruct: str | None = None,
    seed: int = 0,
) -> BistreamRequest:
    """The prompt of a text that comes in pieces. Raises CosydError: unsupported_mode, bad_value."""
    return BistreamRequest(
        prompt_text=tokenizer.encode(prompt_text(mode, transcript, instruct)),
        prompt_speech=speech_tokens if mode == "zero_shot" else (),
        end_of_prompt=tokenizer.end_of_prompt,
        seed=seed,
    )
