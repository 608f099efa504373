"""`python -m pipeline.hearing.child FOLDER LANGUAGE`: s16le mono at 16 kHz on stdin, one JSON line out.

A process of its own, so that the page never holds the model; it has no network to ask (`HF_HUB_OFFLINE`), is
at idle priority and ends after `WALL_S`. `hear_in_child` is the other side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.codes import CODES, CosydError
from pipeline.hearing.transcriber import RATE, Heard, Transcriber
from pipeline.model_child import child_environment

WALL_S = 300.0


def hear_in_child(folder: Path, samples: npt.NDArray[np.float32], rate: int, language: str) -> Heard:
    """Write down mono samples. Raises CosydError: `model_missing`, `unsupported_mode`, `deadline`, `internal`
    when the child dies (no memory, perhaps)."""
    import soxr

    mono = np.asarray(soxr.resample(samples, rate, RATE), np.float32)
    pcm = (np.clip(mono, -1, 1) * 32767).astype("<i2").tobytes()
    command = [sys.executable, "-m", "pipeline.hearing.child", str(folder), language]
    environment = child_environment(os.environ) | {"HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, input=pcm, capture_output=True, env=environment, timeout=WALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CosydError("deadline") from None
    try:
        found = json.loads(done.stdout.decode("utf-8").strip().splitlines()[-1])
        if "code" in found:
            code = found["code"] if found["code"] in CODES else "internal"
            raise CosydError(code, **found["params"])
        return Heard(str(found["text"]), str(found["language"]))
    except (ValueError, IndexError, KeyError, TypeError):
        raise CosydError("internal", reason="asr_died") from None


def main(folder: str, language: str) -> None:
    """Read, hear, say."""
    os.nice(10)
    pcm = np.frombuffer(sys.stdin.buffer.read(), "<i2").astype(np.float32) / np.float32(32768)
    try:
        heard = Transcriber(Path(folder)).hear(pcm, RATE, language)
        said: dict[str, object] = {"text": heard.text, "language": heard.language}
    except CosydError as error:
        said = {"code": error.code, "params": error.params}
    sys.stdout.write(json.dumps(said, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
