"""Whether a new job would only make a machine worse that other programs have filled. Pure.

`ui.jobs` asks before it accepts. A voice engine that must be loaded first is not, as long as others hold the
memory (the supervisor would not start it); one that is loaded works on until RAM is CRITICAL. All else that
takes time, waiting for our own memory too, is no reason to refuse: the job waits in its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.codes import CosydError
from pipeline.planning.environment import TORCH_ENGINES

RETRY_AFTER_S = 15.0
LOADED = frozenset({"starting", "ready", "draining"})


def refusal(state: Mapping[str, Any], engine: str) -> CosydError | None:
    """`state` is what the supervisor told last; an empty one refuses nobody."""
    worker = (state.get("engines") or {}).get(engine) or {}
    for found in (state.get("pressure") or {}).get("foreign") or ():
        resource = found["resource"]
        level = (state.get(resource) or {}).get("level")
        if level not in ("low", "critical") or (resource == "vram" and engine not in TORCH_ENGINES):
            continue
        if worker.get("state") in LOADED and (resource, level) != ("ram", "critical"):
            continue
        return CosydError(
            "foreign_memory", resource=resource, name=found["name"], bytes=found["bytes"],
            retry_after_s=RETRY_AFTER_S,
        )  # fmt: skip
    return None
