"""Which mode a request is spoken in by the voice it names. Pure but for the look at the model's folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, Mode, has_words
from pipeline.text.language import split_runs
from pipeline.voices.catalogue import Voice


def fit_mode(request: JobRequest, voice: Voice, require_model: Callable[[], None]) -> JobRequest:
    """The request with the mode it will be spoken in.

    A cloned voice: instruct when a style is given, zero-shot with a transcript, cross-lingual without;
    convert only when asked for. A ready-made voice has no styles, so one is dropped, as OpenAI does for
    tts-1. Raises CosydError: `unsupported_mode` (also for words that no program here can read),
    `bad_value(instruct)`, and `model_missing` from `require_model`.
    """
    if voice.builtin:
        if request.mode != "builtin":
            raise CosydError("unsupported_mode", mode=request.mode)
        _refuse_unreadable(request, voice)
        return dataclasses.replace(request, instruct=None)
    require_model()
    styled = bool(request.instruct and has_words(request.instruct))
    if request.mode == "convert":  # a recording said again: `pipeline.conversion`
        return dataclasses.replace(request, instruct=None)
    if request.mode == "instruct" and not styled:
        raise CosydError("bad_value", field="instruct", reason="not_text")
    mode: Mode = request.mode
    if mode == "builtin":
        mode = "instruct" if styled else "zero_shot"
    if mode == "zero_shot" and not voice.transcript:
        mode = "cross_lingual"
    return dataclasses.replace(request, mode=mode, instruct=request.instruct if mode == "instruct" else None)


def _refuse_unreadable(request: JobRequest, voice: Voice) -> None:
    """Without espeak-ng the built-in voice has English only: say so before the job is taken."""
    if voice.engine != "builtin" or voice.languages != ("en",):
        return
    for run in split_runs(request.text, request.language):
        if run.language != "en" and has_words(run.text):
            raise CosydError(
                "unsupported_mode", mode=request.mode, language=run.language, reason="needs_espeak"
            )
