"""`python -m pipeline.audio.decode_child SECONDS`: standard input decoded, behind walls (`confine`).

Standard input is the opened file. The answer on standard output is one line of JSON, `{"reason"}` for what
cannot be used, else `{"rate", "channels", "seconds", "clipped", "more", "cut_off", "decoder"}` and then the
samples, float32 at 24 kHz, mono. Started by `pipeline.audio.recording` alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import soundfile  # noqa: F401 - loaded before the walls are up
import soxr  # noqa: F401

from pipeline.audio.confine import Limits, confine
from pipeline.audio.container import is_cut_off
from pipeline.audio.decode import Stream, Unreadable, open_ffmpeg, open_sndfile
from pipeline.audio.mixdown import Mixed, NotFinite, mix

LIMITS = Limits(cpu_s=20, memory_bytes=1280 * 1024**2)


def main(arguments: list[str]) -> int:
    """Decode at most SECONDS of standard input; 0 when there is an answer."""
    seconds = float(arguments[0])
    confine(LIMITS, dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix)), handed=(0,))
    size = os.fstat(0).st_size
    with open(0, "rb", closefd=False) as file:
        cut_off = is_cut_off(file, size)
    decoders: list[tuple[str, Callable[[], Stream]]] = [
        ("libsndfile", lambda: open_sndfile(0, seconds)),
        ("ffmpeg", lambda: open_ffmpeg(seconds)),
    ]
    for decoder, start in decoders:
        os.lseek(0, 0, os.SEEK_SET)
        try:
            stream = start()
            mixed = mix(stream, seconds)
        except Unreadable:
            continue
        except NotFinite:
            return _answer({"reason": "broken"})
        if stream.promised is not None and not mixed.more:
            cut_off = cut_off or mixed.seconds * stream.rate < 0.999 * stream.promised
        return _answer(_facts(stream, mixed) | {"cut_off": cut_off, "decoder": decoder}, mixed.mono)
    return _answer({"reason": "cut_off" if cut_off else "unreadable"})


def _facts(stream: Stream, mixed: Mixed) -> dict[str, Any]:
    return {
        "rate": stream.rate,
        "channels": stream.channels,
        "seconds": mixed.seconds,
        "clipped": mixed.clipped,
        "more": mixed.more,
    }


def _answer(head: dict[str, Any], mono: np.ndarray[Any, np.dtype[np.float32]] | None = None) -> int:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
    if mono is not None:
        sys.stdout.buffer.write(mono.astype("<f4", copy=False).data)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
