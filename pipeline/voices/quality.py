"""What was looked at in a reference clip and what could be better: a verdict for each. Pure.

`bad` is refused (`pipeline.voices.reference` raises it, as CosydError(bad_audio)), `fair` is advice. The
texts are `voice.check_NAME`, `voice.verdict_VERDICT` and `voice.advice_CODE`; a refusal has its error's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.codes import CosydError
from pipeline.jobs import estimate_seconds
from pipeline.messages import Language, error_text, render

Verdict = Literal["good", "fair", "bad"]
CHECKS = ("length", "speech", "clipping", "noise", "level", "rate", "whole", "words")

GOOD_SECONDS = 3.0
"""Below this a voice is recognisable but unsteady; three to ten seconds are asked for."""
CLIPPED_SHARE = 5e-4
NOISE_DB = 24.0
"""The quiet moments of a clean room lie 30 dB and more below its speech; with white noise 10 dB below the
speech it is 22 dB as measured here, 32 dB with 20."""
QUIET_DB = -42.0
"""Of the loud moments, in the band of speech; what is softer than this has the hiss of its microphone."""
GOOD_RATE = 16_000
SLOWEST, FASTEST = 0.35, 2.6
"""Speech takes between these multiples of the time that its words usually take."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `value` is a number that a program may want: seconds, a share, dB,
    samples a second, a ratio. `advice` is a code; `refusal` instead for what is bad."""

    name: str
    verdict: Verdict
    value: float | None = None
    advice: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    refusal: CosydError | None = None

    def message(self, language: Language) -> str:
        """What to do, "" when it is good."""
        if self.refusal is not None:
            return error_text(self.refusal.code, language, self.refusal.params)
        return render(f"voice.advice_{self.advice}", language, self.params) if self.advice else ""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a clip: `snr_db` and `loud_db` None where there is nothing to measure."""

    seconds: float
    speech: bool
    clipped: float
    snr_db: float | None
    loud_db: float | None
    rate: int
    cut_off: bool


def advise(clip: Measured, transcript: str | None) -> list[Check]:
    """Everything but what is refused, in the order of `CHECKS`."""
    found = [
        _check("length", clip.seconds, "short" if clip.seconds < GOOD_SECONDS else ""),
        _check("speech", None, "" if clip.speech else "no_speech"),
        _check("clipping", clip.clipped, "clipped" if clip.clipped > CLIPPED_SHARE else ""),
    ]
    if clip.snr_db is not None and clip.speech:
        found.append(_check("noise", clip.snr_db, "noisy" if clip.snr_db < NOISE_DB else ""))
    if clip.loud_db is not None:
        found.append(_check("level", clip.loud_db, "quiet" if clip.loud_db < QUIET_DB else ""))
    found.append(_check("rate", clip.rate, "telephone" if clip.rate < GOOD_RATE else "", rate=clip.rate))
    found.append(_check("whole", None, "cut_off" if clip.cut_off else ""))
    if transcript:
        ratio = clip.seconds / max(estimate_seconds(transcript), 0.3)
        found.append(_check("words", ratio, "" if SLOWEST < ratio < FASTEST else "words"))
    return found


def _check(name: str, value: float | None, advice: str, **params: Any) -> Check:
    kept = None if value is None else round(float(value), 5)
    return Check(name, "fair" if advice else "good", kept, advice, params if advice else {})
