"""What could be better about a reference clip: advice, not refusal. Pure; numbers in, codes out.

Refusals (too short, silent, broken) are `pipeline.voices.reference`'s. The texts are `voice.advice_CODE`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.jobs import estimate_seconds

GOOD_SECONDS = 3.0
"""Below this a voice is recognisable but unsteady; three to ten seconds are asked for."""
QUIET_RMS = 10 ** (-38 / 20)
CLIPPED_AT, CLIPPED_SHARE = 0.985, 5e-4
NOISE_DB = 18.0
"""The quiet moments of a clean room lie 30 dB and more below its speech."""
SLOWEST, FASTEST = 0.35, 2.6
"""Speech takes between these multiples of the time that its words usually take."""


def clip_advice(mono: npt.NDArray[np.float32], rate: int, transcript: str | None) -> list[str]:
    """Codes of what to do better, the most important first: clipped, noisy, quiet, short, words."""
    found = []
    seconds = len(mono) / rate
    if float(np.mean(np.abs(mono) >= CLIPPED_AT)) > CLIPPED_SHARE:
        found.append("clipped")
    frame = max(1, rate // 50)
    frames = mono[: len(mono) // frame * frame].reshape(-1, frame)
    levels = np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1)) if len(frames) else np.zeros(1)
    loud, low = (float(np.percentile(levels, p)) for p in (90, 5))
    if low > 0 and loud > 0 and 20 * np.log10(loud / low) < NOISE_DB:
        found.append("noisy")
    if loud < QUIET_RMS:
        found.append("quiet")
    if seconds < GOOD_SECONDS:
        found.append("short")
    if transcript:
        usual = estimate_seconds(transcript)
        if not SLOWEST < seconds / max(usual, 0.3) < FASTEST:
            found.append("words")
    return found
