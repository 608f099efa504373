"""A state folder on a share, as a real process sees it: no database is made there, recordings may lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.paths import StatePaths
from pipeline.store.ensure import migrate_command
from tests.unit.test_store_place import line

pytestmark = pytest.mark.root


def started(tmp_path: Path, point: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """`command` as a process to which `point` looks like a mount of a share."""
    fake = tmp_path / "mountinfo"
    fake.write_text(Path("/proc/self/mountinfo").read_text() + line(str(point), "nfs4", "nas:/share") + "\n")
    # The shell becomes the command, so that the file in its own folder of /proc stays the fake one.
    script = 'mount --bind "$1" "/proc/$$/mountinfo" && shift && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(fake), *command],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.startswith("COSYD_")},
    )  # fmt: skip


def test_a_real_process_makes_no_database_on_a_share_and_nothing_else_there(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    done = started(tmp_path, share, migrate_command(StatePaths.at(share / "state", {})))
    assert done.returncode == 78, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["code"], told["params"]["reason"]) == ("config_error", "network_filesystem")
    assert "Traceback" not in done.stderr
    supervisor = [sys.executable, "-m", "daemon.supervisor", "--state", str(share / "state"), "--port", "0"]
    done = started(tmp_path, share, supervisor)
    assert done.returncode == 78, done.stderr
    assert "nfs4" in done.stderr
    assert list(share.iterdir()) == []


def test_recordings_and_models_may_lie_on_a_share(tmp_path: Path) -> None:
    share, paths = tmp_path / "share", StatePaths.at(tmp_path / "state", {})
    for name in ("outputs", "models"):
        (share / name).mkdir(parents=True)
        paths.root.mkdir(exist_ok=True)
        (paths.root / name).symlink_to(share / name)
    done = started(tmp_path, share, migrate_command(paths))
    assert done.returncode == 0, done.stderr
    assert paths.database.exists()
