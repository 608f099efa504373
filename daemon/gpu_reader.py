"""The supervisor's side of `daemon.gpu_helper`: asks without waiting, gives the last answer while it is
fresh.

A helper that does not answer within its deadline is killed, and the card is unknown until it answers again.
Without a GPU worker the helper is ended between looks, and a sleeping card is not woken for them: an open
handle alone keeps a laptop's card awake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from daemon import gpu_states
from daemon.gpu_cards import Capability
from daemon.loop import READ, Loop, Timer
from daemon.sample import VramReading
from pipeline.planning.torch_build import highest_capability, installed_build, lowest_capability
from pipeline.profile import Config
from pipeline.profile.config import Guard as GuardConfig

FRESH_S = 5.0
CALM_EVERY_S = 2.0
"""While a loaded worker has nothing to do and memory is well; half the cost of a look each second."""
DEFAULTS = GuardConfig()
REAP_S, REAP_MAX_S = 0.2, 30.0
LIBRARY = "libnvidia-ml.so.1"


def has_card(root: Path = Path("/"), environ: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether there is an NVIDIA driver to ask, without loading anything."""
    if (root / "proc/driver/nvidia").exists():
        return True
    folders = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "usr/lib",
        "usr/lib/wsl/lib",
    ]
    folders += [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    return any((root / folder / LIBRARY).exists() for folder in folders)


def asleep(root: Path = Path("/")) -> bool:
    """Whether every NVIDIA card is suspended by runtime power management."""
    states = []
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text("ascii").strip() == "0x10de" and (
                (vendor.parent / "class").read_text("ascii").startswith("0x03")
            ):
                states.append((vendor.parent / "power/runtime_status").read_text("ascii").strip())
        except OSError:
            continue
    return bool(states) and all(state == "suspended" for state in states)


def reading_from(answer: Mapping[str, Any]) -> VramReading | str:
    """A reading, or the word for what is wrong."""
    if "error" in answer:
        return str(answer["error"])
    try:
        by_pid = answer["by_pid"]
        return VramReading(
            free_bytes=int(answer["free_bytes"]),
            total_bytes=int(answer["total_bytes"]),
            uuid=str(answer["uuid"]),
            name=str(answer["name"]),
            by_pid=None if by_pid is None else tuple((int(pid), int(size)) for pid, size in by_pid),
            utilisation_ratio=answer.get("utilisation_ratio"),
            temperature_c=answer.get("temperature_c"),
            power_w=answer.get("power_w"),
            throttle_reasons=answer.get("throttle_reasons"),
            trouble=str(answer.get("trouble", "")),
        )
    except (KeyError, TypeError, ValueError):
        return gpu_states.UNREADABLE


def trusted(reading: VramReading | None, ours: set[int]) -> VramReading | None:
    """The reading without its list of processes where that list cannot be ours: in a container the driver
    tells the host's process numbers, and none of them is one of our children that hold VRAM."""
    if reading is None or reading.by_pid is None or not ours:
        return reading
    return reading if ours & {pid for pid, _ in reading.by_pid} else replace(reading, by_pid=None)


def make_reader(
    loop: Loop, config: Config, environ: Mapping[str, str], on_state: Callable[[str, str], None]
) -> GpuReader | None:
    """The reader that the configuration asks for; None without a card, or when none is to be used."""
    if config.gpu == "none" or not has_card(environ=environ):
        return None
    wanted = "" if config.gpu == "auto" else config.gpu
    build = installed_build()
    lowest, highest = lowest_capability(build), highest_capability(build)
    visible = environ.get("CUDA_VISIBLE_DEVICES") if not wanted else None
    return GpuReader(
        loop, wanted, environ, on_state, visible=visible, lowest=lowest, highest=highest, guard=config.guard
    )


class GpuReader:
    """Call `ask(busy)` each tick; `reading` and `state` are what is known. `on_state` hears changes.

    `wanted` is a UUID, or "" for the best card: then the first one found is kept (`uuid`), until it is gone.
    `visible` is what CUDA_VISIBLE_DEVICES said, `lowest` and `highest` the ends of what torch supports.
    """

    def __init__(
        self,
        loop: Loop,
        wanted: str,
        environ: Mapping[str, str],
        on_state: Callable[[str, str], None],
        root: Path = Path("/"),
        *,
        visible: str | None = None,
        lowest: Capability | None = None,
        highest: Capability | None = None,
        guard: GuardConfig = DEFAULTS,
    ) -> None:
        self._loop, self._wanted, self._environ, self._on_state = loop, wanted, environ, on_state
        self._root, self._visible, self._lowest, self._highest = root, visible, lowest, highest
        self.deadline_s, self.retry_s, self.idle_s = guard.gpu_deadline_s, guard.gpu_retry_s, guard.gpu_idle_s
        self._helper: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []
        self._deadline: Timer | None = None
        self._buffer = b""
        self._next_at = 0.0
        self._read_at = -1e9
        self._reading: VramReading | None = None
        self._busy = False
        self.uuid = wanted
        self.state = gpu_states.UNKNOWN

    @property
    def reading(self) -> VramReading | None:
        """The last answer; None when there is none that is fresh enough to act on."""
        fresh = FRESH_S if self._busy else self.idle_s * 1.5
        return self._reading if self._loop.now() - self._read_at <= fresh else None

    def ask(self, busy: bool, calm: bool = False) -> None:
        """Ask for a reading when one is due. `busy`: a worker holds VRAM, or one is to be started; `calm`: it
        has nothing to do."""
        self._busy = busy
        now = self._loop.now()
        at_once = busy and (self._reading is not None or self.state == gpu_states.ASLEEP)
        if calm and self._reading is not None and now - self._read_at < CALM_EVERY_S - 0.1:
            return
        if self._deadline is not None or (now < self._next_at and not at_once):
            return
        if not busy and asleep(self._root):
            self._end()
            self._next_at = now + self.idle_s
            self._change(gpu_states.ASLEEP)
            return
        if self._stuck:
            return  # one that hangs in the driver is enough: each further one would hang beside it
        if self._helper is None and not self._start():
            self._next_at = now + self.retry_s
            return
        assert self._helper is not None and self._helper.stdin is not None
        try:
            self._helper.stdin.write(b"\n")
        except OSError:
            self._failed(gpu_states.HELPER_DIED)
            return
        self._deadline = self._loop.later(self.deadline_s, lambda: self._failed(gpu_states.TIMEOUT))

    def _start(self) -> bool:
        command = [sys.executable, "-m", "daemon.gpu_helper", "--root", str(self._root)]
        command += ["--card", self.uuid] if self.uuid else []
        command += ["--visible", self._visible] if self._visible is not None else []
        command += ["--lowest", f"{self._lowest[0]}.{self._lowest[1]}"] if self._lowest else []
        command += ["--highest", f"{self._highest[0]}.{self._highest[1]}"] if self._highest else []
        try:
            self._helper = subprocess.Popen(
                command, env=dict(self._environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True,
            )  # fmt: skip
        except OSError:
            return False
        assert self._helper.stdout is not None
        os.set_blocking(self._helper.stdout.fileno(), False)
        self._loop.watch(self._helper.stdout.fileno(), READ, lambda _: self._answered())
        return True

    def _answered(self) -> None:
        assert self._helper is not None and self._helper.stdout is not None
        try:
            data = os.read(self._helper.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            self._failed(gpu_states.HELPER_DIED)
            return
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            try:
                answer = json.loads(line)
            except ValueError:
                answer = {}
            self._take(reading_from(answer if isinstance(answer, dict) else {}))

    def _take(self, found: VramReading | str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        now = self._loop.now()
        if isinstance(found, VramReading):
            self._reading, self._read_at, self.uuid = found, now, found.uuid
            self._next_at = now if self._busy else now + self.idle_s
            self._change(found.trouble or gpu_states.OK)
        else:
            # A failed reading is unknown, never a full card: nothing is restarted for it.
            self._reading, self._next_at = None, now + self.retry_s
            self._change(found)
            if found == gpu_states.CARD_MISSING and not self._wanted:
                self._end()
                self.uuid = ""  # it was taken out, or renumbered: the best one of those that are there
        if not self._busy:
            self._end()

    def _failed(self, state: str) -> None:
        self._end()
        self._reading, self._next_at = None, self._loop.now() + self.retry_s
        self._change(state)

    def _change(self, state: str) -> None:
        if state != self.state:
            old, self.state = self.state, state
            if {old, state} - {gpu_states.OK, gpu_states.UNKNOWN, gpu_states.ASLEEP}:
                self._on_state(old, state)  # to sleep and to wake is a laptop's life, not news

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        helper, self._helper, self._buffer = self._helper, None, b""
        if helper is None:
            return
        assert helper.stdin is not None and helper.stdout is not None
        self._loop.forget(helper.stdout.fileno())
        helper.stdin.close()
        helper.stdout.close()
        helper.kill()
        self._reap(helper)

    def _reap(self, helper: subprocess.Popen[bytes], wait_s: float = REAP_S) -> None:
        # One that hangs in the driver cannot be reaped yet; look again without waiting, ever more seldom.
        if helper.poll() is None:
            if wait_s > REAP_S and helper not in self._stuck:
                self._stuck.append(helper)
            self._loop.later(wait_s, lambda: self._reap(helper, min(REAP_MAX_S, wait_s * 2)))
        elif helper in self._stuck:
            self._stuck.remove(helper)

    def close(self) -> None:
        """End the helper."""
        self._end()
