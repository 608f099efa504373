"""The memory guard: how soon it acts, what it costs at rest, whether it stays small.

    python -m tests.bench.guard [--rounds 40] [--idle 60] [--hours 24] [--json FILE]

- from the sample that crosses CRITICAL to the order to end, and, as free memory falls below the brink at
  once, to SIGKILL (all are rows of `events`); and from the moment the machine got tight to the end of the
  process, which adds the way to the next sample
- wake-ups and CPU of the supervisor at rest, with and without its NVML helper (a fake card)
- RSS of the supervisor over simulated hours
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from pipeline.clock import wall_seconds
from tests.bench import resting
from tests.bench.service import machine, quantile
from tests.fakes.meminfo import meminfo
from tests.fakes.nvml import GIB, FakeCard, FakeNvml, build
from tests.integration.service import ROOT, Service, wait_for

ENGINE = "x"
CALM_MIB, BRINK_MIB = 3000, 60
SETTINGS = {
    "engines.extra": "x=nowhere:X",
    "keep_alive": "always",
    "wyoming.port": "0",
    "restart.budget": "1000",
}
HUGE = {"rss": 2_200_000_000}


class Faked(Service):
    """The real supervisor with children of `tests.fakes.child`, on a machine of files."""

    def __init__(
        self, folder: Path, plan: dict[str, Any], settings: dict[str, str] | None = None, **env: str
    ) -> None:
        self.root = folder / "root"
        meminfo(self.root, CALM_MIB)
        super().__init__(
            folder / "state", SETTINGS | (settings or {}), env={"FAKE_ROOT": str(self.root), **env}
        )
        self.state.mkdir(parents=True)
        (self.state / "fake.json").write_text(json.dumps(plan))

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("daemon.supervisor")] = "tests.fakes.run"
        return command

    def wait_ready(self) -> None:
        def ready() -> bool:
            try:
                return bool(self.control("status")["web"]["state"] == "ready")
            except (OSError, AssertionError):
                return False

        wait_for(ready, 60, "the web")

    def worker(self) -> int:
        """Have the worker running; its pid."""
        self.control("ensure_worker", engine=ENGINE)
        wait_for(
            lambda: self.control("status")["engines"].get(ENGINE, {}).get("state") == "ready", 60, "worker"
        )
        return next(p.pid for p in self.family() if ENGINE in p.cmdline())


def reaction(folder: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds to the SIGKILL of a busy worker at CRITICAL."""
    service = Faked(folder, {f"worker:{ENGINE}": {**HUGE, "job": "j", "deaf": True}})
    service.start()
    rng, whole = random.Random(7), list[float]()
    try:
        for _ in range(rounds):
            pid = service.worker()
            threading.Event().wait(1.0 + rng.random())  # any moment of the supervisor's second
            began = time.monotonic()
            meminfo(service.root, BRINK_MIB)
            wait_for(lambda pid=pid: not psutil.pid_exists(pid), 30, "the signal", 0.002)  # type: ignore[misc]
            whole.append(1000 * (time.monotonic() - began))
            meminfo(service.root, CALM_MIB)
            wait_for(lambda: service.control("status")["level"] == "ok", 30, "calm")
        rows = service.rows("SELECT at, kind, params FROM events ORDER BY id")
    finally:
        service.stop()
    crossed, orders, signals = None, list[float](), list[float]()
    for row in rows:
        if row["kind"] == "level_changed":
            crossed = row["at"] if json.loads(row["params"])["new"] == "critical" else crossed
        elif row["kind"] in ("drain_started", "worker_killed") and crossed is not None:
            took = 1000 * (wall_seconds(row["at"]) - wall_seconds(crossed))
            if row["kind"] == "drain_started":
                orders.append(took)
            else:
                signals.append(took)
                crossed = None
    assert len(orders) == len(signals) == rounds, (len(orders), len(signals), rounds)
    return {
        "rounds": rounds, "sample_to_order_ms": spread(orders), "sample_to_signal_ms": spread(signals),
        "tight_to_end_ms": spread(whole),
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float]:
    """Median, p99 and the worst."""
    return {"median": statistics.median(values), "p99": quantile(values, 0.99), "max": max(values)}


def at_rest(folder: Path, idle_s: float, card: Path | None) -> dict[str, dict[str, float]]:
    """What the supervisor costs while nothing happens; with a card a GPU worker is loaded and idle."""
    settings, env = {}, {}
    if card is not None:
        nvml = FakeNvml(card, folder / "nvml.txt", [FakeCard(free=5 * GIB)])
        nvml.write()
        settings, env = {"gpu": "auto"}, nvml.environment()
    service = Faked(folder, {f"worker:{ENGINE}": {"vram": GIB if card else None}}, settings, **env)
    service.start()
    try:
        service.worker()
        assert service.process is not None
        watched = {"supervisor": psutil.Process(service.process.pid)}
        if card is not None:
            watched["helper"] = wait_for(lambda: helper_of(service), 30, "the NVML helper")
        threading.Event().wait(5.0)  # the start is over
        return resting.at_rest(watched, idle_s)
    finally:
        service.stop()


def helper_of(service: Service) -> psutil.Process | None:
    """The NVML helper of a running service."""
    assert service.process is not None
    found = psutil.Process(service.process.pid).children(recursive=True)
    return next((p for p in found if "daemon.gpu_helper" in p.cmdline()), None)


def day(folder: Path, hours: float) -> dict[str, Any]:
    """RSS of a supervisor through simulated hours."""
    root = folder / "root"
    meminfo(root, CALM_MIB)
    flags = ["--state", str(folder / "state"), "--host", "127.0.0.1", "--port", "0"]
    never = {
        "deadlines.heartbeat_lost_s": "always",
        "deadlines.start_s": "always",
        "deadlines.stop_grace_s": "3600",
    }
    for key, value in (SETTINGS | never).items():
        flags += ["--set", f"{key}={value}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("COSYD_")}
    env |= {"FAKE_ROOT": str(root), "DAY_HOURS": str(hours), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.day", *flags],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    assert line is not None, done.stderr[-2000:]
    found = json.loads(line)
    sizes = {name: size / 1e6 for name, size in found["rss"].items()}
    last = list(sizes.values())[-1]
    return {
        "hours": hours, "rss_mb_after_half_an_hour": sizes["0.5 h"], "rss_mb_at_the_end": last,
        "rss_mb_at_most": max(sizes.values()), "rounds": found["rounds"], "real_s": found["real_s"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        library = build(folder / "nvml")
        for part in ("day", "rest", "card", "reaction"):
            (folder / part).mkdir()
        for name, measure in (
            ("reaction", lambda: reaction(folder / "reaction", options.rounds)),
            ("at_rest", lambda: at_rest(folder / "rest", options.idle, None)),
            ("at_rest_with_card", lambda: at_rest(folder / "card", options.idle, library)),
            ("day", lambda: day(folder / "day", options.hours)),
        ):
            report[name] = measure()
            print(name, json.dumps(report[name]), file=sys.stderr, flush=True)
    text = json.dumps(report, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
