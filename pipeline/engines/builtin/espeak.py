"""Everything but English by an espeak-ng child: text on stdin, a WAV on stdout. Never text in argv.

Measured with 1.51: a run of 17 characters takes 40 ms; durations follow `-s` within 7 % of 1/speed from half
to one and a half times the usual pace, so beyond that the tempo is changed afterwards.
"""

from __future__ import annotations

import functools
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import IO

import numpy as np

from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, StopFlag
from pipeline.engines.builtin.mandarin import to_pinyin
from pipeline.engines.builtin.marked import for_espeak, for_mandarin
from pipeline.engines.builtin.stretch import change_tempo
from pipeline.jobs import SAMPLE_RATE, is_han

_WORDS_PER_MINUTE = 175
_SLOWEST, _FASTEST = 0.5, 1.5
_POLL_S = 0.02
_LONGEST_S = 60.0  # a child that takes this long hangs: it speaks hundreds of times faster than real time

_VOICES: Mapping[str, str] = {
    "zh": "cmn-latn-pinyin",
    "en": "en-us",
    "fr": "fr-fr",
    "no": "nb",
    "fil": "en-us",
}
"""Where espeak-ng's name of a language is not its BCP-47 tag."""


class EspeakStopped(Exception):
    """The stop flag was set; the child is gone."""


def espeak_path() -> str | None:
    """Where espeak-ng is, None when it is not installed."""
    return shutil.which("espeak-ng")


@functools.cache
def known_languages(program: str) -> frozenset[str]:
    """Names that `-v` takes, from the program itself; asked once."""
    listing = subprocess.run(
        [program, "--voices"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    ).stdout.decode("utf-8", "replace")
    return frozenset(line.split()[1] for line in listing.splitlines()[1:] if len(line.split()) > 1)


def espeak_voice(language: str, program: str) -> str | None:
    """The espeak-ng voice for a primary tag, None when there is none."""
    voice = _VOICES.get(language, language)
    return voice if voice in known_languages(program) else None


def can_speak(program: str, text: str, language: str) -> bool:
    """Whether `text` in `language` (a primary tag) can be read: a voice is there, and its script is known.

    espeak-ng's Japanese spells Han characters out by their names.
    """
    return espeak_voice(language, program) is not None and not (
        language == "ja" and any(is_han(ch) for ch in text)
    )


def speak(program: str, text: str, language: str, speed: float, stop: StopFlag) -> F32Mono:
    """`text` in `language` (a primary tag), 24 kHz float32, shape (samples,); empty when nothing is audible.

    Raises CosydError(unsupported_mode) when it has no such voice or cannot read the script (Han in Japanese),
    CosydError(engine_failed) when the child fails, EspeakStopped when `stop` was set.
    """
    voice = espeak_voice(language, program)
    if voice is None or not can_speak(program, text, language):
        raise CosydError("unsupported_mode", mode="builtin", language=language, reason="language")
    text = for_mandarin(text, to_pinyin) if language == "zh" else for_espeak(text)
    own = min(max(speed, _SLOWEST), _FASTEST)
    command = [
        program,
        "-v",
        voice,
        "-s",
        str(round(_WORDS_PER_MINUTE * own)),
        "-b",
        "1",
        "-z",
        "--stdin",
        "--stdout",
    ]
    wav = _run(command, " ".join(text.split()).encode(), stop)
    return change_tempo(_decode(wav), speed / own)


def _run(command: list[str], text: bytes, stop: StopFlag) -> bytes:
    """The child's output. It is killed when `stop` is set, when it hangs, and when we are closed early."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    stdin, stdout = _pipe(child.stdin), _pipe(child.stdout)
    give_up_at = time.monotonic() + _LONGEST_S
    out, todo = bytearray(), memoryview(text)
    try:
        os.set_blocking(stdin.fileno(), False)
        with selectors.DefaultSelector() as ready:
            ready.register(stdin, selectors.EVENT_WRITE)
            ready.register(stdout, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(_POLL_S):
                    if key.fileobj is stdin:
                        try:
                            todo = todo[os.write(stdin.fileno(), todo) :]
                        except BrokenPipeError:
                            todo = memoryview(b"")
                        if not todo:
                            ready.unregister(stdin)
                            stdin.close()
                    elif data := os.read(stdout.fileno(), 1 << 16):
                        out += data
                    else:
                        break
                else:
                    if stop.is_set():
                        raise EspeakStopped
                    if time.monotonic() > give_up_at:
                        raise CosydError("engine_failed", engine="builtin", reason="espeak-ng hangs")
                    continue
                break
        if child.wait(timeout=_LONGEST_S) != 0:
            raise CosydError(
                "engine_failed", engine="builtin", reason=f"espeak-ng ended with {child.returncode}"
            )
        return bytes(out)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        stdin.close()
        stdout.close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _decode(wav: bytes) -> F32Mono:
    """Samples of espeak-ng's WAV stream (44-byte header, sizes not filled in), resampled to 24 kHz."""
    if len(wav) <= 44:
        return np.zeros(0, np.float32)
    import soxr

    rate = int.from_bytes(wav[24:28], "little")
    samples = np.frombuffer(wav[44 : 44 + (len(wav) - 44) // 2 * 2], "<i2").astype(np.float32) / 32768
    resampled: F32Mono = soxr.resample(samples, rate, SAMPLE_RATE).astype(np.float32, copy=False)
    return resampled
