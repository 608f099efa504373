"""An uploaded file to a reference clip: decoded within bounds, mono, outer silence removed, checked.

The content decides, never the name. libsndfile first, else ffmpeg as a child with the upload as its standard
input (a file, so that it can seek) and real audio containers only: a `.wav` that holds a playlist would
otherwise decode a neighbour's file.
"""

from __future__ import annotations

import io
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.codes import CosydError

F32 = npt.NDArray[np.float32]

RATE = 24_000
"""What ffmpeg is asked for; libsndfile's own rate is kept."""

MIN_RATE = 16_000
MIN_SECONDS = 1.0
READ_SECONDS = 120.0
"""No more of a file is decoded than this."""

WALL_S, CPU_S, MEMORY_BYTES = 30.0, 20, 2 * 1024**3
SILENT_RMS = 10 ** (-60 / 20)
EDGE = 10 ** (-45 / 20)
"""Outside the first and last 20 ms frame as loud as this (relative to the loudest) there is only silence."""

CONTAINERS = "aac,aiff,amr,caf,flac,matroska,mov,mp3,ogg,wav,w64"
"""Real audio containers: none that names other files."""


def read_reference(path: Path, *, max_seconds: float, with_transcript: bool) -> tuple[F32, int]:
    """(mono samples, rate) of at most `max_seconds`. Raises CosydError(bad_audio) with a reason.

    A longer clip is cut when nothing is known about its words; with a transcript it is refused, since the
    words would no longer fit the sound.
    """
    audio, rate = decode(path)
    if rate < MIN_RATE:
        raise CosydError("bad_audio", reason="rate", value=rate, limit=MIN_RATE)
    if not np.isfinite(audio).all():
        raise CosydError("bad_audio", reason="broken")
    mono = trimmed(to_mono(audio), rate)
    seconds = len(mono) / rate
    if seconds < MIN_SECONDS:
        raise CosydError("bad_audio", reason="short", value=round(seconds, 1), limit=MIN_SECONDS)
    if seconds > max_seconds:
        if with_transcript:
            raise CosydError("bad_audio", reason="long", value=round(seconds, 1), limit=max_seconds)
        mono = mono[: int(max_seconds * rate)]
    return mono, rate


def decode(path: Path, seconds: float = READ_SECONDS) -> tuple[F32, int]:
    """(samples, channels) and rate of at most `seconds`. Raises CosydError(bad_audio)."""
    import soundfile

    if not path.is_file():
        raise CosydError("bad_audio", reason="empty")
    try:
        with soundfile.SoundFile(path) as file:
            if file.samplerate > 0 and file.channels <= 8:
                rate = file.samplerate
                return file.read(int(seconds * rate), dtype="float32", always_2d=True), rate
    except (soundfile.LibsndfileError, OSError, ValueError):
        pass
    return _ffmpeg(path, seconds), RATE


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _ffmpeg(path: Path, seconds: float) -> F32:
    program = shutil.which("ffmpeg")
    if program is None:
        raise CosydError("bad_audio", reason="unreadable")
    command = [
        program, "-nostdin", "-hide_banner", "-loglevel", "error", "-protocol_whitelist", "file,pipe",
        "-format_whitelist", CONTAINERS, "-i", "file:/dev/stdin", "-map", "0:a:0", "-vn", "-sn", "-dn",
        "-t", str(seconds), "-threads", "1", "-ac", "1", "-ar", str(RATE), "-f", "f32le", "pipe:1",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as empty, path.open("rb") as source:
        try:
            done = subprocess.run(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=empty,
                timeout=WALL_S,
                preexec_fn=_limits,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            raise CosydError("bad_audio", reason="unreadable") from error
    if done.returncode != 0 or not done.stdout:
        raise CosydError("bad_audio", reason="unreadable")
    return np.frombuffer(io.BytesIO(done.stdout).getvalue(), "<f4").astype(np.float32).reshape(-1, 1)


def to_mono(audio: F32) -> F32:
    """The mean of the channels; where they cancel each other (one is the other upside down), the loudest."""
    mixed = audio.mean(axis=1, dtype=np.float32)
    powers = np.square(audio, dtype=np.float64).mean(axis=0) if len(audio) else np.zeros(audio.shape[1])
    if audio.shape[1] > 1 and float(np.square(mixed, dtype=np.float64).mean()) < 0.1 * float(powers.max()):
        mixed = audio[:, int(powers.argmax())]
    return np.ascontiguousarray(mixed)


def trimmed(mono: F32, rate: int) -> F32:
    """Without constant offset and outer silence, 100 ms kept. Raises CosydError(bad_audio): empty, silent."""
    if not len(mono):
        raise CosydError("bad_audio", reason="empty")
    mono = mono - mono.mean(dtype=np.float64).astype(np.float32)
    frame = max(1, rate // 50)
    frames = mono[: len(mono) // frame * frame].reshape(-1, frame)
    levels = np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1))
    if not len(levels) or float(levels.max()) < SILENT_RMS:
        raise CosydError("bad_audio", reason="silent")
    loud = np.flatnonzero(levels > EDGE * levels.max())
    first, last = max(0, int(loud[0]) - 5), min(len(levels), int(loud[-1]) + 6)
    return np.ascontiguousarray(mono[first * frame : last * frame if last < len(levels) else len(mono)])
