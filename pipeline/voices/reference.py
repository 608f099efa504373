"""A recording to a reference clip: the best part of it, without silence around, at one level; with verdicts.

The file is read by `pipeline.audio.recording`. Only the cut that is made here is kept.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.audio.mixdown import RATE
from pipeline.audio.recording import Recording, read_recording
from pipeline.audio.speech import FRAME_S, Activity, find_speech
from pipeline.codes import CosydError
from pipeline.voices.cut import MOST_S, Cut, best_cuts, outer
from pipeline.voices.quality import Check, Measured, advise

F32 = npt.NDArray[np.float32]

MIN_SECONDS = 1.0
SILENT_DB = -75.0
"""Softer than this is nothing but a converter's own noise; anything louder is turned up."""
LEVEL, PEAK, MOST_GAIN = 10 ** (-22 / 20), 0.8, 10 ** (50 / 20)
"""Every voice is enrolled at the level of speech that the built-in one has, with upstream's highest peak."""
_FADE_S = 0.005
_SLACK_S = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """What a recording is good for. `cut` is what would be enrolled, `suggestions` parts to choose from (only
    of a longer one), `shortened` when `cut` is one of them. `refusal` is the error that adding it raises."""

    seconds: float
    cut: Cut
    suggestions: tuple[Cut, ...]
    shortened: bool
    checks: tuple[Check, ...]
    refusal: CosydError | None = None

    @property
    def good(self) -> bool:
        """Nothing could be better."""
        return all(check.verdict == "good" for check in self.checks)


@dataclass(frozen=True, slots=True)
class Clip:
    """Mono samples at `rate`, ready to be enrolled."""

    audio: F32
    rate: int
    report: Report


def read_clip(
    path: Path, *, max_seconds: float, transcript: str | None, span: tuple[float, float] | None = None
) -> Clip:
    """The clip of a file. Raises CosydError(bad_audio) with a reason."""
    return make_clip(read_recording(path), max_seconds=max_seconds, transcript=transcript, span=span)


def make_clip(
    recording: Recording,
    *,
    max_seconds: float,
    transcript: str | None,
    span: tuple[float, float] | None = None,
) -> Clip:
    """The part `span` (start and end in seconds), else all, else the best part. Raises CosydError(bad_audio):
    silent, short, long, span."""
    report = examine(recording, max_seconds=max_seconds, transcript=transcript, span=span)
    if report.refusal is not None:
        raise report.refusal
    return Clip(finished(_part(recording.audio, report.cut)), RATE, report)


def examine(
    recording: Recording,
    *,
    max_seconds: float,
    transcript: str | None,
    span: tuple[float, float] | None = None,
) -> Report:
    """Look at everything; nothing is raised.

    A longer recording is cut when nothing is known about its words; with a transcript it is refused, since
    the words would no longer fit the sound.
    """
    total = recording.seconds
    room = find_speech(recording.audio, RATE)
    whole = outer(room, total)
    longest = max_seconds if transcript else min(max_seconds, MOST_S)
    long = whole.seconds > longest + _SLACK_S
    suggestions = tuple(best_cuts(room, total, max_seconds)) if long and room.spans else ()
    shortened = long and span is None and not transcript and bool(suggestions)
    cut = suggestions[0] if shortened else whole
    refusal: CosydError | None = None
    if span is not None:
        if not 0 <= span[0] < span[1] or span[0] >= total:
            refusal = CosydError("bad_audio", reason="span", value=round(total, 1))
        else:
            cut = _within(recording.audio, Cut(span[0], min(span[1], total)))
    part = _part(recording.audio, cut)
    own = find_speech(part, RATE) if cut != whole else room
    if refusal is None:
        refusal = _refusal(room, cut, own, max_seconds)
    checks = advise(
        Measured(
            seconds=round(cut.seconds, 3),
            speech=own.speech,
            clipped=recording.clipped,
            snr_db=_snr(room, own),
            loud_db=own.loud_db,
            rate=recording.rate,
            cut_off=recording.cut_off,
        ),
        transcript,
    )
    if shortened:
        taken = {"start": cut.start, "end": cut.end, "seconds": cut.seconds}
        checks[0] = dataclasses.replace(checks[0], verdict="fair", advice="cut", params=taken)
    if refusal is not None:
        at = 1 if refusal.params["reason"] == "silent" else 0
        checks[at] = Check(checks[at].name, "bad", checks[at].value, refusal=refusal)
        if refusal.params["reason"] != "long":
            checks = [checks[at]]  # there is too little to say more about
    return Report(round(total, 3), cut, suggestions, shortened, tuple(checks), refusal)


def is_silent(activity: Activity) -> bool:
    """Is there nothing at all to be heard?"""
    return activity.loud_db is None or activity.loud_db < SILENT_DB


def _refusal(room: Activity, cut: Cut, own: Activity, max_seconds: float) -> CosydError | None:
    if is_silent(room) or is_silent(own):
        return CosydError("bad_audio", reason="silent")
    spoken = (own.spans[-1][1] - own.spans[0][0]) * FRAME_S if own.spans else 0.0
    if spoken < MIN_SECONDS - _SLACK_S:
        return CosydError("bad_audio", reason="short", value=round(spoken, 1), limit=MIN_SECONDS)
    if cut.seconds > max_seconds + _SLACK_S:
        return CosydError("bad_audio", reason="long", value=round(cut.seconds, 1), limit=max_seconds)
    return None


def _within(audio: F32, cut: Cut) -> Cut:
    """A cut without the silence at its own ends."""
    inner = outer(find_speech(_part(audio, cut), RATE), cut.seconds)
    return Cut(cut.start + inner.start, cut.start + inner.end)


def _part(audio: F32, cut: Cut) -> F32:
    return audio[round(cut.start * RATE) : round(cut.end * RATE)]


def _snr(room: Activity, own: Activity) -> float | None:
    """How far the voice of the cut is above the room, whose quietest moments may lie outside of it."""
    if own.loud_db is None or (own.floor_db is None and room.floor_db is None):
        return None
    floors = [floor for floor in (room.floor_db, own.floor_db) if floor is not None]
    return own.loud_db - min(floors)


def finished(mono: F32) -> F32:
    """Without constant offset, at `LEVEL`, no peak above `PEAK`, its ends faded over 5 ms."""
    audio = mono.astype(np.float64)
    audio -= audio.mean()
    activity = find_speech(audio.astype(np.float32), RATE)
    frame = round(FRAME_S * RATE)
    loud = [audio[start * frame : end * frame] for start, end in activity.spans] or [audio]
    power = float(np.square(np.concatenate(loud)).mean())
    peak = float(np.abs(audio).max())
    gain = min(LEVEL / max(power**0.5, 1e-9), PEAK / max(peak, 1e-9), MOST_GAIN)
    audio *= gain
    fade = np.linspace(0.0, 1.0, min(round(_FADE_S * RATE), len(audio)))
    audio[: len(fade)] *= fade
    audio[len(audio) - len(fade) :] *= fade[::-1]
    return audio.astype(np.float32)
