"""Sounds and files for tests of reference audio: something like speech, and what can happen to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from pipeline.model_files import NEEDED, missing_packages

RATE = 24_000
BASE_TEXT = (
    "This is a short reference clip recorded for a voice cloning test, please keep it calm and clear from "
    "start to end."
)
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")


def speechlike(
    seconds: float, *, level: float = 0.2, noise: float = 1e-4, pitch: float = 140.0, seed: int = 1
) -> Any:
    """Four syllables a second of a buzz whose colour moves, a pause after each 1.5 s, over noise."""
    count = int(seconds * RATE)
    t = np.arange(count) / RATE
    rng = np.random.default_rng(seed)
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * t))) / RATE
    bright = 0.5 + 0.5 * np.sin(2 * np.pi * 1.3 * t)
    buzz = np.sin(phase) + bright * (0.8 * np.sin(5 * phase) + 0.6 * np.sin(13 * phase))
    syllables = np.clip(np.sin(2 * np.pi * 4 * t) + 0.7, 0, 1) * ((t % 1.8) < 1.5)
    hiss = (
        np.diff(rng.standard_normal(count + 1))
        * 0.15
        * (np.sin(2 * np.pi * 4 * t) < -0.6)
        * ((t % 1.8) < 1.5)
    )
    return (level * (0.4 * syllables * buzz + hiss) + noise * rng.standard_normal(count)).astype(np.float32)


def base(folder: Path) -> Path:
    """U01: espeak-ng's sentence at 24 kHz, 16 bit, its peak at -3 dB."""
    raw, made = folder / "raw.wav", folder / "BASE.wav"
    subprocess.run(["espeak-ng", "-v", "en", "-s", "150", "-w", raw, BASE_TEXT], check=True, timeout=60)
    audio, rate = soundfile.read(raw)
    audio = soxr.resample(audio, rate, RATE)
    soundfile.write(made, audio / np.abs(audio).max() * 10 ** (-3 / 20), RATE, "PCM_16")
    return made


def write(path: Path, audio: Any, rate: int = RATE, subtype: str = "PCM_16", kind: str = "WAV") -> Path:
    """A file of that name, whatever the name says."""
    with path.open("wb") as file:
        soundfile.write(file, audio, rate, subtype, format=kind)
    return path


def stand_in_model(folder: Path) -> dict[str, str]:
    """The environment of a web that believes in a model: enough for whatever opens none."""
    for name in NEEDED:
        (folder / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "model" / name).write_bytes(b"x")
    for name in missing_packages():
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").touch()
    root = str(Path(__file__).parents[2])
    return {
        "COSYD_MODEL_DIR": str(folder / "model"),
        "PYTHONPATH": os.pathsep.join((root, str(folder / "packages"))),
    }


def ffmpeg(source: Path, target: Path, *options: str) -> Path:
    """`source` as ffmpeg writes it with `options`."""
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-i", str(source), *options, str(target)]
    subprocess.run(command, check=True, timeout=60)
    return target
