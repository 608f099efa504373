"""NVML through its helper: a made-up pynvml in a real helper process, with a real deadline."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import daemon.gpu_reader as gpu_reader
from daemon.gpu_helper import error_name, read_card
from daemon.gpu_reader import GpuReader, asleep, has_card, reading_from
from daemon.loop import Loop
from daemon.sample import VramReading
from pipeline.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
GIB = 1024**3

FAKE = """
import os, time, sys
class NVMLError(Exception):
    def __init__(self, value): self.value = value
class _M:
    total = 6 * 2**30
    def __init__(self, free): self.free = free; self.used = self.total - free
PLAN = os.environ["FAKE_NVML"]
def nvmlInit():
    if PLAN == "hang": time.sleep(600)
    if PLAN == "crash": os._exit(139)
    if PLAN.startswith("error"): raise NVMLError(int(PLAN[5:]))
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlDeviceGetUUID(i): return f"GPU-{i}"
def nvmlDeviceGetName(i): return b"Card"
def nvmlDeviceGetMemoryInfo(i): return _M((i + 1) * 2**30)
class _P:
    pid = 77
    usedGpuMemory = None if PLAN == "nopid" else 123
def nvmlDeviceGetComputeRunningProcesses(i): return [_P]
def nvmlDeviceGetUtilizationRates(i): raise NVMLError(3)
def nvmlDeviceGetPowerUsage(i): return 14000
def nvmlDeviceGetTemperature(i, kind): return 41
"""


@dataclass
class World:
    loop: Loop
    reader: GpuReader
    states: list[str]

    def settle(self) -> None:
        """Until nothing is left to be called: the helper is reaped."""
        self.until(lambda: not any(timer.callback for timer in self.loop._timers))

    def until(self, check: Callable[[], bool], timeout_s: float = 10.0) -> None:
        end = time.monotonic() + timeout_s
        while not check():
            assert time.monotonic() < end, self.states
            self.loop.once(0.05)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    (tmp_path / "pynvml.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setattr(gpu_reader, "DEADLINE_S", 2.0)
    worlds: list[World] = []

    def build(plan: str, uuid: str = "") -> World:
        env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "FAKE_NVML": plan}
        loop, states = Loop(SystemClock()), list[str]()
        reader = GpuReader(loop, uuid, env, lambda old, new: states.append(new), root=tmp_path)
        worlds.append(World(loop, reader, states))
        return worlds[-1]

    yield build
    for world in worlds:
        world.reader.close()
        world.settle()
        world.loop.close()


def test_the_card_with_the_most_free_memory_is_read(make: Callable[..., World]) -> None:
    world = make("ok")
    world.reader.ask(True)
    assert world.reader.reading is None, "it never waits"
    world.until(lambda: world.reader.reading is not None)
    assert world.reader.reading == VramReading(
        2 * GIB, 6 * GIB, "GPU-1", "Card", ((77, 123),), None, 41.0, 14.0
    )
    assert world.states == ["ok"]


def test_a_card_is_kept_by_its_uuid(make: Callable[..., World]) -> None:
    world = make("ok", "GPU-0")
    world.reader.ask(True)
    world.until(lambda: world.reader.reading is not None)
    assert world.reader.reading is not None and world.reader.reading.free_bytes == GIB


def test_without_numbers_per_process_there_is_no_claim(make: Callable[..., World]) -> None:
    world = make("nopid")
    world.reader.ask(True)
    world.until(lambda: world.reader.reading is not None)
    assert world.reader.reading is not None and world.reader.reading.by_pid is None


@pytest.mark.parametrize(
    ("plan", "state"),
    [
        ("error18", "driver_mismatch"),
        ("error15", "gpu_lost"),
        ("error9", "no_driver"),
        ("crash", "helper_died"),
        ("hang", "timeout"),
    ],
)
def test_trouble_is_named_and_unknown(make: Callable[..., World], plan: str, state: str) -> None:
    world = make(plan)
    world.reader.ask(True)
    world.until(lambda: bool(world.states))
    assert world.states == [state] and world.reader.reading is None
    world.reader.ask(True)
    assert world.reader._helper is None or plan.startswith("error"), "it is not asked again at once"


def test_without_a_gpu_worker_no_handle_stays_open(make: Callable[..., World]) -> None:
    world = make("ok")
    world.reader.ask(False)
    world.until(lambda: world.reader.reading is not None)
    assert world.reader._helper is None
    world.reader.ask(False)
    assert world.reader._helper is None, "not again before its minute"


def test_a_sleeping_card_is_not_woken(make: Callable[..., World], tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (device / "power/runtime_status").write_text("suspended\n")
    assert asleep(tmp_path)
    world = make("ok")
    world.reader.ask(False)
    assert world.reader._helper is None
    (device / "power/runtime_status").write_text("active\n")
    assert not asleep(tmp_path)


def test_a_machine_without_a_driver_has_no_card(tmp_path: Path) -> None:
    assert not has_card(tmp_path) and not asleep(tmp_path)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert has_card(tmp_path)


@pytest.mark.parametrize("answer", [{}, {"free_bytes": "x"}, {"free_bytes": 1, "total_bytes": None}])
def test_a_broken_answer_is_unreadable(answer: dict[str, object]) -> None:
    assert reading_from(answer) == "unreadable"


def test_names_of_return_codes() -> None:
    assert error_name(999) == "gpu_lost" and error_name(42) == "nvml_42"


def test_no_card_at_all_is_said() -> None:
    assert read_card(SimpleNamespace(nvmlDeviceGetCount=lambda: 0), "") == {"error": "no_card"}
