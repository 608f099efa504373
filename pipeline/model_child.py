"""Starts the engine's helper processes for `cosyd model` and reads what they say. Imports no engine.

The children: `pipeline.engines.cosyvoice3.tool` (torch), `pipeline.engines.builtin.starter_clip` (the
built-in voice). They end with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.codes import CODES, CosydError
from pipeline.paths import StatePaths
from pipeline.planning.environment import PRIMITIVES
from pipeline.profile import Config, to_json

TOOL, STARTER = "pipeline.engines.cosyvoice3.tool", "pipeline.engines.builtin.starter_clip"
ENDING_S = 5.0

Told = Callable[[str, int, int], None]


def silent(name: str, done: int, total: int) -> None:
    """Told nothing."""


def run_tool(
    task: str,
    folder: Path,
    paths: StatePaths,
    config: Config,
    told: Told = silent,
    arguments: Sequence[str] = (),
    module: str = TOOL,
) -> dict[str, Any]:
    """The result of one task, see `tool`. Raises CosydError: what the child says, `internal` when it dies."""
    command = [
        sys.executable, "-m", module, task, "--folder", str(folder),
        "--cache", str(paths.root / "cache" / "cosyvoice3"), "--config", to_json(config), *arguments,
    ]  # fmt: skip
    return read_child(command, told)


def read_child(command: Sequence[str], told: Told = silent) -> dict[str, Any]:
    """Run a child that speaks JSON lines. Raises CosydError."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=child_environment(os.environ), text=True, encoding="utf-8",
    ) as child:  # fmt: skip
        result: dict[str, Any] | None = None
        error: CosydError | None = None
        try:
            for line in child.stdout or ():
                found = json.loads(line)
                if "progress" in found:
                    told(*found["progress"])
                elif "result" in found:
                    result = found["result"]
                elif found["error"]["code"] in CODES:
                    error = CosydError(found["error"]["code"], **found["error"]["params"])
            trouble = child.stderr.read() if child.stderr else ""
            status = child.wait()
        except BaseException:
            _end(child)
            raise
    if error is not None:
        raise error
    if result is None or status != 0:
        if status == -signal.SIGKILL:
            raise CosydError("out_of_memory", resource="ram", detail="SIGKILL")
        last = trouble.strip().splitlines()[-1:] or [f"exit status {status}"]
        raise CosydError("internal", reason="tool_died", detail=last[0][:300])
    return result


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(ENDING_S)
    if child.poll() is None:
        child.kill()


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the packages found where they are, whatever the person's folder holds."""
    root = str(Path(__file__).resolve().parents[1])
    python_path = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
    return {**PRIMITIVES, **environ, "PYTHONPATH": python_path, "PYTHONSAFEPATH": "1"}
