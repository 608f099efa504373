"""Small helpers for tests of audio: segments that say a number, and a worker's files by hand."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import numpy as np

from pipeline.audio.files import SegmentWriter, to_int16
from pipeline.engines.base import Options, Segment
from tests.engines.numbers import NumbersEngine


def number_segment(number: int, *, seed: int = 1, pause_s: float = 0.05) -> np.ndarray:
    """int16 samples in which the numbers engine says `number`."""
    segment = Segment(0, f"Number {number}.", 0, 10, pause_s)
    chunks = NumbersEngine().synthesize(segment, "numbers", Options(seed=seed), threading.Event())
    return to_int16(np.concatenate(list(chunks)))


def write_segment(job_dir: Path, idx: int, samples: np.ndarray) -> None:
    """A finished segment file."""
    with SegmentWriter(job_dir, idx) as writer:
        writer.append_int16(samples)
        writer.finish()


def comments(path: Path) -> list[str]:
    """Every comment that ffprobe finds in a file, of the container or of its stream."""
    command = ["ffprobe", "-v", "error", "-of", "json", "-show_entries", "format_tags:stream_tags", str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    tags = [found["format"].get("tags", {}), *(stream.get("tags", {}) for stream in found["streams"])]
    return [value for tag in tags for name, value in tag.items() if name.lower() == "comment"]
