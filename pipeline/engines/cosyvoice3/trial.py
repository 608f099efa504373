"""Trying the model out on a machine: load, add the starter voice, speak five sentences, measure, judge.

Called by `tool`. The report holds numbers and the machine's make, no text of people, no names, no paths.
"""

from __future__ import annotations

import platform
import resource
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile

from pipeline.clock import utc_text
from pipeline.engines.base import F32Mono, Options, Segment, VoiceFeatures
from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine
from pipeline.jobs import SAMPLE_RATE, Mode, estimate_seconds
from pipeline.profile import Config

SENTENCES: tuple[tuple[str, Mode, str], ...] = (
    ("en", "zero_shot", "The kettle is boiling, and the tea will be ready in three minutes."),
    ("zh", "zero_shot", "水开了，茶再过三分钟就好。"),
    ("en", "cross_lingual", "Tomorrow it will rain in the morning, but the afternoon should be clear."),
    ("zh", "cross_lingual", "明天上午有雨，下午应该会放晴，出门记得带伞。"),
    ("zh", "instruct", "今天的晚饭是西红柿炒鸡蛋，大家快来吃吧。"),
)
"""Language, mode, text: the same on every machine, so that reports can be compared."""

STYLE = "请用开心的语气说。"
SEED = 20_260_131

SILENT_PEAK = 10 ** (-50 / 20)
CLIPPED_SHARE = 0.01
SHORTEST, LONGEST = 0.3, 3.5
"""Of the seconds that the text is expected to take."""

PACKAGES = ("torch", "torchaudio", "onnxruntime", "tokenizers", "safetensors", "numpy")


def judge(samples: F32Mono, text: str) -> list[str]:
    """What is unsound, as words: not_finite, silent, clipped, short, long. Empty is sound."""
    if not np.isfinite(samples).all():
        return ["not_finite"]
    found = []
    peak = float(np.abs(samples).max()) if len(samples) else 0.0
    if peak < SILENT_PEAK:
        found.append("silent")
    elif float(np.mean(np.abs(samples) >= 0.985)) > CLIPPED_SHARE:
        found.append("clipped")
    seconds, expected = len(samples) / SAMPLE_RATE, estimate_seconds(text)
    if seconds < SHORTEST * expected:
        found.append("short")
    if seconds > LONGEST * expected:
        found.append("long")
    return found


def machine() -> dict[str, Any]:
    """Make and size, nothing that names its owner."""
    import torch

    card = None
    if torch.cuda.is_available():
        seen = torch.cuda.get_device_properties(0)
        card = {"name": seen.name, "total_bytes": int(seen.total_memory)}
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "ram_bytes": psutil.virtual_memory().total,
        "card": card,
        "python": platform.python_version(),
        "packages": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_bytes() -> dict[str, int | None]:
    """Highest resident memory of this process so far, and of it what is anonymous now."""
    anonymous = None
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                anonymous = 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    return {
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "rss_anon_bytes": anonymous,
    }


def card_peak() -> int | None:
    """Highest memory that torch's allocator held on the card; None without one."""
    import torch

    return int(torch.cuda.max_memory_reserved()) if torch.cuda.is_available() else None


def try_out(
    folder: Path,
    cache: Path,
    config: Config,
    clip: Path,
    transcript: str,
    told: Callable[[str, int, int], None],
    *,
    now: float,
) -> dict[str, Any]:
    """The report. Raises EngineUnavailable, OutOfMemory, CosydError(bad_audio)."""
    never = threading.Event()
    engine = CosyVoice3Engine(folder, cache)
    told("loading", 0, len(SENTENCES))
    footprint = engine.load(config, never)
    load_s = time.time() - psutil.Process().create_time()
    ready = peak_bytes()
    told("voice", 0, len(SENTENCES))
    audio, rate = soundfile.read(clip, dtype="float32")
    begun = time.monotonic()
    voice = engine.enrol(audio, rate, transcript)
    enrol_s = time.monotonic() - begun
    rows = []
    for index, (language, mode, text) in enumerate(SENTENCES):
        told("sentence", index + 1, len(SENTENCES))
        rows.append(_speak(engine, voice, index, language, mode, text, never))
    can = engine.capabilities()
    seconds = sum(row["audio_seconds"] for row in rows)
    report = {
        "v": 1,
        "at": utc_text(now),
        "machine": machine(),
        "profile": config.profile,
        "device": can.device,
        "dtype": can.dtype,
        "plan": None if engine.plan is None else {
            "fits": engine.plan.fits, "reduced": engine.plan.reduced, "peak_bytes": engine.plan.needs.peak,
        },
        "start": {
            "seconds": round(load_s, 2), **ready,
            "footprint_rss_bytes": footprint.rss_bytes, "footprint_vram_bytes": footprint.vram_bytes,
        },
        "enrol_seconds": round(enrol_s, 2),
        "reference_seconds": round(len(audio) / rate, 2),
        "sentences": rows,
        "rtf": round(sum(row["synthesis_seconds"] for row in rows) / seconds, 3) if seconds else None,
        "first_audio_seconds": rows[-1]["first_audio_seconds"],
        **peak_bytes(),
        "peak_vram_bytes": card_peak(),
        "notices": len(engine.notices),
        "unsound": [row["number"] for row in rows if row["findings"]],
    }  # fmt: skip
    engine.close()
    return report


def _speak(
    engine: CosyVoice3Engine,
    voice: VoiceFeatures,
    index: int,
    language: str,
    mode: Mode,
    text: str,
    never: threading.Event,
) -> dict[str, Any]:
    begun = time.monotonic()
    first: float | None = None
    chunks = []
    options = Options(SEED, 1.0, mode, STYLE if mode == "instruct" else None)
    for chunk in engine.synthesize(Segment(0, text, 0, len(text), 0.0, language), voice, options, never):
        if first is None and len(chunk):
            first = time.monotonic() - begun
        chunks.append(chunk)
    spent = time.monotonic() - begun
    samples = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
    seconds = len(samples) / SAMPLE_RATE
    return {
        "number": index + 1,
        "language": language,
        "mode": mode,
        "audio_seconds": round(seconds, 2),
        "synthesis_seconds": round(spent, 2),
        "first_audio_seconds": None if first is None else round(first, 3),
        "rtf": round(spent / seconds, 3) if seconds else None,
        "peak": round(float(np.abs(samples).max()), 4) if len(samples) else 0.0,
        "findings": judge(samples, text),
        "rss_anon_bytes": peak_bytes()["rss_anon_bytes"],
    }
