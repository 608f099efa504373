"""The real supervisor and the real NVML binding against a fake libnvidia-ml.so.1, with children that break on
demand: what happens to the card is named, and never ends in a restart loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.replay import replay
from daemon.trace import read_trace
from tests.fakes.meminfo import meminfo
from tests.fakes.nvml import GIB, MIB, FakeCard, FakeNvml, build
from tests.integration.service import all_stopped, wait_for
from tests.integration.test_supervisor import GUARD, QUICK, Fakes

ENGINE = "cosyvoice3"
UUID = "GPU-11112222-3333"
CARD = {
    "gpu": "auto",
    "guard.gpu_retry_s": "0.3",
    "guard.gpu_idle_s": "0.3",
    "guard.vram.low_hold_s": "0.1",
    "deadlines.heartbeat_lost_s": "20",
    "deadlines.start_s": "20",
    "guard.gpu_deadline_s": "15",
}


CODES = (
    (18, "driver_mismatch"),
    (9, "no_driver"),
    (15, "gpu_lost"),
    (16, "reset_required"),
    (10, "timeout"),
    (999, "gpu_lost"),
)
"""NVML's return codes with which no worker is started, and their words."""


class Carded(Fakes):
    """A supervisor that finds the fake card."""

    nvml: FakeNvml

    def set(self, **card: Any) -> None:
        """Change what the first card says."""
        for name, value in card.items():
            setattr(self.nvml.cards[0], name, value)
        self.nvml.write()

    def fail(self, **errors: int) -> None:
        """NVML's functions fail with these codes from now on."""
        self.nvml.errors = errors
        self.nvml.write()

    def until_gpu(self, state: str) -> None:
        wait_for(lambda: self.status()["gpu_state"] == state, 30, f"gpu_state {state}")

    def worker(self) -> int:
        """Have the worker started; its pid."""
        self.control("ensure_worker", engine=ENGINE)
        self.until("ready", ENGINE, 30)
        (pid,) = self.pids(("--engine", ENGINE))
        return pid

    def starts(self) -> int:
        return sum(row["params"].get("engine") == ENGINE for row in self.events("worker_started"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def make(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Carded]]:
    meminfo(tmp_path / "root", 3000)
    monkeypatch.setenv("FAKE_ROOT", str(tmp_path / "root"))

    def start(*cards: FakeCard, settings: dict[str, str] | None = None, **plans: dict[str, Any]) -> Carded:
        nvml = FakeNvml(library, tmp_path / "nvml.txt", list(cards) or [FakeCard(UUID, free=5 * GIB)])
        nvml.write()
        fakes = Carded(tmp_path / "state", QUICK | GUARD | CARD | (settings or {}), env=nvml.environment())
        fakes.nvml = nvml
        fakes.plan(**plans)
        made.append(fakes)
        fakes.start()
        return fakes

    with all_stopped([]) as made:
        yield start


def test_the_card_is_shown_and_the_worker_gets_it_by_uuid(make: Callable[..., Carded]) -> None:
    """C14: whatever CUDA's own order is, the guard and the model mean the same card."""
    fakes = make(FakeCard("GPU-busy", 24 * GIB, GIB), FakeCard(UUID, free=5 * GIB, name="RTX"))
    fakes.until_gpu("ok")
    vram = wait_for(lambda: fakes.status()["vram"], 10, "vram")
    assert (vram["uuid"], vram["name"], vram["free_bytes"], vram["level"]) == (UUID, "RTX", 5 * GIB, "ok")
    environ = psutil.Process(fakes.worker()).environ()
    assert environ["CUDA_VISIBLE_DEVICES"] == UUID and environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_vram_of_ours_is_trimmed_then_unloaded(make: Callable[..., Carded]) -> None:
    fakes = make(worker_cosyvoice3={"vram": 4 * GIB})
    pid = fakes.worker()
    fakes.set(free=300 * MIB, processes=[(pid, 5 * GIB)])
    assert fakes.wait_event("trim_failed")["params"]["resource"] == "vram"
    found = fakes.wait_event("unloaded")
    assert found["params"]["reason"] == "memory_low" and found["freed_bytes"] is not None
    fakes.set(free=5 * GIB, processes=[])
    fakes.wait_event("level_changed", lambda row: row["params"]["new"] == "ok")


def test_vram_that_creeps_is_trimmed_then_recycled_before_the_card_is_full(
    make: Callable[..., Carded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job runs, nothing is tight yet, and the card would be full in an hour. A minute is a third of a
    second here."""
    monkeypatch.setenv("FAKE_MINUTE", "0.33")
    fakes = make(settings={"guard.quiet_s": "0.5"}, worker_cosyvoice3={"vram": GIB})
    pid, held = fakes.worker(), GIB
    while not fakes.events("drain_started"):
        held += 20 * MIB
        assert held < 4 * GIB, "it was never restarted"
        fakes.set(free=6 * GIB - held, processes=[(pid, held)])
        time.sleep(0.1)  # the pace of the leak
    found = fakes.wait_event("creep_predicted")["params"]
    assert (found["resource"], found["child"]) == ("vram", f"worker:{ENGINE}") and found["eta_s"] > 0
    trims = [row["params"] for row in fakes.events("trim_failed")]
    assert [(row["reason"], row["targets"]) for row in trims] == [("creep", f"worker:{ENGINE}")]
    assert fakes.wait_event("drain_started")["params"]["reason"] == "creep"
    fakes.set(free=5 * GIB, processes=[])
    wait_for(lambda: fakes.pids(("--engine", ENGINE)) not in ([], [pid]), 30, "a new worker")
    fakes.until("ready", ENGINE, 30)
    assert fakes.starts() == 2 and not fakes.events("level_changed") + fakes.events("worker_killed")


def test_foreign_vram_is_named_and_our_worker_is_left_alone(make: Callable[..., Carded]) -> None:
    """C15."""
    fakes = make(worker_cosyvoice3={"vram": 300 * MIB})
    pid, other = fakes.worker(), os.getpid()
    comm = Path(os.environ["FAKE_ROOT"]) / f"proc/{other}/comm"
    comm.parent.mkdir()
    comm.write_text("ollama\n")
    fakes.set(free=50 * MIB, processes=[(pid, 300 * MIB)], graphics=[(other, 5 * GIB + 650 * MIB)])
    params = fakes.wait_event("foreign_pressure")["params"]
    assert (params["resource"], params["bytes"]) == ("vram", 5 * GIB + 650 * MIB)
    assert params["name"] == "ollama"
    (foreign,) = fakes.status()["pressure"]["foreign"]
    assert foreign["name"] == "ollama" and foreign["resource"] == "vram"
    fakes.control("unload", engine=ENGINE)
    fakes.until("absent", ENGINE)
    found = fakes.control("admission", engine=ENGINE)
    assert (found["admit"], found["code"]) == (False, "foreign_memory") and found["retry_after_s"] > 0
    assert fakes.starts() == 1 and not fakes.events("worker_killed")


def test_without_a_usable_card_nothing_is_started_until_it_is_back(make: Callable[..., Carded]) -> None:
    """C05 and its kin: no restart loop, a reason in the row, and no hand needed when it is well again."""
    fakes = make()
    fakes.until_gpu("ok")
    job = ""
    for code, state in CODES:
        fakes.fail(nvmlInit=code, nvmlDeviceGetCount=code)
        fakes.until_gpu(state)
        job = job or fakes.job(ENGINE)
        found = fakes.until("waiting_memory", ENGINE)
        assert found["code"] == "engine_failed"
        verdict = fakes.control("admission", engine=ENGINE)
        assert (verdict["admit"], verdict["params"]["reason"]) == (False, state)
        fakes.wait_event("gpu_state_changed", lambda row, state=state: row["params"]["state"] == state)  # type: ignore[misc]
        assert fakes.status()["vram"] is None, "unknown is not zero"
    assert fakes.starts() == 0
    fakes.fail()
    fakes.until("ready", ENGINE, 30)
    assert fakes.starts() == 1 and fakes.rows("SELECT id FROM jobs WHERE id = ?", job)


def test_a_lost_card_ends_its_worker_once_and_the_job_goes_on_when_it_is_back(
    make: Callable[..., Carded],
) -> None:
    fakes = make(worker_cosyvoice3={"vram": GIB, "claim": True})
    job = fakes.job(ENGINE)
    fakes.until("ready", ENGINE, 30)
    wait_for(
        lambda: fakes.rows("SELECT state FROM jobs WHERE id=?", job)[0]["state"] == "running", 10, "claim"
    )
    fakes.set(lost=True)
    assert fakes.wait_event("worker_killed")["params"]["reason"] == "gpu_lost"
    fakes.until("waiting_memory", ENGINE)
    wait_for(
        lambda: fakes.rows("SELECT state FROM jobs WHERE id=?", job)[0]["state"] == "queued", 10, "requeue"
    )
    assert fakes.rows("SELECT attempt FROM jobs WHERE id=?", job)[0]["attempt"] <= 1
    assert fakes.starts() == 1 and not fakes.events("failed")
    fakes.set(lost=False)
    fakes.until("ready", ENGINE, 30)
    wait_for(lambda: fakes.status()["gpu_state"] == "ok", 10, "the card's state")
    assert fakes.starts() == 2


def test_a_driver_that_hangs_leaves_page_and_worker_alone(make: Callable[..., Carded]) -> None:
    fakes = make(settings={"guard.gpu_deadline_s": "2"}, worker_cosyvoice3={"vram": GIB})
    pid = fakes.worker()
    fakes.nvml.delays_ms = {"nvmlDeviceGetMemoryInfo": 600_000}
    fakes.nvml.write()
    fakes.until_gpu("timeout")
    assert fakes.status()["web"]["state"] == "ready" and fakes.pids(("--engine", ENGINE)) == [pid]
    fakes.nvml.delays_ms = {}
    fakes.nvml.write()
    fakes.until_gpu("ok")
    assert fakes.starts() == 1


def test_a_card_that_tells_nothing_but_its_memory_is_enough(make: Callable[..., Carded]) -> None:
    """C07: WSL, containers."""
    fakes = make(FakeCard(UUID, free=5 * GIB, util=None, temp=None, power=None, reasons=None, cc=None))
    fakes.worker()
    fakes.until_gpu("ok")
    wait_for(lambda: fakes.rows("SELECT * FROM samples"), 15, "a sample")
    found = fakes.rows("SELECT gpu_util_ratio, gpu_temp_c, power_w FROM samples")[-1]
    assert set(found.values()) == {None}


def test_a_card_whose_memory_cannot_be_asked_for_is_no_full_card(make: Callable[..., Carded]) -> None:
    """NVML says "not supported": speech works on, and nothing is restarted."""
    fakes = make(worker_cosyvoice3={"vram": GIB})
    pid = fakes.worker()
    fakes.until_gpu("ok")
    fakes.fail(nvmlDeviceGetMemoryInfo=3, nvmlDeviceGetMemoryInfo_v2=3)
    fakes.until_gpu("nvml_error")
    wait_for(lambda: fakes.status()["vram"] is None, 5, "the next look")
    assert fakes.pids(("--engine", ENGINE)) == [pid]
    assert fakes.control("admission", engine=ENGINE)["admit"] is True
    fakes.fail()
    fakes.until_gpu("ok")
    assert fakes.starts() == 1 and not fakes.events("worker_killed")


def test_out_of_memory_twice_brings_the_worker_back_leaner(make: Callable[..., Carded]) -> None:
    fakes = make(settings={"lean.after": "1"}, worker_cosyvoice3={"oom": "vram", "vram": GIB})
    fakes.control("ensure_worker", engine=ENGINE)
    steps = [1, 2, 3]
    for step in steps:
        fakes.wait_event("degraded", lambda row, step=step: row["params"]["step"] == step)  # type: ignore[misc]
    found = fakes.until("failed", ENGINE, 20)
    assert found["code"] == "out_of_memory"
    assert (fakes.state / "run" / f"effective-{ENGINE}.json").exists()
    assert fakes.starts() == 3, "full, shorter, smaller; and no more"


def test_c13_after_a_suspend_the_gpu_worker_is_started_anew_once(
    make: Callable[..., Carded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its CUDA context may be dead while its process looks well."""
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    monkeypatch.setenv("FAKE_CLOCK", str(ahead))
    fakes = make(worker_cosyvoice3={"vram": GIB})
    pid = fakes.worker()
    part = tmp_path / "part"
    part.write_text("7200")
    part.replace(ahead)
    assert fakes.wait_event("clock_jumped")["params"]["jump_s"] == pytest.approx(7200, abs=60)
    wait_for(lambda: fakes.pids(("--engine", ENGINE)) not in ([], [pid]), 30, "a new worker")
    fakes.until("ready", ENGINE, 30)
    assert fakes.starts() == 2 and not fakes.events("worker_killed")


def test_a_trace_of_the_running_service_tells_its_own_decisions_again(
    make: Callable[..., Carded], tmp_path: Path
) -> None:
    fakes = make(worker_cosyvoice3={"rss": 3_000_000_000})
    fakes.worker()
    meminfo(tmp_path / "root", 300)
    fakes.wait_event("unloaded")
    file = Path(fakes.control("trace")["path"])
    assert file.parent == fakes.state / "run"
    config, looks = read_trace(file.read_text().splitlines())
    keys = [line.key for line in replay(config, looks)]
    assert keys[:3] == ["level", "act_trim", "judged_failed"] and "act_unload" in keys
    assert str(fakes.state) not in file.read_text()
