"""Errors after which a process cannot go on using its card, told apart from those of one text. Pure.

After an illegal memory access or a failed assertion on the device every later CUDA call of the process fails,
while everything else of it looks well (triton-inference-server 3627). Out of memory is not one of them.
"""

from __future__ import annotations

STICKY = (
    "illegal memory access",
    "illegal instruction",
    "illegal address",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "launch timed out",
    "uncorrectable ecc",
    "hardware stack error",
    "invalid program counter",
    "no longer valid",
    "unknown error",
    "driver shutting down",
    "status_execution_failed",
    "status_internal_error",
)
MARKS = ("cuda", "cublas", "cudnn", "nvrtc", "accelerator")


def card_is_gone(error: BaseException) -> bool:
    """Whether only a new process can use the card again."""
    if not isinstance(error, RuntimeError):
        return False
    text = f"{type(error).__name__} {error}".lower()
    if "out of memory" in text or "alloc_failed" in text:
        return False
    return any(mark in text for mark in MARKS) and any(sign in text for sign in STICKY)
