"""The thin shell: files below a root, and commands that may take so long and no longer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

COMMAND_S = 10.0
OUTPUT_BYTES = 256 * 1024
FILE_BYTES = 1024 * 1024
GRACE_S = 0.5
_stuck: list[subprocess.Popen[bytes]] = []
"""Commands that hang in the kernel: they cannot be reaped, and must not be waited for."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended; `status` is None when it was still running at its deadline."""

    status: int | None
    out: str = ""
    err: str = ""

    @property
    def text(self) -> str:
        """Both outputs: nvidia-smi and mokutil complain on either."""
        return f"{self.out}\n{self.err}"


class Host(Protocol):
    """What the reader asks. Nothing here raises; None is "cannot be read"."""

    root: Path

    @property
    def machine(self) -> str: ...
    def text(self, path: str) -> str | None: ...
    def data(self, path: str) -> bytes | None: ...
    def exists(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...
    def target(self, path: str) -> str | None: ...
    def disk(self, path: str) -> tuple[int, int] | None: ...
    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Ran | None: ...


class RealHost:
    """This machine, or a tree that looks like one (`root`). Commands come from PATH, speak English, and are
    ended with all they started when their time is over."""

    def __init__(self, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> None:
        self.root, self.environ = root, environ

    @property
    def machine(self) -> str:
        """As `uname -m` says."""
        return os.uname().machine

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """A file as text; odd bytes are replaced."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace")

    def data(self, path: str) -> bytes | None:
        """A file's first megabyte."""
        try:
            with self._at(path).open("rb") as file:
                return file.read(FILE_BYTES)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Also true for a link that leads nowhere: who put it there meant something."""
        return os.path.lexists(self._at(path))

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted."""
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError:
            return []

    def target(self, path: str) -> str | None:
        """The last name of what a link leads to in the end."""
        here = self._at(path)
        if not here.is_symlink():
            return None
        return Path(os.path.realpath(here)).name

    def disk(self, path: str) -> tuple[int, int] | None:
        """(free, total) bytes where `path` is, or would be."""
        here = Path(path)
        try:
            there = next(folder for folder in (here, *here.parents) if folder.exists())
            found = shutil.disk_usage(there)
        except (OSError, StopIteration):
            return None
        return found.free, found.total

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Ran | None:
        """Run a command; None when there is no such program."""
        program = shutil.which(command[0], path=self.environ.get("PATH"))
        if program is None:
            return None
        environ = {**self.environ, "LC_ALL": "C", "LANGUAGE": "C"}
        try:
            child = subprocess.Popen(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env=environ, start_new_session=True,
            )  # fmt: skip
        except OSError:
            return None
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(child)
            return Ran(None)
        return Ran(child.returncode, _shown(out), _shown(err))


def _shown(data: bytes) -> str:
    return data[:OUTPUT_BYTES].decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _stuck.append(child)
