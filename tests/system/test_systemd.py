"""cosyd under a real systemd: ready, watchdog, stop, reload, a start that cannot work, and what is left.

One system is booted for all of them; each test begins with the service stopped and its failures forgotten.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engines.numbers import decode
from tests.system.booted import Machine, booted, free_port
from tests.system.roots import wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
SENTENCES = 6
TEXT = " ".join(f"[slow 0.15] This is the calm sentence number {n} of it." for n in range(1, SENTENCES + 1))
NUMBERS = list(range(1, SENTENCES + 1))
DROP_IN = "etc/systemd/system/cosyd.service.d/test.conf"
CONFIG = """
keep_alive = "10 min"
[web]
port = {port}
[engines.extra]
numbers = "tests.engines.numbers:NumbersEngine"
"""


class Service:
    """The service in the machine, and its page as seen from here."""

    def __init__(self, machine: Machine, port: int) -> None:
        self.machine, self.port = machine, port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def systemctl(self, *words: str, timeout_s: float = 120) -> str:
        """`systemctl WORDS`; what it said. Raises AssertionError with the journal."""
        done = self.machine.run("systemctl", *words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.machine.journal()}"
        return done.stdout

    def start(self) -> None:
        """Until the page answers."""
        self.systemctl("start", "cosyd")
        wait_for(self.healthy, 120, "the page")

    def healthy(self) -> bool:
        """Does the page answer?"""
        try:
            return self.http.get("/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def submit(self) -> str:
        """A job of several pieces; once the first is done."""
        reply = self.http.post("/api/jobs", json={"v": 1, "text": TEXT, "voice": "numbers"})
        assert reply.status_code in (200, 201, 202), reply.text
        job = str(reply.json()["id"])
        wait_for(lambda: self.done_segments(job), 60, "the first piece")
        return job

    def done_segments(self, job: str) -> int:
        """Pieces of a job that are finished."""
        query = f"SELECT count(*) AS n FROM segments WHERE job_id = '{job}' AND state = 'done'"
        return int(self.machine.rows(query)[0]["n"])

    def state_of(self, job: str) -> str:
        """Its row's state."""
        return str(self.machine.rows(f"SELECT state FROM jobs WHERE id = '{job}'")[0]["state"])

    def heard(self, job: str) -> list[int]:
        """The numbers of a job's sound, once it is over."""

        def over() -> bool:
            state = self.state_of(job)
            assert state in ("queued", "running", "done"), state
            return state == "done"

        wait_for(over, 120, "the end of the job")
        wait_for(self.healthy, 60, "the page")
        reply = self.http.get(f"/api/jobs/{job}/audio", params={"format": "pcm"})
        assert reply.status_code == 200, reply.text
        return decode(reply.content)

    def main_pid(self) -> int:
        """The supervisor's pid inside."""
        return int(self.machine.show("MainPID")["MainPID"])

    def nothing_left(self) -> None:
        """No process, no runtime folder, no open port, no job that is said to run."""
        assert self.machine.pids() == []
        assert not (self.machine.path / "run/cosyd").exists()
        with socket.create_server(("127.0.0.1", self.port)):
            pass
        assert self.machine.rows("SELECT id FROM jobs WHERE state = 'running'") == []


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Booted once."""
    port = free_port()
    with booted(tmp_path_factory.mktemp("booted"), CONFIG.format(port=port)) as machine:
        service = Service(machine, port)
        yield service
        service.http.close()


@pytest.fixture
def service(system: Service) -> Iterator[Service]:
    """Stopped; whatever a test changed is undone."""
    config = system.machine.path / "etc/cosyd/cosyd.toml"
    before = config.read_text("utf-8")
    yield system
    system.machine.run("systemctl", "stop", "cosyd", timeout_s=120)
    system.machine.run("systemctl", "reset-failed")
    config.write_text(before, encoding="utf-8")
    drop_in = system.machine.path / DROP_IN
    if drop_in.exists():
        drop_in.unlink()
        system.systemctl("daemon-reload")


def drop_in(service: Service, text: str) -> None:
    """Settings that a test needs quicker than a household does."""
    path = service.machine.path / DROP_IN
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"[Service]\n{text}\n", encoding="utf-8")
    service.systemctl("daemon-reload")


def test_it_is_ready_after_its_first_round_and_leaves_nothing_when_stopped(service: Service) -> None:
    service.systemctl("start", "cosyd")  # returns with READY=1
    found = service.machine.show("ActiveState", "StatusText", "NRestarts")
    assert found["ActiveState"] == "active"
    assert "page" in found["StatusText"], found
    assert "RAM free" in found["StatusText"]  # a look at the memory came first
    assert service.machine.rows("SELECT kind FROM events")[0]["kind"] == "started"
    wait_for(service.healthy, 120, "the page")
    wait_for(lambda: "page ready" in service.machine.show("StatusText")["StatusText"], 30, "its status")
    began = time.monotonic()
    service.systemctl("stop", "cosyd")
    print(f"\nstopped in {time.monotonic() - began:.1f} s")
    service.nothing_left()


def test_the_kernel_would_take_a_child_before_the_supervisor(service: Service) -> None:
    service.start()
    scores = {}
    for line in service.machine.pids():
        pid, _, command = line.split(None, 2)
        text = service.machine.run("cat", f"/proc/{pid}/oom_score_adj", check=True).stdout
        scores[command.split("-m ")[1].split()[0]] = int(text)
    # A container may not go below 0; tests/unit/test_units.py holds that the unit asks for -300.
    assert scores["ui"] == 500 > scores["daemon.supervisor"]


def test_d03_a_supervisor_that_hangs_is_restarted_by_the_watchdog_and_the_job_goes_on(
    service: Service,
) -> None:
    drop_in(service, "WatchdogSec=4\nTimeoutAbortSec=2\nRestartSec=100ms")
    service.start()
    job, before = service.submit(), service.main_pid()
    service.machine.run("kill", "-STOP", str(before), check=True)
    wait_for(lambda: service.main_pid() not in (0, before), 60, "another supervisor")
    assert service.heard(job) == NUMBERS
    assert service.machine.show("NRestarts")["NRestarts"] == "1"
    assert len(service.machine.rows(f"SELECT id FROM generations WHERE job_id = '{job}'")) == 1


def test_d05_killed_outright_it_comes_back_and_nobody_of_before_is_left(service: Service) -> None:
    drop_in(service, "RestartSec=100ms")
    service.start()
    job = service.submit()
    old = {line.split()[0] for line in service.machine.pids()}
    service.systemctl("kill", "--kill-who=main", "--signal=KILL", "cosyd")
    wait_for(lambda: not old & {line.split()[0] for line in service.machine.pids()}, 30, "the end of the old")
    assert service.heard(job) == NUMBERS


def test_d09_stop_while_speaking_ends_soon_and_the_job_goes_on_at_the_next_start(service: Service) -> None:
    service.start()
    job = service.submit()
    began = time.monotonic()
    service.systemctl("stop", "cosyd")
    took = time.monotonic() - began
    found = service.machine.show("Result", "ExecMainStatus")
    assert found == {"Result": "success", "ExecMainStatus": "0"}, service.machine.journal()
    assert took < 20
    assert service.state_of(job) == "queued"
    service.nothing_left()
    kept = service.done_segments(job)
    assert kept >= 1
    service.start()
    assert service.heard(job) == NUMBERS
    print(f"\nstopped in {took:.1f} s with {kept} of {SENTENCES} pieces kept")


def test_a_reload_reads_the_configuration_again_and_a_wrong_one_changes_nothing(service: Service) -> None:
    service.start()
    pid = service.main_pid()
    config = service.machine.path / "etc/cosyd/cosyd.toml"
    effective = service.machine.path / "run/cosyd/effective.json"
    shown = service.machine.run("cat", "/run/cosyd/effective.json").stdout
    assert '"keep_alive": 600' in shown.replace(":6", ": 6"), effective
    config.write_text(config.read_text("utf-8").replace("10 min", "20 min"), encoding="utf-8")

    def reloads() -> int:
        return len(service.machine.rows("SELECT id FROM events WHERE kind = 'config_reloaded'"))

    before = reloads()
    service.systemctl("reload", "cosyd")
    wait_for(lambda: reloads() == before + 1, 20, "the reload")
    assert "1200" in service.machine.run("cat", "/run/cosyd/effective.json").stdout
    config.write_text("keep_alive = 'never mind'\n", encoding="utf-8")
    service.systemctl("reload", "cosyd")
    wait_for(lambda: "configuration was not read again" in service.machine.journal(), 20, "its refusal")
    assert service.main_pid() == pid
    assert service.machine.show("ActiveState")["ActiveState"] == "active"
    assert service.healthy()


def test_d08_a_port_that_is_taken_fails_once_with_the_cure(service: Service) -> None:
    with socket.create_server(("127.0.0.1", service.port)):
        assert service.machine.run("systemctl", "start", "cosyd", timeout_s=120).returncode != 0
    found = service.machine.show("ActiveState", "NRestarts", "ExecMainStatus", "StatusText")
    assert (found["ActiveState"], found["NRestarts"], found["ExecMainStatus"]) == ("failed", "0", "78")
    assert str(service.port) in found["StatusText"], found
    shown = service.machine.run("systemctl", "status", "cosyd", "--no-pager").stdout
    assert found["StatusText"] in shown


def test_d01_a_start_that_cannot_work_ends_in_failed_with_the_cure(service: Service) -> None:
    """A database of a newer cosyd, again and again."""
    service.start()
    service.systemctl("stop", "cosyd")
    drop_in(service, "RestartSec=100ms")
    database = service.machine.path / "var/lib/cosyd/cosyd.db"
    with sqlite3.connect(database) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        conn.execute("PRAGMA user_version = 9999")
    conn.close()
    try:
        service.machine.run("systemctl", "start", "cosyd", timeout_s=120)
        service.machine.wait_state("failed", 90)
        found = service.machine.show("Result", "NRestarts", "ExecMainStatus", "StatusText")
        assert found["ExecMainStatus"] == "75"
        assert int(found["NRestarts"]) <= 5
        shown = service.machine.run("systemctl", "status", "cosyd", "--no-pager").stdout
        assert found["StatusText"] and found["StatusText"] in shown
        print(f"\n{found['StatusText']}")
    finally:
        with sqlite3.connect(database) as conn:
            conn.execute(f"PRAGMA user_version = {version}")
        conn.close()
    service.machine.run("systemctl", "reset-failed")
    service.start()


def test_e07_in_a_container_there_is_no_swap_helper_and_the_service_starts(service: Service) -> None:
    service.machine.run("systemctl", "start", "cosyd-swap.socket")
    found = service.machine.show("ActiveState", "ConditionResult", unit="cosyd-swap.socket")
    assert found == {"ActiveState": "inactive", "ConditionResult": "no"}
    service.start()


def test_the_swap_helper_answers_from_its_sandbox_with_the_machines_own_folder_in_hand(
    service: Service,
) -> None:
    """What swapon makes of that is seen in the virtual machine; here it is asked in a container."""
    machine = service.machine
    for unit in ("cosyd-swap.socket", "cosyd-swap.service"):
        folder = machine.path / f"etc/systemd/system/{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text("[Unit]\nConditionVirtualization=\n", encoding="utf-8")
    service.systemctl("daemon-reload")
    service.systemctl("start", "cosyd-swap.socket")
    try:
        asked = machine.run("/opt/cosyd/venv/bin/cosyd", "admin", "swap", "status", "--json", check=True)
        told = json.loads(asked.stdout)
        assert (told["helper"], told["obstacle"]) == (True, "container"), told
        pid = machine.show("MainPID", unit="cosyd-swap.service")["MainPID"]
        folder, root = machine.run(
            "readlink", f"/proc/{pid}/fd/4", f"/proc/{pid}/cwd", check=True
        ).stdout.split()
        assert (folder, root) == ("/var/lib/cosyd-swap", "/")
        mounts = machine.run("cat", f"/proc/{pid}/mountinfo", check=True).stdout
        (own,) = [line for line in mounts.splitlines() if line.split()[4] == "/"]
        given = machine.run("cat", f"/proc/{pid}/fdinfo/4", check=True).stdout
        mount_of = next(line.split()[1] for line in given.splitlines() if line.startswith("mnt_id:"))
        assert own.split()[5].startswith("ro") and mount_of != own.split()[0], "opened before the sandbox"
    finally:
        machine.run("systemctl", "stop", "cosyd-swap.socket", "cosyd-swap.service")
        for unit in ("cosyd-swap.socket", "cosyd-swap.service"):
            (machine.path / f"etc/systemd/system/{unit}.d/test.conf").unlink()
        service.systemctl("daemon-reload")


def test_the_journal_never_has_what_was_spoken(service: Service) -> None:
    assert "calm sentence" not in service.machine.journal()
    assert Path(service.machine.path / "var/log/journal").exists() or service.machine.journal()
