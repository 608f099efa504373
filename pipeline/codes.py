"""The closed set of error codes (CONTRACTS 7) and the one exception that carries them.

Every part uses these: API `error.code`, row `error_code`, RPC `data.code`, log fields, exit codes. What a
person reads is rendered at the edge by `pipeline.messages` from `code` and `params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EX_USAGE = 2  # bad value given by the person
EX_SOFTWARE = 70  # our fault
EX_TEMPFAIL = 75  # try again later
EX_CONFIG = 78  # permanent: listed in RestartPreventExitStatus


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """HTTP status and process exit status of one code; `http` is None for codes that only stand in rows."""

    http: int | None
    exit_status: int
    retry_after: bool = False


CODES: Mapping[str, CodeInfo] = {
    **{
        c: CodeInfo(400, EX_USAGE)
        for c in (
            "empty_text",
            "text_too_long",
            "unknown_voice",
            "unknown_format",
            "bad_value",
            "unsupported_mode",
            "bad_audio",
        )
    },
    "unauthorized": CodeInfo(401, EX_USAGE),
    "not_found": CodeInfo(404, EX_USAGE),
    "misdirected": CodeInfo(421, EX_USAGE),
    "queue_full": CodeInfo(429, EX_TEMPFAIL, retry_after=True),
    **{
        c: CodeInfo(503, EX_TEMPFAIL, retry_after=True)
        for c in (
            "waiting_memory",
            "foreign_memory",
            "engine_failed",
            "model_missing",
            "storage_full",
            "storage_busy",
            "shutting_down",
        )
    },
    "deadline": CodeInfo(504, EX_TEMPFAIL),
    "cancelled": CodeInfo(None, EX_TEMPFAIL),
    **{c: CodeInfo(500, EX_SOFTWARE) for c in ("out_of_memory", "worker_died", "bad_take", "internal")},
    "schema_mismatch": CodeInfo(None, EX_TEMPFAIL),
    "unsafe_bind": CodeInfo(None, EX_CONFIG),
    "config_error": CodeInfo(None, EX_CONFIG),
}


class CosydError(Exception):
    """A failure with a stable code; `params` fill the message template of that code.

    `retry_after_s` is set where the code asks the client to come again.
    """

    def __init__(self, code: str, *, retry_after_s: float | None = None, **params: Any) -> None:
        if code not in CODES:
            raise ValueError(f"unknown code {code!r}")
        super().__init__(f"{code} {params}" if params else code)
        self.code = code
        self.params: dict[str, Any] = params
        self.retry_after_s = retry_after_s

    @property
    def info(self) -> CodeInfo:
        """HTTP and exit status of this code."""
        return CODES[self.code]
