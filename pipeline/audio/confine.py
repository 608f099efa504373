"""Bounds that a process puts on itself, and its children, before it opens what a stranger sent. Linux only.

Limits (memory, CPU, files) hold everywhere. No sockets and no looking into other processes (seccomp), and no
file but what it was handed and the system's programs and libraries (Landlock), hold where the kernel has
them: they are a second wall behind what the decoders are told, so a kernel without them is no reason to stop.
None of it can be taken back. Called by `pipeline.audio.decode_child`, which has one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2  # linux/prctl.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3  # linux/landlock.h
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many file rights each version of Landlock knows; 16 from version 5 on."""
_EACCES = 13

# AUDIT_ARCH and the calls that are refused: sockets, io_uring (which opens sockets by itself), the memory of
# other processes. Numbers: the kernel's syscall tables.
_REFUSED = {
    "x86_64": (0xC000003E, (41, 42, 49, 53, 425, 101, 310, 311)),
    "aarch64": (0xC00000B7, (198, 203, 200, 199, 425, 117, 270, 271)),
}

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.preload")
"""Programs and libraries, and what the loader reads."""


@dataclass(frozen=True, slots=True)
class Limits:
    """CPU time, address space, open files. Files cannot be written at all, cores are not dumped."""

    cpu_s: int
    memory_bytes: int
    open_files: int = 64


def confine(limits: Limits, readable: Iterable[str] = (), handed: Iterable[int] = ()) -> tuple[str, ...]:
    """Put the bounds on, and end with the parent; which of `limits`, `no_network`, `no_files` hold.

    `readable`: folders and files that may be read and run besides `SYSTEM`. `handed`: descriptors of files
    that may be opened again by their `/dev/fd` name.
    """
    for kind, value in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    held = ["limits"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        if _restrict_files(libc, [*SYSTEM, *readable], handed):
            held.append("no_files")
        if _refuse_calls(libc):
            held.append("no_network")
    return tuple(held)


def _restrict_files(libc: ctypes.CDLL, readable: Iterable[str], handed: Iterable[int]) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = struct.pack("=Q", (1 << _RIGHTS.get(version, 16)) - 1)
    ruleset = libc.syscall(_CREATE_RULESET, rights, ctypes.c_size_t(len(rights)), 0)
    if ruleset < 0:
        return False
    try:
        for path in dict.fromkeys(readable):
            with contextlib.suppress(OSError):
                _allow_path(libc, ruleset, path, _READ_FILE | _EXECUTE)
        with contextlib.suppress(OSError):
            _allow_path(libc, ruleset, "/dev/null", _READ_FILE | _WRITE_FILE)
        with contextlib.suppress(OSError):
            _allow_path(libc, ruleset, "/dev/urandom", _READ_FILE)
        for fd in handed:
            _allow(libc, ruleset, fd, _READ_FILE)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow_path(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _allow(libc, ruleset, fd, rights | (_READ_DIR if Path(path).is_dir() else 0))
    finally:
        os.close(fd)


def _allow(libc: ctypes.CDLL, ruleset: int, fd: int, rights: int) -> None:
    """A rule of kind 1: what lies beneath an open file or folder."""
    libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0)


def _refuse_calls(libc: ctypes.CDLL) -> bool:
    """A seccomp filter: the calls of `_REFUSED` fail with EACCES, as do those of a foreign architecture."""
    known = _REFUSED.get(platform.machine())
    if known is None or struct.calcsize("P") != 8:
        return False
    architecture, calls = known
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
    refuse, allow = 0x00050000 | _EACCES, 0x7FFF0000  # linux/seccomp.h
    last = 5 + len(calls)  # the line that refuses; jumps count from the line after their own
    lines = [
        (load, 0, 0, 4),  # the architecture of the call
        (equal, 0, last - 2, architecture),
        (load, 0, 0, 0),  # its number
        (at_least, last - 4, 0, 0x40000000),  # x32, which has numbers of its own
        *((equal, last - i - 1, 0, number) for i, number in enumerate(calls, 4)),
        (answer, 0, 0, allow),
        (answer, 0, 0, refuse),
    ]
    filters = b"".join(struct.pack("=HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(filters)
    program = struct.pack("@HP", len(lines), ctypes.addressof(held))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0)
