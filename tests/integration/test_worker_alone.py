"""`working_alone`: jobs are spoken without a service, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import queue
from pipeline.alone import working_alone
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import Config, Layer, resolve
from tests.integration.harness_worker import ROOT, House, eventually, is_gone

CONFIG = resolve(
    [Layer("test", {"engines.extra": {"scripted": "tests.engines.scripted:ScriptedEngine"}, "lease_s": 2.0})]
).config


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, CONFIG)
    yield house
    house.close()


def workers_of(house: House) -> list[int]:
    """Pids of living processes that were started for this state folder."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            environ = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if f"COSYD_STATE_DIR={house.paths.root}".encode() in environ.split(b"\0"):
            found.append(int(folder.name))
    return [pid for pid in found if not is_gone(pid)]


def test_a_job_is_spoken_without_a_service(house: House) -> None:
    with working_alone(house.paths, house.config):
        job_id = house.submit("Number 7 is spoken by nobody but us.")
        house.wait_state(job_id, "done")
    assert house.row(job_id)["status"] == "done"
    assert workers_of(house) == []
    assert list(house.paths.tmp.iterdir()) == []


def test_what_is_not_finished_is_given_back(house: House) -> None:
    with working_alone(house.paths, house.config):
        job_id = house.submit("Number 7 has to wait for the gate to open.")
        house.wait_in_segment(job_id, 0)
    assert house.state(job_id) == "queued" and workers_of(house) == []


def test_what_was_broken_off_ends_with_a_row_and_waits_for_no_service(house: House) -> None:
    with working_alone(house.paths, house.config):
        job_id = house.submit("Number 7 is broken off by Ctrl+C or by head.")
        queue.request_cancel(house.conn, job_id, time.time())
    assert house.state(job_id) == "cancelled" and house.row(job_id)["status"] == "cancelled"


def test_a_job_that_a_killed_process_held_is_spoken_too(house: House) -> None:
    job_id = house.submit("Number 7 was begun by somebody who is gone.")
    house.conn.execute(
        "UPDATE jobs SET state='running', lease_owner='x:1', lease_token='t', "
        "lease_until='2020-01-01T00:00:00.000000Z'"
    )
    with working_alone(house.paths, house.config):
        house.wait_state(job_id, "done")


def test_a_text_that_kills_its_workers_fails(house: House) -> None:
    with working_alone(house.paths, house.config):
        job_id = house.submit("Number 7 is a crash and nothing else today.")
        house.wait_state(job_id, "failed")
    assert house.row(job_id)["error_code"] == "worker_died" and workers_of(house) == []


@pytest.mark.parametrize(("load", "code"), [("missing", "model_missing"), ("oom", "out_of_memory")])
def test_an_engine_that_cannot_load_ends_its_jobs(
    house: House, monkeypatch: pytest.MonkeyPatch, load: str, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCRIPTED_LOAD", load)
    with working_alone(house.paths, house.config):
        job_id = house.submit("Number 7 will never be heard by anybody.")
        house.wait_state(job_id, "failed")
    assert house.row(job_id)["error_code"] == code
    assert "Number 7" not in capfd.readouterr().err


def test_with_a_service_that_starts_meanwhile_no_worker_is_started(house: House) -> None:
    house.paths.run.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as service, working_alone(house.paths, house.config):
        service.bind(str(house.paths.control_socket))
        service.listen()
        job_id = house.submit("Number 7 is for the service to speak.")
        accepted, _ = service.accept()  # it asked whether somebody is there
        accepted.close()
        assert house.state(job_id) == "queued" and workers_of(house) == []


def test_without_a_database_it_says_so_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(CosydError, match="schema_mismatch"),
        working_alone(StatePaths.at(tmp_path, {}), Config()),
    ):
        raise AssertionError("not reached")


def test_a_killed_command_leaves_no_worker(house: House) -> None:
    job_id = house.submit("Number 7 has to wait for the gate to open.")
    script = (
        "import sys, threading, pathlib\n"
        "from pipeline.alone import working_alone\n"
        "from pipeline.paths import StatePaths\n"
        "from pipeline.profile import from_json\n"
        "paths = StatePaths.at(pathlib.Path(sys.argv[1]), {})\n"
        "with working_alone(paths, from_json(paths.effective_config.read_text())):\n"
        "    threading.Event().wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(house.paths.root)], cwd=ROOT) as command:
        house.wait_in_segment(job_id, 0)
        (worker,) = workers_of(house)
        os.kill(command.pid, signal.SIGKILL)
    eventually(lambda: is_gone(worker), "the worker is gone", limit_s=1.0)
