"""No traceback of a library on our stderr: its message may quote what somebody wants spoken.

Gradio prints one for each call with wrong inputs, with the inputs in it. What is left tells where to look.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import Any

log = logging.getLogger("cosyd.web")


def print_exc(limit: int | None = None, file: Any = None, chain: bool = True) -> None:
    """In place of `traceback.print_exc`: one line with the kind of the error and its place."""
    error = sys.exc_info()[1]
    if error is None:
        return
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    log.warning("a call failed: %s at %s", type(error).__name__, where)


def silence_tracebacks() -> None:
    """For this whole process."""
    traceback.print_exc = print_exc
