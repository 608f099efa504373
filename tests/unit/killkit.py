"""A process that ends itself with SIGKILL at a chosen call, so that each moment of a change can be tried."""

from __future__ import annotations

KILL_AT = """
import os, signal

def kill_at(left, names):
    \"\"\"SIGKILL at the call number `left` (from 0) of the functions of `os` with these names.\"\"\"
    def counted(function):
        def wrapper(*args, **named):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **named)
        return wrapper
    for name in names:
        setattr(os, name, counted(getattr(os, name)))
"""
"""Source that a test's program begins with."""
