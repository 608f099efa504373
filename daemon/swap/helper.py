"""The swap helper: root, started by its socket, one request and one answer per connection, then gone.

`python -I -m daemon.swap.helper --folder DIR --limits FILE` with a listening socket as descriptor 3
(sd_listen_fds(3)). A request is a line of JSON: `{"v":1,"op":"status"}` or `{"v":1,"op":"set","own_bytes":N}`
for N bytes of swap of our own in all. Sizes, never paths: where the files lie and how large they may be
stands in the unit and in a file that only root can write. Whatever is not allowed is answered with a reason.
With `--clean` it takes away what a killed run left, and ends. Standard library only; of cosyd it imports
nothing but its own two modules.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import select
import socket
import stat
import struct
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.swap import folder as folders
from daemon.swap import kernel
from daemon.swap.folder import MIN_FILE_BYTES, Refused, SwapFolder

IDLE_S = 10.0
"""It stays for so long, so that no caller can start it more often than systemd allows."""
REQUEST_S = 5.0
REQUEST_BYTES = 4096
CHANGE_EVERY_S = 60.0
STAMP = "last-change"
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Limits:
    """What root allows: who may ask, how much swap of ours, how much of the disk stays free."""

    user: str = "cosyd"
    max_bytes: int = 0
    keep_free_bytes: int = 2048 * MIB
    allow_with_hibernation: bool = False


def read_limits(path: Path) -> Limits:
    """Raises Refused(no_limits): not there, not root's alone, or not right."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if (
                found.st_uid != 0
                or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                or not stat.S_ISREG(found.st_mode)
            ):
                raise Refused("no_limits", path=str(path))
            given = tomllib.load(file)
        limits = Limits(**given)
    except (OSError, ValueError, TypeError):
        raise Refused("no_limits", path=str(path)) from None
    sizes = (limits.max_bytes, limits.keep_free_bytes)
    if any(type(size) is not int or size < 0 for size in sizes) or type(limits.user) is not str:
        raise Refused("no_limits", path=str(path))
    return limits


def parse(line: bytes) -> int | None:
    """The size that is asked for, None for a question. Raises Refused(bad_request)."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise Refused("bad_request") from None
    if not isinstance(request, dict) or request.get("v") != 1:
        raise Refused("bad_request")
    if request == {"v": 1, "op": "status"}:
        return None
    size = request.get("own_bytes")
    if (
        request.keys() != {"v", "op", "own_bytes"}
        or request["op"] != "set"
        or type(size) is not int
        or size < 0
    ):
        raise Refused("bad_request")
    return size - size % MIB


def may_ask(uid: int, limits: Limits) -> bool:
    """Root and the service's user."""
    try:
        return uid in (0, pwd.getpwnam(limits.user).pw_uid)
    except KeyError:
        return uid == 0


