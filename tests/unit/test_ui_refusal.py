"""Who is refused while other programs hold the memory."""

from __future__ import annotations

from typing import Any

import pytest

from ui.errors import error_response
from ui.refusal import RETRY_AFTER_S, refusal


def state(worker: str, resource: str, level: str) -> dict[str, Any]:
    return {
        "engines": {"cosyvoice3": {"state": worker}},
        "pressure": {"foreign": [{"name": "ollama", "bytes": 8 * 2**30, "resource": resource}]},
        resource: {"level": level},
    }


@pytest.mark.parametrize(
    ("engine", "worker", "resource", "level", "refused"),
    [
        ("cosyvoice3", "absent", "ram", "low", True),
        ("cosyvoice3", "waiting_memory", "ram", "critical", True),
        ("cosyvoice3", "ready", "ram", "low", False),  # it is loaded: it works on
        ("cosyvoice3", "ready", "ram", "critical", True),  # not into the OOM killer's arms
        ("cosyvoice3", "absent", "vram", "low", True),
        ("cosyvoice3", "ready", "vram", "critical", False),
        ("builtin", "absent", "vram", "critical", False),  # it needs no card
        ("builtin", "absent", "ram", "low", True),
        ("cosyvoice3", "absent", "ram", "ok", False),
        ("cosyvoice3", "absent", "ram", "unknown", False),
    ],
)
def test_others_memory_refuses_what_would_be_loaded_first(
    engine: str, worker: str, resource: str, level: str, refused: bool
) -> None:
    error = refusal(state(worker, resource, level), engine)
    assert (error is not None) is refused
    if error is not None:
        assert error.code == "foreign_memory" and error.params["name"] == "ollama"
        answer = error_response(error, "en")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, str(round(RETRY_AFTER_S)))
        assert b"ollama" in answer.body


def test_nobody_is_refused_for_what_is_not_known() -> None:
    assert refusal({}, "builtin") is None
    assert refusal({"engines": {"builtin": {"state": "waiting_memory"}}}, "builtin") is None, "it waits"
