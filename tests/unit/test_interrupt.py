"""Ctrl+C at a moment when nothing has begun: no traceback, exit status 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SLOW = """
import os, signal
os.write({fd}, b"x")
while True:
    signal.pause()
"""


@contextmanager
def stuck_in_import(package: str, folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `command` that has come to the import of `package` and does not get further."""
    read_fd, write_fd = os.pipe()
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(SLOW.format(fd=write_fd))
    child = subprocess.Popen(
        [sys.executable, *command], pass_fds=[write_fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(folder), "COSYD_WYOMING__PORT": "0"},
    )  # fmt: skip
    os.close(write_fd)
    try:
        assert os.read(read_fd, 1) == b"x", child.communicate()
        yield child
    finally:
        os.close(read_fd)
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("click", ("-m", "daemon.cli.entry", "status")),
        ("apscheduler", ("-m", "daemon.supervisor", "--state", "{state}")),
    ],
)
def test_ctrl_c_while_it_imports_ends_quietly(tmp_path: Path, package: str, command: tuple[str, ...]) -> None:
    args = [part.format(state=tmp_path / "state") for part in command]
    with stuck_in_import(package, tmp_path, *args) as child:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
        assert (child.returncode, out, err) == (130, "", "")


HELD = """
import os, signal, sys
from daemon import interrupt
interrupt.hold()
os.kill(os.getpid(), signal.SIGINT)
print("before", flush=True)
os.execv(sys.executable, [sys.executable, "-c", '''
print("after", flush=True)
from daemon import interrupt
interrupt.end_quietly()
print("never")
'''])
"""


def test_ctrl_c_between_two_programs_reaches_the_second() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, "before\nafter\n", "")


def test_an_ignored_ctrl_c_stays_ignored_and_a_command_gets_its_own_back() -> None:
    code = """
import os, signal
from daemon import interrupt
signal.signal(signal.SIGINT, signal.SIG_IGN)
interrupt.end_quietly(); interrupt.raise_again()
os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.SIG_DFL)
interrupt.end_quietly(); interrupt.raise_again()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("raised")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "raised\n", "")
