"""The real swap helper for tests: started by its socket, on a small file system of its own, by any user.

`python -m tests.system.swap_helper --kill-at STAGE ...` is the helper, ended by SIGKILL at a step of its
work; `--holes` has it begin with a file full of holes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
MIB = 1024**2
STAGES = ("opened", "allocated", "written", "marked", "linked", "activated")
SHRINK_STAGES = ("shrink_marked", "swapped_off", "unlinked")


def own_swaps(below: Path) -> list[str]:
    """Active swap files below a folder."""
    lines = Path("/proc/swaps").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split()[0] for line in lines if line.startswith(str(below.resolve()) + "/")]


def swap_off_below(below: Path) -> None:
    """Whatever a failed test left in use."""
    for path in own_swaps(below):
        subprocess.run(["swapoff", path.replace("\\040(deleted)", "")], check=False)


@contextmanager
def small_disk(folder: Path, filesystem: str, size: int, *options: str) -> Iterator[Path]:
    """A file system of `size` bytes, loop-mounted on `folder/disk`; nothing of it is left afterwards."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([f"mkfs.{filesystem}", "-q", *options, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield mount
    finally:
        swap_off_below(mount)
        subprocess.run(["umount", str(mount)], check=True)
        image.unlink()


@dataclass
class Helper:
    """A helper behind its socket. `ask` starts it when it does not run, as systemd does."""

    home: Path
    mount: Path
    max_bytes: int = 2048 * MIB
    keep_free_bytes: int = 16 * MIB
    user: str = "nobody"
    flags: Sequence[str] = ()
    wrapper: Sequence[str] = ()
    folder_given: bool = False
    running: subprocess.Popen[bytes] | None = None
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = self.home / "limits.toml"
        self.write_limits()
        self.address = self.home / "swap.sock"
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(str(self.address))
        self.address.chmod(0o666)
        self.door.listen(8)

    @property
    def folder(self) -> Path:
        return self.mount / "cosyd-swap"

    def write_limits(self, **more: object) -> None:
        """The file of root's limits."""
        values: dict[str, object] = {
            "user": self.user,
            "max_bytes": self.max_bytes,
            "keep_free_bytes": self.keep_free_bytes,
            **more,
        }
        self.limits.write_text(
            "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()), encoding="utf-8"
        )
        self.limits.chmod(0o644)

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start it with the listening socket as descriptor 3."""
        self.stop()
        module = ["-m", "tests.system.swap_helper"] if (*self.flags, *flags) else ["-m", "daemon.swap.helper"]
        arguments = ["--folder", str(self.folder), "--limits", str(self.limits)]
        command = [sys.executable, *module, *self.flags, *flags, *arguments]
        script = 'exec 3<&"$1" 4<&0 </dev/null; shift; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
        fd = self.door.fileno()
        stdin = os.open(self.folder if self.folder_given else os.devnull, os.O_RDONLY)
        try:
            self.running = subprocess.Popen(
                [*self.wrapper, "bash", "-c", script, "helper", str(fd), *command],
                cwd=CHECKOUT,
                pass_fds=[fd],
                stdin=stdin,
            )
        finally:
            os.close(stdin)
        return self.running

    def ask(self, request: object, *, uid: int = 0, flags: Sequence[str] = ()) -> dict[str, Any] | None:
        """One request as user `uid`; None when the helper died over it."""
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        if self.running is None or self.running.poll() is not None:
            self.start(*flags)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # SO_PEERCRED tells who connected: it has to be somebody else's process
            try:
                os.chdir(self.home)  # the folders above are closed to that user
                os.setgid(uid)
                os.setuid(uid)
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(60)
                    sock.connect(self.address.name)
                    sock.sendall(line)
                    answer = b""
                    while more := sock.recv(65536):
                        answer += more
                os.write(writer, answer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            text = file.read()
        os.waitpid(child, 0)
        if not text and self.running is not None:
            # Its socket is closed before the kernel is done with it; only then is the next one started.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running.wait(timeout=10)
        answer = json.loads(text) if text else None
        assert answer is None or isinstance(answer, dict)
        return answer

    def set(self, size: int, **more: Any) -> dict[str, Any]:
        """Ask for `size` bytes; the minute between two changes is not waited for."""
        (self.folder / "last-change").unlink(missing_ok=True)
        answer = self.ask({"v": 1, "op": "set", "own_bytes": size}, **more)
        assert answer is not None
        return answer

    def status(self, **more: Any) -> dict[str, Any]:
        """What it says about itself."""
        answer = self.ask({"v": 1, "op": "status"}, **more)
        assert answer is not None
        return answer

    def files(self) -> list[str]:
        """What lies in its folder, but for the note of its last change."""
        return sorted(set(os.listdir(self.folder)) - {"last-change"}) if self.folder.exists() else []

    def stop(self) -> None:
        """End it."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self.running = None

    def close(self) -> None:
        """At the end of a test."""
        self.stop()
        swap_off_below(self.mount)
        self.door.close()


def main() -> int:
    """The helper with an accident."""
    from daemon.swap import folder, helper

    arguments = sys.argv[1:]
    if arguments[0] == "--kill-at":
        fatal = arguments[1]
        arguments = arguments[2:]

        def stage(name: str) -> None:
            if name == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        folder.stage = stage
    elif arguments[0] == "--holes":
        arguments = arguments[1:]
        folder.allocate = os.truncate
    return helper.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
