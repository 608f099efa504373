"""`python -m pipeline.engines.builtin.starter_clip --out FILE`: the reference of the starter voice.

A process of its own, since the command line imports no engine. A synthetic voice: nobody has to agree to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading

import numpy as np
import soundfile

from pipeline.codes import CosydError
from pipeline.engines.base import Options, Segment
from pipeline.engines.builtin.engine import BuiltinEngine
from pipeline.jobs import SAMPLE_RATE
from pipeline.profile import Config
from pipeline.voices.starter import SEED, TEXT, VOICE


def main(argv: list[str] | None = None) -> int:
    """Entry of the child: a JSON line `{"result": {"seconds"}}` or `{"error": ...}`."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.engines.builtin.starter_clip", description=__doc__
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="wav to write")
    options = parser.parse_args(argv)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine, never = BuiltinEngine(), threading.Event()
    try:
        engine.load(Config(), never)
        segment = Segment(0, TEXT, 0, len(TEXT), 0.0, "en")
        samples = np.concatenate([*engine.synthesize(segment, VOICE, Options(SEED), never)])
        soundfile.write(options.out, samples, SAMPLE_RATE, "PCM_16", format="WAV")
    except CosydError as error:
        out.write(json.dumps({"error": {"code": error.code, "params": error.params}}, default=str) + "\n")
        return error.info.exit_status
    finally:
        engine.close()
        out.flush()
    out.write(json.dumps({"result": {"seconds": len(samples) / SAMPLE_RATE}}) + "\n")
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
