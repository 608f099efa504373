"""How much work a call is, counted and not timed: the lines of our own code that it runs.

A count is the same on every machine and under every load, so that a test may say "four times the text, four
times the work". What C code does inside one line (a regular expression, a slice) is not seen: expressions in
pipeline/text are bounded instead, and tests/bench/text.py times the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object], inside: str = "/pipeline/") -> int:
    """Lines executed in files whose path contains `inside` while `call` runs in this thread."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return line(frame, "line", arg) if inside in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