class Helper:
    """Answers requests. `root` is where /proc and /sys are read."""

    def __init__(self, folder: Path, limits: Path, root: Path = Path("/")) -> None:
        self._folder, self._limits, self._root = folder, limits, root

    def answer(self, uid: int, line: bytes) -> dict[str, Any]:
        """The answer to one request of user `uid`."""
        try:
            limits = read_limits(self._limits)
            if not may_ask(uid, limits):
                raise Refused("not_allowed")
            target = parse(line)
            folder = SwapFolder(self._folder, self._root)
            try:
                folder.clean()
                before = self._status(folder, limits)
                if target is None:
                    return {"v": 1, "ok": True, **before}
                try:
                    self._set(folder, limits, target)
                except Refused as refused:
                    return {**self._status(folder, limits), **_refusal(refused)}
                after = self._status(folder, limits)
                log(f"swap of our own: {before['own_bytes'] // MIB} MiB, now {after['own_bytes'] // MIB} MiB")
                return {"v": 1, "ok": True, "before_bytes": before["own_bytes"], **after}
            finally:
                folder.close()
        except Refused as refused:
            return _refusal(refused)
        except OSError as error:
            log(f"failed: {error}")
            return _refusal(Refused("failed", error=error.errno or 0))

    def _status(self, folder: SwapFolder, limits: Limits) -> dict[str, Any]:
        own, others = folder.look()
        total, available = kernel.memory(self._root) or (None, None)
        return {
            "own_bytes": sum(file.bytes for file in own if file.active),
            "own_used_bytes": sum(file.used_bytes for file in own),
            "inactive_bytes": sum(file.bytes for file in own if not file.active),
            "others": [
                {"kind": swap.kind, "bytes": swap.bytes, "used_bytes": swap.used_bytes} for swap in others
            ],
            "max_bytes": limits.max_bytes,
            "keep_free_bytes": limits.keep_free_bytes,
            "disk_free_bytes": folder.free_bytes(),
            "filesystem": folder.filesystem(),
            "ram_total_bytes": total,
            "ram_available_bytes": available,
            "obstacle": self._obstacle(folder, limits),
        }

    def _obstacle(self, folder: SwapFolder, limits: Limits) -> str | None:
        """Why no swap can be added on this machine at all; None when it can."""
        if kernel.in_container(self._root):
            return "container"
        if folder.filesystem() not in kernel.GOOD:
            return "filesystem"
        if kernel.hibernates(self._root) and not limits.allow_with_hibernation:
            return "hibernation"
        return None

    def _set(self, folder: SwapFolder, limits: Limits, target: int) -> None:
        if target > limits.max_bytes:
            raise Refused("above_ceiling", max_bytes=limits.max_bytes, asked_bytes=target)
        own = folder.look()[0]
        active, idle = [f for f in own if f.active], [f for f in own if not f.active]
        have = _sum(active)
        if target < have:
            stays = folders.kept(active, target)
            self._may_shrink([file for file in active if file not in stays])
        else:
            stays = active + folders.kept(idle, target - have)
        goes = [file for file in own if file not in stays]
        new = target - _sum(stays)
        if new < max(MIN_FILE_BYTES, target // 64):
            new = 0
        if not (new or goes or any(file in stays for file in idle)):
            return
        if target > have and (obstacle := self._obstacle(folder, limits)):
            raise Refused(obstacle, filesystem=folder.filesystem())
        room = folder.free_bytes() + _sum(file for file in goes if not file.active)
        if new and room - new < limits.keep_free_bytes:
            raise Refused("disk_full", need_bytes=new, free_bytes=room, keep_bytes=limits.keep_free_bytes)
        self._take_turn(folder)
        # New before old: the machine is never without the swap that it had.
        for file in goes:
            if not file.active:
                folder.remove(file)
        for file in stays:
            if not file.active:
                folder.resume(file)
        if new:
            folder.add(new)
        for file in goes:
            if file.active:
                folder.remove(file)

    def _may_shrink(self, goes: Sequence[folders.OwnFile]) -> None:
        """Raises Refused(ram_short) unless RAM can take all pages of what goes, with LOW's distance left."""
        used = sum(file.used_bytes for file in goes)
        found = kernel.memory(self._root)
        if found is None:
            raise Refused("ram_short", used_bytes=used, available_bytes=0)
        total, available = found
        if used and available - used < max(total // 10, 384 * MIB):
            raise Refused("ram_short", used_bytes=used, available_bytes=available)

    def _take_turn(self, folder: SwapFolder) -> None:
        """One change a minute. Written before the change, so that a killed one counts. Raises
        Refused(too_soon)."""
        now, boot = time.clock_gettime(time.CLOCK_BOOTTIME), kernel.boot_id(self._root)
        fd = os.open(STAMP, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder.fd)
        with os.fdopen(fd, "r+", encoding="ascii", errors="replace") as file:
            words = file.read(200).split()
            try:
                since = now - float(words[1]) if len(words) == 2 and words[0] == boot else CHANGE_EVERY_S
            except ValueError:
                since = CHANGE_EVERY_S
            if 0 <= since < CHANGE_EVERY_S:
                raise Refused("too_soon", retry_after_s=round(CHANGE_EVERY_S - since, 1))
            file.seek(0)
            file.truncate()
            file.write(f"{boot} {now:.1f}\n")


def _sum(files: Iterable[folders.OwnFile]) -> int:
    return sum(file.bytes for file in files)


def _refusal(refused: Refused) -> dict[str, Any]:
    return {"v": 1, "ok": False, "reason": refused.reason, "params": refused.params}


def log(line: str) -> None:
    """Into the journal."""
    print(line, file=sys.stderr, flush=True)


def serve(conn: socket.socket, answer: Callable[[int, bytes], Mapping[str, Any]]) -> None:
    """One request, one answer. Who is asking is what the kernel says (SO_PEERCRED)."""
    uid = struct.unpack("=iII", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    end = time.monotonic() + REQUEST_S
    line = b""
    while not line.endswith(b"\n") and len(line) <= REQUEST_BYTES:
        conn.settimeout(max(0.01, end - time.monotonic()))
        more = conn.recv(REQUEST_BYTES)
        if not more:
            break
        line += more
    conn.settimeout(REQUEST_S)
    conn.sendall(json.dumps(answer(uid, line)).encode() + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Until nobody has asked for a while."""
    parser = argparse.ArgumentParser(prog="cosyd-swap", description="Makes and removes cosyd's swap files.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limits", type=Path, required=True)
    parser.add_argument("--clean", action="store_true")
    options = parser.parse_args(argv)
    os.umask(0o077)
    if options.clean:
        if options.folder.exists():
            folder = SwapFolder(options.folder)
            folder.clean()
            folder.close()
        return 0
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        log("it is started by its socket: systemctl start cosyd-swap.socket")
        return 64
    helper = Helper(options.folder, options.limits)
    with socket.socket(fileno=3) as door:
        while select.select([door], [], [], IDLE_S)[0]:
            conn, _ = door.accept()
            with conn:
                try:
                    serve(conn, helper.answer)
                except OSError as error:
                    log(f"a caller went away: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
