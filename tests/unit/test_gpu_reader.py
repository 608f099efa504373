"""The card through the real binding: pynvml, a fake libnvidia-ml.so.1 in C, a real helper process, a real
deadline. The script that the library answers from changes while the helper runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemon import gpu_states
from daemon.gpu_helper import state_of_error
from daemon.gpu_reader import GpuReader, asleep, has_card, reading_from
from daemon.loop import Loop
from daemon.sample import VramReading
from pipeline.clock import SystemClock
from tests.fakes.nvml import GIB, MIB, VERSION, FakeCard, FakeNvml, build

BIG, SMALL = "GPU-big", "GPU-small"


@dataclass
class World:
    loop: Loop
    reader: GpuReader
    nvml: FakeNvml
    changes: list[tuple[str, str]] = field(default_factory=list)

    def settle(self) -> None:
        """Until nothing is left to be called: the helper is reaped."""
        self.until(lambda: not any(timer.callback for timer in self.loop._timers))

    def until(self, check: Callable[[], bool], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not check():
            assert time.monotonic() < end, (self.reader.state, self.changes)
            self.loop.once(0.05)

    def read(self, busy: bool = True) -> VramReading:
        """A reading that was asked for now."""
        self.reader._reading, self.reader._next_at = None, 0.0
        self.reader.ask(busy)
        self.until(lambda: self.reader.reading is not None)
        assert self.reader.reading is not None
        return self.reader.reading

    def fail(self, busy: bool = True) -> str:
        """Ask until it is known what is wrong."""
        self.reader._next_at = 0.0
        before = self.reader.state
        self.reader.ask(busy)
        self.until(lambda: self.reader.state != before)
        return self.reader.state


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def make(library: Path, tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def build_world(*cards: FakeCard, wanted: str = "", **more: object) -> World:
        nvml = FakeNvml(library, tmp_path / "nvml.txt", list(cards) or [FakeCard()])
        nvml.write()
        loop = Loop(SystemClock())
        changes: list[tuple[str, str]] = []
        reader = GpuReader(
            loop, wanted, nvml.environ(), lambda old, new: changes.append((old, new)), root=tmp_path,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip
        reader.deadline_s = 20.0  # a helper's start on a busy machine is no hang
        worlds.append(World(loop, reader, nvml, changes))
        return worlds[-1]

    yield build_world
    for world in worlds:
        world.reader.close()
        world.settle()
        world.loop.close()


def test_all_that_a_card_tells_is_read(make: Callable[..., World]) -> None:
    card = FakeCard(
        BIG, util=37, power=151_500, temp=66, reasons=0x40, processes=[(77, 3 * GIB)], graphics=[(9, MIB)]
    )
    world = make(card)
    world.reader.ask(True)
    assert world.reader.reading is None, "it never waits"
    found = world.read()
    assert found == VramReading(
        5 * GIB, 6 * GIB, BIG, "Fake", ((9, MIB), (77, 3 * GIB)), 0.37, 66.0, 151.5, 0x40
    )
    assert world.changes == [], "to find a card well is no event"


def test_fields_that_are_not_supported_are_unknown_and_the_card_is_read(make: Callable[..., World]) -> None:
    world = make(FakeCard(util=None, temp=None, power=None, reasons=None, cc=None))
    found = world.read()
    assert (found.utilisation_ratio, found.temperature_c, found.power_w, found.throttle_reasons) == (
        None,
    ) * 4
    assert found.free_bytes == 5 * GIB and world.reader.state == gpu_states.OK


@pytest.mark.parametrize("processes", [[], [(77, None)], [(77, GIB), (78, None)]])
def test_c07_without_numbers_per_process_there_is_no_claim(
    make: Callable[..., World], processes: list[tuple[int, int | None]]
) -> None:
    assert make(FakeCard(processes=processes)).read().by_pid is None


def test_c09_what_the_driver_reserves_does_not_shift_what_is_free(make: Callable[..., World]) -> None:
    world = make(FakeCard(total=4 * GIB, free=4 * GIB - 520 * MIB, reserved=440 * MIB))
    assert world.read().free_bytes == 4 * GIB - 520 * MIB


def test_c14_the_card_with_the_most_free_memory_is_taken_and_kept(make: Callable[..., World]) -> None:
    world = make(FakeCard(BIG, 24 * GIB, GIB), FakeCard(SMALL, 6 * GIB, 5 * GIB))
    assert world.read().uuid == SMALL
    world.nvml.cards[0].free = 23 * GIB
    world.nvml.write()
    assert world.read(busy=False).uuid == SMALL, "it holds our context"
    assert world.read(busy=True).uuid == SMALL, "in a new helper, too"


@pytest.mark.parametrize(
    ("visible", "uuid"), [("1", SMALL), (SMALL, SMALL), ("0,1", SMALL), ("0", BIG), (None, SMALL)]
)
def test_c14_cuda_visible_devices_is_heeded(
    make: Callable[..., World], visible: str | None, uuid: str
) -> None:
    world = make(FakeCard(BIG, 24 * GIB, GIB), FakeCard(SMALL, 6 * GIB, 5 * GIB), visible=visible)
    assert world.read().uuid == uuid


def test_c14_no_visible_device_is_said(make: Callable[..., World]) -> None:
    assert make(visible="").fail() == gpu_states.NONE_VISIBLE


def test_a_card_that_torch_has_no_kernels_for_is_not_taken(make: Callable[..., World]) -> None:
    old, new = FakeCard(BIG, 24 * GIB, 23 * GIB, cc=61), FakeCard(SMALL, cc=75)
    assert make(old, new, lowest=(7, 5)).read().uuid == SMALL
    assert make(old, lowest=(7, 5)).fail() == gpu_states.UNSUPPORTED


def test_a_card_in_slices_gives_a_slice(make: Callable[..., World]) -> None:
    parts = [FakeCard("MIG-1", 10 * GIB, 4 * GIB, util=None), FakeCard("MIG-2", 10 * GIB, 9 * GIB, util=None)]
    world = make(FakeCard(BIG, 80 * GIB, 70 * GIB, slices=parts))
    found = world.read()
    assert (found.uuid, found.total_bytes, found.utilisation_ratio) == ("MIG-2", 10 * GIB, None)
    assert make(FakeCard(BIG, slices=parts), wanted="MIG-1").read().free_bytes == 4 * GIB


def test_a_wanted_card_that_is_not_there_is_said(make: Callable[..., World]) -> None:
    world = make(FakeCard(SMALL), wanted=BIG)
    assert world.fail() == gpu_states.CARD_MISSING
    world.nvml.cards = [FakeCard(BIG)]
    world.nvml.write()
    assert world.read().uuid == BIG
    assert world.changes == [("unknown", gpu_states.CARD_MISSING), (gpu_states.CARD_MISSING, "ok")]


def test_with_auto_another_card_is_taken_when_the_first_is_gone(make: Callable[..., World]) -> None:
    world = make(FakeCard(SMALL))
    assert world.read().uuid == SMALL
    world.nvml.cards = [FakeCard(BIG)]
    world.nvml.write()
    assert world.fail() == gpu_states.CARD_MISSING
    assert world.read().uuid == BIG


CODES = {
    4: gpu_states.NO_PERMISSION, 9: gpu_states.NO_DRIVER, 10: gpu_states.TIMEOUT, 11: gpu_states.LOST,
    12: gpu_states.NO_DRIVER, 13: gpu_states.DRIVER_OLD, 14: gpu_states.DAMAGED, 15: gpu_states.LOST,
    16: gpu_states.RESET, 18: gpu_states.MISMATCH, 20: gpu_states.NO_HOST_MEMORY, 27: gpu_states.NOT_READY,
    28: gpu_states.NO_CARD, 29: gpu_states.NVML_ERROR, 999: gpu_states.LOST,
}  # fmt: skip


def test_every_return_code_is_a_named_state_and_the_card_coming_back_is_noticed(
    make: Callable[..., World],
) -> None:
    """C05 and the rest of INTERFACES 5.1, one after another under one helper."""
    world = make()
    for code, state in CODES.items():
        world.nvml.errors = {"nvmlInit": code}
        world.nvml.write()
        world.reader._end()  # a new helper: the library is initialised anew
        assert world.fail() == state, code
        assert world.reader.reading is None, "unknown, not 0 bytes free"
        asked = world.nvml.calls()
        world.reader.ask(True)
        assert world.reader._deadline is None and world.nvml.calls() == asked, "not asked again at once"
        world.nvml.errors = {}
        world.nvml.write()
        world.read()
        assert world.changes[-1] == (state, gpu_states.OK), code


def test_a_handle_from_before_a_reload_of_the_module_is_taken_anew(make: Callable[..., World]) -> None:
    world = make()
    world.read()
    world.nvml.errors = {"nvmlDeviceGetUtilizationRates": 15}
    world.nvml.write()
    assert world.fail() == gpu_states.LOST, "a lost card is no missing field"
    world.nvml.errors, world.nvml.epoch = {}, 2
    world.nvml.write()
    helper = world.reader._helper
    world.read()
    assert world.reader._helper is helper and world.nvml.calls("nvmlInit") == 2


def test_one_lost_card_of_two_does_not_hide_the_other(make: Callable[..., World]) -> None:
    world = make(FakeCard(BIG, lost=True), FakeCard(SMALL))
    assert world.read().uuid == SMALL
    world.nvml.cards[1].lost = True
    world.nvml.write()
    assert world.fail() == gpu_states.LOST, "the one that was kept"


def test_a_driver_update_is_seen_while_the_old_library_still_works(
    make: Callable[..., World], tmp_path: Path
) -> None:
    module = tmp_path / "sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text(VERSION + "\n")
    world = make()
    assert world.read().trouble == ""
    (module / "version").write_text("575.51.03\n")
    found = world.read()
    assert found.free_bytes == 5 * GIB and world.reader.state == gpu_states.MISMATCH


def test_a_call_that_hangs_takes_nobody_along(make: Callable[..., World]) -> None:
    world = make()
    world.read()
    world.reader.deadline_s = 0.3
    world.nvml.delays_ms = {"nvmlDeviceGetMemoryInfo": 600_000}
    world.nvml.write()
    assert world.fail() == gpu_states.TIMEOUT and world.reader.reading is None
    assert world.reader._helper is None, "it was ended"
    world.reader.deadline_s = 10.0
    world.nvml.delays_ms = {}
    world.nvml.write()
    world.settle()
    world.read()
    assert world.changes[-1] == (gpu_states.TIMEOUT, "ok")


def test_while_one_helper_hangs_in_the_driver_no_second_is_started(make: Callable[..., World]) -> None:
    world = make()

    class Hanging:
        def poll(self) -> int | None:
            return None

    hanging = Hanging()
    world.reader._reap(hanging, 1.0)  # type: ignore[arg-type]
    world.reader.ask(True)
    assert world.reader._helper is None
    hanging.poll = lambda: 0  # type: ignore[method-assign]
    world.reader._reap(hanging, 1.0)  # type: ignore[arg-type]
    world.read()


def test_a_driver_that_crashes_its_caller_is_survived(make: Callable[..., World]) -> None:
    world = make()
    world.nvml.crash = "nvmlDeviceGetName"
    world.nvml.write()
    assert world.fail() == gpu_states.HELPER_DIED
    world.nvml.crash = ""
    world.nvml.write()
    world.read()


def test_c12_without_a_gpu_worker_no_handle_stays_open(make: Callable[..., World]) -> None:
    world = make()
    world.read(busy=False)
    assert world.reader._helper is None
    asked = world.nvml.calls()
    world.reader.ask(False)
    assert world.reader._helper is None and world.nvml.calls() == asked, "not again before its minute"


def test_while_all_is_calm_the_card_is_asked_half_as_often(make: Callable[..., World]) -> None:
    world = make()
    world.read()
    asked = world.nvml.calls("nvmlDeviceGetMemoryInfo")
    world.reader.ask(True, calm=True)
    assert world.reader._deadline is None
    world.reader.ask(True, calm=False)
    world.until(lambda: world.nvml.calls("nvmlDeviceGetMemoryInfo") > asked)


def test_c12_a_sleeping_card_is_not_woken(make: Callable[..., World], tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (device / "power/runtime_status").write_text("suspended\n")
    assert asleep(tmp_path)
    world = make()
    world.reader.ask(False)
    assert world.reader._helper is None and world.reader.state == gpu_states.ASLEEP
    world.reader.ask(True)
    world.until(lambda: world.reader.reading is not None)
    assert world.changes == [], "asleep and awake is a laptop's life"
    (device / "power/runtime_status").write_text("active\n")
    assert not asleep(tmp_path)


def test_a_machine_without_a_driver_has_no_card(tmp_path: Path, library: Path) -> None:
    assert not has_card(tmp_path) and not asleep(tmp_path)
    assert has_card(tmp_path, {"LD_LIBRARY_PATH": f":{library}"})
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert has_card(tmp_path)


@pytest.mark.parametrize("answer", [{}, {"free_bytes": "x"}, {"free_bytes": 1, "total_bytes": None}])
def test_a_broken_answer_is_unreadable(answer: dict[str, object]) -> None:
    assert reading_from(answer) == gpu_states.UNREADABLE


def test_what_nvml_calls_unknown_is_told_apart_by_the_device_node(tmp_path: Path) -> None:
    """INTERFACES 5.1: XID 79, or a container whose device rule was dropped by `systemctl daemon-reload`."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version")
    assert state_of_error(9, tmp_path) == gpu_states.NODES_MISSING, "D11: hardening hides the card"
    (tmp_path / "dev/nvidiactl").touch()
    assert state_of_error(999, tmp_path) == gpu_states.LOST
    assert gpu_states.state_of_code(999, nodes=True, may_open=False) == gpu_states.ACCESS_LOST
