"""`ensure_schema`: the database is ready after this call. For who runs without a supervisor (`cosyd say`).

Spawns the migrate child, so that the caller never imports sqlite_utils.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from pipeline.codes import CosydError
from pipeline.paths import StatePaths

TIMEOUT_S = 300.0


def migrate_command(paths: StatePaths) -> list[str]:
    """The argument list of the migrate child."""
    return [sys.executable, "-m", "pipeline.store.migrate", "--state", str(paths.root)]


def failure_from_output(stdout: str, exit_status: int) -> CosydError:
    """The CosydError that a migrate or maintenance child reported on its stdout."""
    lines: Sequence[str] = stdout.strip().splitlines()
    try:
        report = json.loads(lines[-1])
        return CosydError(report["code"], **report["params"])
    except (IndexError, ValueError, KeyError, TypeError):
        return CosydError("internal", reason="migrate_died", detail=f"exit status {exit_status}")


def ensure_schema(paths: StatePaths, *, timeout_s: float = TIMEOUT_S) -> None:
    """Run the migrate child and wait. Raises the CosydError it reported: `schema_mismatch`, `storage_full`,
    `storage_busy`, `internal(reason)`."""
    try:
        child = subprocess.run(
            migrate_command(paths),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise CosydError("storage_busy", retry_after_s=5.0) from None
    if child.returncode != 0:
        raise failure_from_output(child.stdout, child.returncode)
