"""The real supervisor, real processes, sockets and database, with children that break on demand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import queue
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, Lane
from pipeline.profile import Config
from pipeline.store.db import connect
from tests.fakes.meminfo import meminfo
from tests.integration.service import ROOT, Service, all_stopped, wait_for

QUICK = {
    "guard.cadence_s": "0.05",
    "heartbeat_s": "0.1",
    "deadlines.start_s": "3",
    "deadlines.stop_grace_s": "1",
    "deadlines.heartbeat_lost_s": "1.5",
    "deadlines.segment_base_s": "1",
    "deadlines.segment_per_audio_s": "0.5",
    "restart.backoff_initial_s": "0.05",
    "restart.budget": "3",
    "engines.extra": "x=nowhere:X,y=nowhere:Y",
    "keep_alive": "always",
    "wyoming.port": "0",
}


class Fakes(Service):
    """A supervisor whose children are `tests.fakes.child`."""

    def plan(self, **plans: dict[str, Any]) -> Fakes:
        """What the children do; `worker_x` means `worker:x`."""
        self.state.mkdir(parents=True, exist_ok=True)
        named = {name.replace("_", ":", 1): plan for name, plan in plans.items()}
        (self.state / "fake.json").write_text(json.dumps(named))
        return self

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("daemon.supervisor")] = "tests.fakes.run"
        return command

    def family(self) -> list[psutil.Process]:
        found = super().family()
        if self.process is not None and self.process.poll() is None:
            found.insert(0, psutil.Process(self.process.pid))
        return found

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.tail()
            try:
                return bool(self.status()["web"]["state"] == "ready")
            except (OSError, AssertionError):
                return False

        wait_for(ready, 20, "the web", 0.02)

    def engine(self, name: str = "x") -> dict[str, Any]:
        found = self.status()["engines"].get(name, {"state": "absent"})
        assert isinstance(found, dict)
        return found

    def until(self, state: str, engine: str = "x", timeout_s: float = 10.0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found = self.engine(engine)
            return found if found["state"] == state else None

        try:
            return wait_for(there, timeout_s, f"{engine} {state}", 0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.engine(engine)}\n{self.tail()}") from None

    def pids(self, module_args: tuple[str, ...] = ("--engine",)) -> list[int]:
        found = []
        for process in self.family():
            try:
                line = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if "tests.fakes.child" in line and all(arg in line for arg in module_args):
                found.append(process.pid)
        return found

    def received(self, name: str = "worker:x") -> list[dict[str, Any]]:
        path = self.state / f"received-{name.replace(':', '-')}.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = self.rows("SELECT * FROM events WHERE kind = ? ORDER BY id", kind)
        return [{**row, "params": json.loads(row["params"])} for row in rows]

    def wait_event(
        self, kind: str, check: Callable[[dict[str, Any]], bool] = lambda row: True
    ) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            return next((row for row in self.events(kind) if check(row)), None)

        try:
            return wait_for(there, 10, f"event {kind}", 0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def job(self, engine: str = "x") -> str:
        conn = connect(self.database, "accept")
        try:
            return queue.submit(
                conn, JobRequest(text="Some words.", voice=engine), engine=engine, lane=Lane.page,
                now=time.time(), config=Config(), patience_s=60.0,
            )  # fmt: skip
        finally:
            conn.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Fakes]]:
    def build(settings: dict[str, str] | None = None, **plans: dict[str, Any]) -> Fakes:
        fakes = Fakes(tmp_path / "state", QUICK | (settings or {}))
        fakes.plan(**plans)
        made.append(fakes)
        fakes.start()
        return fakes

    with all_stopped([]) as made:
        yield build


# -- coming and going ----------------------------------------------------------------------------------


def test_a_worker_starts_for_a_job_and_is_told_of_the_next(make: Callable[..., Fakes]) -> None:
    fakes = make()
    assert fakes.engine()["state"] == "absent"
    fakes.job()
    fakes.control("job_queued", engine="x")
    found = fakes.until("ready")
    assert found["capabilities"] == {"modes": ["builtin"]} and found["queued"] == 1
    fakes.control("job_queued", engine="x")
    wait_for(lambda: [m for m in fakes.received() if m["method"] == "work_available"], 5, "work_available")


def test_a_job_that_nobody_announced_is_found_in_the_table(make: Callable[..., Fakes]) -> None:
    fakes = make()
    fakes.job()
    fakes.until("ready")


def test_an_idle_worker_is_unloaded_after_keep_alive(make: Callable[..., Fakes]) -> None:
    fakes = make({"keep_alive": "0.5"})
    conn = connect(fakes.database, "accept")
    job = fakes.job()
    fakes.until("ready")
    queue.end_job(conn, job, queue.Outcome("done"), time.time())
    conn.close()
    fakes.until("absent")
    assert fakes.wait_event("unloaded")["params"]["reason"] == "idle"
    wait_for(lambda: not fakes.pids(), 5, "the end of the worker")


def test_a_worker_that_was_asked_for_is_loaded_ahead_and_unloaded_on_request(
    make: Callable[..., Fakes],
) -> None:
    fakes = make({"keep_alive": "0"})
    assert fakes.control("ensure_worker", engine="x")["state"] == "starting"
    fakes.until("ready")
    assert fakes.control("admission", engine="x")["admit"] is True
    assert fakes.control("unload", engine="x") == {"unloaded": True}
    fakes.until("absent")
    assert fakes.control("unload", engine="x") == {"unloaded": False}


# -- breaking ------------------------------------------------------------------------------------------


def test_a_worker_that_keeps_crashing_is_failed_with_a_reason_and_mended_by_a_restart(
    make: Callable[..., Fakes],
) -> None:
    fakes = make(worker_x={"exit": 3})
    job = fakes.job()
    found = fakes.until("failed")
    assert found["restarts"] == 4, "three restarts were allowed"
    assert [e["params"]["delay_s"] for e in fakes.events("backoff_started")] == [0.05, 0.1, 0.2]
    assert fakes.wait_event("failed")["params"]["reason"] == "exit 3"
    assert fakes.wait_job(job)["error_code"] == "engine_failed"
    answer = fakes.control("admission", engine="x")
    assert (answer["admit"], answer["code"]) == (False, "engine_failed")
    fakes.plan()
    fakes.control("restart", target="worker:x")
    fakes.until("ready")


def test_a_cause_that_only_repeats_is_not_retried(make: Callable[..., Fakes]) -> None:
    fakes = make(worker_x={"fatal": "model_missing"})
    job = fakes.job()
    found = fakes.until("failed")
    assert (found["code"], found["restarts"]) == ("model_missing", 1)
    assert fakes.wait_job(job)["error_code"] == "model_missing"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"ready": "never"}, "start_timeout"),
        ({"mute_after": 0.3}, "heartbeat_lost"),
        ({"job": "0123456789abcdef"}, "no_progress"),
        ({"close_link_after": 0.2}, "link_lost"),
    ],
)
def test_a_worker_that_hangs_is_ended_and_comes_back(
    make: Callable[..., Fakes], plan: dict[str, Any], reason: str
) -> None:
    fakes = make({"deadlines.start_s": "1.5"}, worker_x=plan)
    fakes.job()
    first = wait_for(fakes.pids, 5, "the worker")[0]
    event = fakes.wait_event("worker_killed")
    assert event["params"]["reason"] == reason and event["ram_available_bytes"] > 0
    fakes.plan()
    fakes.until("ready")
    wait_for(lambda: not psutil.pid_exists(first), 3, "the end of the first")


def test_a_worker_that_ignores_its_stop_is_killed_with_its_grandchild(make: Callable[..., Fakes]) -> None:
    fakes = make(worker_x={"deaf": True, "grandchild": True})
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    worker = psutil.Process(fakes.pids()[0])
    below = wait_for(worker.children, 5, "the grandchild")
    began = time.monotonic()
    fakes.control("unload", engine="x")
    fakes.until("absent")
    assert time.monotonic() - began < 1 + 2
    Service.gone([worker, *below], 3.0)
    assert fakes.wait_event("worker_killed")["params"]["reason"] == "unload_timeout"


def test_a_killed_worker_gives_its_job_back_at_once(make: Callable[..., Fakes]) -> None:
    fakes = make(worker_x={"claim": True})
    job = fakes.job()
    fakes.wait_job(job, state="running")
    fakes.plan(worker_x={})
    os.kill(fakes.pids()[0], signal.SIGKILL)
    row = fakes.wait_job(job, timeout_s=5, state="queued")
    assert row["attempt"] == 2, "well before its lease of a minute ran out"
    assert fakes.wait_event("job_requeued")["params"]["job"] == job
    fakes.until("ready")


def test_a_crashed_web_is_replaced_on_the_same_socket(make: Callable[..., Fakes]) -> None:
    fakes = make()
    (web,) = [pid for pid in fakes.pids(()) if pid not in fakes.pids()]
    os.kill(web, signal.SIGKILL)
    with socket.create_connection(("127.0.0.1", fakes.port), timeout=5):
        pass  # accepted by the backlog of the supervisor's own socket
    wait_for(
        lambda: (s := fakes.status()["web"])["state"] == "ready" and s["restarts"] == 1, 5, "a new web", 0.02
    )


# -- what a person asks for ------------------------------------------------------------------------------


def test_restart_web_brings_a_new_one_before_the_old_goes(make: Callable[..., Fakes]) -> None:
    fakes = make()
    (old,) = fakes.pids(())
    fakes.control("restart", target="web")
    fakes.wait_event("web_recycled")
    wait_for(lambda: len(fakes.pids(())) == 1 and fakes.pids(())[0] != old, 5, "one new web")
    drains = [m for m in fakes.received("web") if m["method"] == "drain"]
    assert [m["pid"] for m in drains] == [old]
    assert not fakes.events("worker_killed")


def test_a_new_web_that_does_not_come_up_leaves_the_old_one_alone(make: Callable[..., Fakes]) -> None:
    fakes = make()
    (old,) = fakes.pids(())
    fakes.plan(web={"exit": 1})
    fakes.control("restart", target="web")
    fakes.wait_event("worker_exited", lambda row: row["params"]["child"] == "web")
    assert fakes.pids(()) == [old]
    assert fakes.status()["web"]["state"] == "ready"


def test_trim_asks_everybody_and_adds_up(make: Callable[..., Fakes]) -> None:
    fakes = make(worker_x={"rss": 90_000_000, "trim_to": 60_000_000})
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    answer = fakes.control("trim")
    assert answer["freed_bytes"] == 30_000_000
    assert set(answer["children"]) == {"web", "worker:x"}
    assert fakes.wait_event("trim_done")["freed_bytes"] == 30_000_000
    assert fakes.control("why")["last"]["kind"] == "trim_done"


def test_the_page_gets_the_state_when_it_changes(make: Callable[..., Fakes]) -> None:
    fakes = make()
    fakes.control("ensure_worker", engine="x")

    def told() -> bool:
        states = [m["params"] for m in fakes.received("web") if m["method"] == "state"]
        return any(s["engines"].get("x", {}).get("state") == "ready" for s in states)

    wait_for(told, 5, "the state")


def test_a_subscriber_hears_of_events(make: Callable[..., Fakes]) -> None:
    fakes = make()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(fakes.state / "run" / "control.sock"))
        sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"topics":["events"]}}\n')
        lines = sock.makefile("rb")
        assert json.loads(lines.readline())["result"] == {"topics": ["events"]}
        fakes.control("ensure_worker", engine="x")
        assert json.loads(lines.readline())["params"]["kind"] == "worker_started"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("ensure_worker", {"engine": "nobody"}, "bad_value"),
        ("ensure_worker", {"engine": "--help"}, "bad_value"),
        ("ensure_worker", {}, "bad_value"),
        ("restart", {"target": "moon"}, "bad_value"),
        ("cancel", {"job": 5}, "bad_value"),
        ("swap_apply", {"total_bytes": -1}, "bad_value"),
        ("no_such_method", {}, "internal"),
    ],
)
def test_wrong_calls_get_an_error_and_harm_nobody(
    make: Callable[..., Fakes], method: str, params: dict[str, Any], code: str
) -> None:
    fakes = make()
    with pytest.raises(CosydError) as caught:
        fakes.control(method, **params)
    assert caught.value.code == code
    assert fakes.status()["web"]["state"] == "ready"


def test_noise_on_the_control_socket_is_dropped(make: Callable[..., Fakes]) -> None:
    fakes = make()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\xfe\n", b"x" * 70_000, b'{"a":' * 5000 + b"\n"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(fakes.state / "run" / "control.sock"))
            try:
                sock.sendall(noise)
                assert sock.recv(10) == b""
            except (ConnectionResetError, BrokenPipeError):
                pass
    assert fakes.status()["web"]["state"] == "ready"


# -- the end ---------------------------------------------------------------------------------------------


def test_a_stop_is_in_order_and_leaves_nothing(make: Callable[..., Fakes]) -> None:
    fakes = make(worker_x={"claim": True})
    job = fakes.job()
    fakes.wait_job(job, state="running")
    assert fakes.stop() == 0
    assert fakes.rows("SELECT state FROM jobs")[0]["state"] == "queued", "no row says running"
    assert fakes.event_kinds()[-1] == "stopped"
    assert not (fakes.state / "run" / "control.sock").exists()
    assert any(m["method"] == "drain" and m["params"]["reason"] == "stop" for m in fakes.received())


def test_deaf_children_do_not_hold_up_the_stop(make: Callable[..., Fakes]) -> None:
    fakes = make(web={"deaf": True}, worker_x={"deaf": True})
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    began = time.monotonic()
    assert fakes.stop() == 0
    assert time.monotonic() - began < 1 + 3


def test_a_second_signal_does_not_wait_for_the_grace(make: Callable[..., Fakes]) -> None:
    fakes = make({"deadlines.stop_grace_s": "60"}, web={"deaf": True})
    assert fakes.process is not None
    fakes.process.send_signal(signal.SIGINT)
    wait_for(lambda: fakes.status()["stopping"], 5, "stopping")
    fakes.process.send_signal(signal.SIGINT)
    assert fakes.process.wait(5) == 0


def test_a_killed_supervisor_takes_even_deaf_children_and_grandchildren_along(
    make: Callable[..., Fakes],
) -> None:
    fakes = make(web={"deaf": True, "grandchild": True}, worker_x={"deaf": True, "grandchild": True})
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    assert fakes.process is not None
    below = psutil.Process(fakes.process.pid).children(recursive=True)
    assert len(below) >= 5, "web, worker, two grandchildren, warden"
    fakes.process.kill()
    fakes.process.wait(5)
    Service.gone(below, 3.0)
    fakes.plan()
    fakes.start()
    assert fakes.status()["web"]["state"] == "ready"


def test_leftovers_of_an_earlier_run_are_ended_at_the_start(
    make: Callable[..., Fakes], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    env = os.environ | {"COSYD_INSTANCE": "an-earlier-one", "COSYD_STATE_DIR": str(state)}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env=env | {"COSYD_STATE_DIR": str(state) + "2"},
    )
    try:
        make()
        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None, "another folder's process is none of ours"
    finally:
        for process in (left, other):
            process.kill()
            process.wait(5)


# -- memory ----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    meminfo(root, 3000)
    monkeypatch.setenv("FAKE_ROOT", str(root))
    return root


BRINK_MIB = 60
"""Below half of what CRITICAL begins at (164 MiB of 4 GiB): nothing is waited for any more."""
GUARD = {
    "guard.ram.low_hold_s": "0.1",
    "guard.cadence_low_s": "0.05",
    **{f"guard.settle.{rung}_s": "0.3" for rung in ("trim", "unload", "drain", "kill")},
}


def test_pressure_of_ours_trims_then_unloads_and_a_start_waits_until_it_fits(
    make: Callable[..., Fakes], machine: Path
) -> None:
    fakes = make(GUARD, worker_x={"rss": 3_000_000_000})
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    meminfo(machine, 300)
    fakes.wait_event("trim_failed")
    assert fakes.wait_event("unloaded")["params"]["reason"] == "memory_low"
    meminfo(machine, 1500)  # the worker is gone; calm, but too little for it to come back
    fakes.wait_event("level_changed", lambda row: row["params"]["new"] == "ok")
    job = fakes.job()
    found = fakes.until("waiting_memory")
    assert found["code"] == "waiting_memory" and found["params"]["short_bytes"] > 0

    def reason() -> str | None:
        found: str | None = fakes.rows("SELECT wait_reason FROM jobs WHERE id = ?", job)[0]["wait_reason"]
        return found

    wait_for(lambda: reason() == "waiting_memory", 5, "the reason in the row")
    assert fakes.control("admission", engine="x")["code"] == "waiting_memory"
    meminfo(machine, 4000)
    fakes.until("ready")
    wait_for(lambda: reason() is None, 5, "the reason to go")


def test_at_critical_a_deaf_worker_is_drained_then_killed_and_all_is_on_record(
    make: Callable[..., Fakes], machine: Path
) -> None:
    fakes = make(
        GUARD | {"deadlines.segment_base_s": "60"},
        worker_x={"rss": 3_000_000_000, "deaf": True, "job": "0123456789abcdef"},
    )
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    wait_for(lambda: fakes.engine()["rss_bytes"], 5, "a heartbeat")
    meminfo(machine, 100)
    fakes.wait_event("drain_started")
    assert not fakes.events("worker_killed"), "a piece has ten seconds"
    meminfo(machine, BRINK_MIB)
    killed = fakes.wait_event("worker_killed")
    assert killed["params"]["reason"] == "memory_critical" and killed["level"] == "critical"
    assert killed["ram_available_bytes"] == BRINK_MIB * 2**20
    assert not fakes.events("trim_done") + fakes.events("trim_failed")
    meminfo(machine, 3000)
    fakes.wait_event("level_changed", lambda row: row["params"]["new"] == "ok")


@pytest.mark.parametrize(
    ("how", "crashes", "attempt"), [("memory", 0, 2), ("hang", 0, 2), ("stop", 0, 1), ("crash", 1, 2)]
)
def test_only_a_crash_counts_against_the_piece_that_was_in_hand(
    make: Callable[..., Fakes], machine: Path, how: str, crashes: int, attempt: int
) -> None:
    fakes = make(
        GUARD | {"deadlines.segment_base_s": "1" if how == "hang" else "60"},
        worker_x={"rss": 3_000_000_000, "claim": True, "deaf": True},
    )
    job = fakes.job()
    token = fakes.wait_job(job, state="running")["lease_token"]
    conn = connect(fakes.database, "work")
    piece = queue.Planned(0, "Some words.", 0, 11)
    assert queue.plan_segments(conn, job, token, [piece], begin=0)
    conn.close()
    wait_for(lambda: fakes.engine()["rss_bytes"], 5, "a heartbeat")
    pid = fakes.pids()[0]
    fakes.plan(worker_x={"ready": "never"})
    if how == "memory":
        meminfo(machine, BRINK_MIB)
        assert fakes.wait_event("worker_killed")["params"]["reason"] == "memory_critical"
    elif how == "hang":
        assert fakes.wait_event("worker_killed")["params"]["reason"] == "no_progress"
    elif how == "crash":
        os.kill(pid, signal.SIGSEGV)
    else:
        fakes.stop()
    row = fakes.wait_job(job, state="queued")
    (segment,) = fakes.rows("SELECT * FROM segments WHERE job_id = ?", job)
    assert (segment["state"], segment["attempt"], row["attempt"]) == ("pending", crashes, attempt)
    meminfo(machine, 3000)


def test_pressure_of_others_is_named_and_nothing_is_done(make: Callable[..., Fakes], machine: Path) -> None:
    fakes = make(GUARD)
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    folder = machine / "proc" / "4242"
    folder.mkdir()
    (folder / "comm").write_text("ollama\n")
    (folder / "status").write_text("Name:\tollama\nPPid:\t1\nRssAnon:\t 3196000 kB\nRssShmem:\t 0 kB\n")
    meminfo(machine, 100)
    event = fakes.wait_event("foreign_pressure")
    assert (event["params"]["name"], event["code"]) == ("ollama", "foreign_memory")
    wait_for(lambda: fakes.status()["pressure"]["foreign"], 5, "the name in the state")
    assert fakes.status()["pressure"]["foreign"][0]["name"] == "ollama"
    answer = fakes.control("admission", engine="y")
    assert (answer["admit"], answer["code"], answer["params"]["name"]) == (False, "foreign_memory", "ollama")
    meminfo(machine, 3000)
    fakes.wait_event("level_changed", lambda row: row["params"]["new"] == "ok")
    assert not fakes.events("unloaded") + fakes.events("worker_killed") + fakes.events("drain_started")


def test_an_unreadable_meminfo_is_unknown_and_nothing_is_done(
    make: Callable[..., Fakes], machine: Path
) -> None:
    fakes = make(GUARD)
    fakes.control("ensure_worker", engine="x")
    fakes.until("ready")
    (machine / "proc" / "meminfo").unlink()
    wait_for(lambda: fakes.status()["ram"]["level"] == "unknown", 5, "unknown")
    assert fakes.status()["ram"]["available_bytes"] is None
    assert fakes.engine()["state"] == "ready"
    assert fakes.control("admission", engine="y")["admit"] is True


# -- size ------------------------------------------------------------------------------------------------


def test_at_rest_it_is_small_and_imports_nothing_heavy(make: Callable[..., Fakes]) -> None:
    fakes = make({"guard.cadence_s": "1"})
    assert fakes.process is not None
    supervisor = psutil.Process(fakes.process.pid)
    assert supervisor.memory_info().rss < 40 * 2**20
    code = (
        "import sys, daemon.startup, daemon.supervisor, apscheduler.schedulers.background\n"
        "heavy = {'click', 'rich', 'numpy', 'pandas', 'gradio', 'torch', 'sqlite_utils'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
