"""tests.turns with real processes: who runs alone really does, and is not overtaken for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.turns import turn

ROOT = Path(__file__).parents[2]
OTHER = """
import sys
from pathlib import Path
from tests.turns import turn
with turn(Path(sys.argv[1]), alone=sys.argv[2] == "alone"):
    print("in", flush=True)
    sys.stdin.readline()
"""


def other(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)
    assert process.returncode == 0


def waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    """Does the kernel list this process among those that wait for a file lock (a line with `->`)?"""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any(line.split()[1] == "->" and f" {process.pid} " in line for line in lines)


def test_ordinary_tests_run_side_by_side_and_one_that_is_alone_waits_for_them(tmp_path: Path) -> None:
    first, second = other(tmp_path, "shared"), other(tmp_path, "shared")
    assert first.stdout and second.stdout
    assert first.stdout.readline() == second.stdout.readline() == "in\n"
    alone = other(tmp_path, "alone")
    while not waits_for_a_lock(alone):
        assert alone.poll() is None
    late = other(tmp_path, "shared")  # comes after the one that waits: must not pass it
    while not waits_for_a_lock(late):
        assert late.poll() is None
    leave(first)
    leave(second)
    assert alone.stdout and late.stdout
    assert alone.stdout.readline() == "in\n"
    assert waits_for_a_lock(late)
    leave(alone)
    assert late.stdout.readline() == "in\n"
    leave(late)


def test_a_killed_process_gives_its_turn_back(tmp_path: Path) -> None:
    dead = other(tmp_path, "alone")
    assert dead.stdout
    assert dead.stdout.readline() == "in\n"
    dead.kill()
    dead.communicate()
    with turn(tmp_path, alone=True):
        pass
