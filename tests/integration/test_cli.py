"""`cosyd` as a real process against a real control socket, database and worker loop.

The supervisor's end of control.sock is played by a thread with the product's own framing; the queue is worked
by the product's Runner with the scripted engine, so what comes out can be read back from the samples.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from daemon.configuration import write_effective
from pipeline.audio.tags import ai_tag
from pipeline.jobs import JobState
from pipeline.paths import StatePaths
from pipeline.profile import Layer, resolve
from pipeline.queue import get_job
from pipeline.rpc import Link
from pipeline.runner import Runner
from tests.engines.scripted import ScriptedEngine, heard_numbers
from tests.unit.audiokit import comments
from tests.unit.storekit import new_state, opened

WAIT_S = 60.0


def poll(what: Callable[[], Any], message: str = "") -> Any:
    """Wait for `what()` to be true."""
    end = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < end, message or "waited too long"
        time.sleep(0.01)
    return found


class Service:
    """A control socket that answers as the supervisor does, and a worker for the scripted engine."""

    def __init__(self, paths: StatePaths) -> None:
        self.paths = paths
        extra = {"scripted": "tests.engines.scripted:ScriptedEngine"}
        self.config = resolve([Layer("test", {"engines.extra": extra, "web.port": 0})]).config
        write_effective(paths, self.config)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.status: dict[str, Any] = {
            "pid": os.getpid(), "level": "OK", "web": {"state": "ready"},
            "engines": {"scripted": {"state": "ready"}, "builtin": {"state": "absent"}},
        }  # fmt: skip
        self._links: list[Link] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(paths.control_socket))
        self._server.listen()
        self.runner = Runner(
            name="scripted", owner="test", paths=paths, config=self.config, on_hang=lambda why: None
        )
        self._threads = [
            threading.Thread(target=self._accept, name="control"),
            threading.Thread(target=lambda: self.runner.run(ScriptedEngine()), name="runner"),
        ]
        for thread in self._threads:
            thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            names = ("status", "job_queued", "cancel", "restart")
            handlers = {name: (lambda params, name=name: self._answer(name, params)) for name in names}
            self._links.append(Link(sock, handlers).start())

    def _answer(self, method: str, params: dict[str, Any]) -> Any:
        self.calls.append((method, params))
        if method == "job_queued":
            self.runner.work_available()
        if method == "cancel":
            self.runner.cancel(params["job"])
        return self.status if method == "status" else {}

    def close(self) -> None:
        self.runner.leave(0.0)
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        for link in self._links:
            link.close()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    paths = new_state(tmp_path / "s")
    monkeypatch.setenv("COSYD_STATE_DIR", str(paths.root))  # the scripted engine's gate is there
    running = Service(paths)
    yield running
    running.close()


def command(*args: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "daemon.cli.entry", *args]


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "COSYD_LANG": "en", "PYTHONPATH": os.getcwd(), **more}


def cosyd(*args: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        command(*args), input=stdin, capture_output=True, timeout=WAIT_S, env=environ(**more)
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


MORE = (
    "stands here at the head of a sentence that is long enough, with a little more to it,"
    " to be a piece of its own, so that nothing which comes after it is spoken together with it in one go."
)
TEXT = " ".join(f"Number {n} {MORE}" for n in (3, 5, 8))


def test_say_to_a_pipe_gives_a_wav_that_says_everything_once(service: Service) -> None:
    done = cosyd("say", TEXT, "--voice", "scripted", "--seed", "1")
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(io.BytesIO(done.stdout), dtype="float32")
    assert rate == 24_000
    assert heard_numbers(samples) == [3, 5, 8]
    assert ("job_queued", {"engine": "scripted"}) in service.calls


@pytest.mark.parametrize(
    ("name", "format"), [("a.wav", "WAV"), ("a.flac", "FLAC"), ("a.mp3", "MPEG"), ("a.ogg", "OGG")]
)
def test_say_to_a_file_has_the_format_of_its_ending_and_exact_sizes(
    service: Service, tmp_path: Path, name: str, format: str
) -> None:
    out = tmp_path / name
    done = cosyd("say", "-", "--voice", "scripted", "-o", str(out), "--json", stdin=TEXT.encode())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    info = soundfile.info(str(out))
    assert info.format in (format, "MP3")
    assert info.duration == pytest.approx(told["seconds"], abs=0.1)
    assert (told["engine"], told["voice"], told["output"]) == ("scripted", "scripted", str(out))
    with closing(opened(service.paths)) as conn:
        row = conn.execute(
            "SELECT status, source, text FROM generations WHERE id=?", (told["id"],)
        ).fetchone()
    assert tuple(row) == ("done", "cli", TEXT)
    assert not list(tmp_path.glob("*.part"))


def test_what_say_writes_is_tagged_as_ai_generated_unless_that_is_off(
    service: Service, tmp_path: Path
) -> None:
    said = ("say", "Number 3.", "--voice", "scripted")
    piped, out = tmp_path / "piped.wav", tmp_path / "out.mp3"
    piped.write_bytes(cosyd(*said).stdout)
    told = json.loads(cosyd(*said, "-o", str(out), "--json").stdout)
    assert comments(out) == [ai_tag(told["id"])]
    assert len(comments(piped)) == 1 and comments(piped)[0].startswith("AI-generated")
    off = replace(service.config, outputs=replace(service.config.outputs, ai_tag=False))
    write_effective(service.paths, off)
    assert cosyd(*said, "-o", str(out)).returncode == 0
    assert comments(out) == []


def test_what_was_said_is_in_the_history(service: Service, tmp_path: Path) -> None:
    assert cosyd("say", TEXT, "--voice", "scripted", "-o", str(tmp_path / "a.wav")).returncode == 0
    found = json.loads(cosyd("history", "piece numb", "--json").stdout)
    assert [g["text"] for g in found] == [TEXT]
    shown = cosyd("history", COLUMNS="200").stdout.decode()
    assert "Number 3 stands here" in shown
    nothing = cosyd("history", "elephant")
    assert (nothing.returncode, nothing.stdout) == (0, b"")
    assert b"No recording" in nothing.stderr


def test_play_hands_raw_samples_to_the_player(service: Service, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    heard = tmp_path / "heard.raw"
    (programs / "aplay").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args\ncat > {heard}\n')
    (programs / "aplay").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = cosyd("say", TEXT, "--voice", "scripted", "--play", PATH=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "args").read_text().split() == [
        "-q",
        "-t",
        "raw",
        "-f",
        "S16_LE",
        "-r",
        "24000",
        "-c",
        "1",
    ]
    samples = np.frombuffer(heard.read_bytes(), "<i2").astype(np.float32) / 32767
    assert heard_numbers(samples) == [3, 5, 8]


def only_job(service: Service) -> str | None:
    with closing(opened(service.paths)) as conn:
        row = conn.execute("SELECT id FROM jobs WHERE state='running'").fetchone()
    return None if row is None else str(row[0])


def state_of(service: Service, job_id: str) -> JobState:
    with closing(opened(service.paths)) as conn:
        job = get_job(conn, job_id)
    assert job is not None
    return job.state


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ctrl_c_cancels_the_job_and_ends_clean(service: Service, tmp_path: Path, number: int) -> None:
    out = tmp_path / "a.wav"
    child = subprocess.Popen(
        command("say", "Number 4 wait.", "--voice", "scripted", "-o", str(out)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(),
    )  # fmt: skip
    job_id = poll(lambda: only_job(service), "the job never ran")
    child.send_signal(number)
    _, said = child.communicate(timeout=WAIT_S)
    assert child.returncode == 130
    assert said.decode().strip().endswith("Stopped.")
    assert b"Traceback" not in said
    poll(lambda: state_of(service, job_id) is JobState.CANCELLED, "the job went on")
    assert ("cancel", {"job": job_id}) in service.calls
    assert not out.exists()


def test_a_reader_that_goes_away_cancels_the_job_quietly(service: Service) -> None:
    child = subprocess.Popen(
        command("say", "Number 4 wait.", "--voice", "scripted"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(),
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.read(44)[:4] == b"RIFF"
    child.stdout.close()
    job_id = poll(lambda: only_job(service))
    (service.paths.root / "gate").touch()
    assert child.wait(WAIT_S) == 1
    assert child.stderr.read() == b""
    child.stderr.close()
    poll(lambda: state_of(service, job_id) in (JobState.CANCELLED, JobState.DONE))


def test_a_player_that_fails_is_named(service: Service, tmp_path: Path) -> None:
    (tmp_path / "aplay").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "aplay").chmod(0o755)
    done = cosyd("say", TEXT, "--voice", "scripted", "--play", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert b"aplay could not play" in done.stderr


def test_a_job_that_fails_is_told_with_its_code(service: Service, tmp_path: Path) -> None:
    out = tmp_path / "a.wav"
    done = cosyd("say", "Number 4 poison.", "--voice", "scripted", "-o", str(out))
    assert done.returncode == 70
    assert b"sounded wrong" in done.stderr
    assert not out.exists()


def test_a_full_queue_is_told_with_exit_75(service: Service, tmp_path: Path) -> None:
    config = resolve(
        [
            Layer(
                "t",
                {
                    "engines.extra": dict(service.config.engines.extra),
                    "queue_max_s": 1,
                    "limits.short_requests_min": 0,
                },
            )
        ]
    ).config
    service.runner.leave(0.0)  # nobody works, so the first text stays
    write_effective(service.paths, config)
    child = subprocess.Popen(
        command("say", TEXT, "--voice", "scripted", "-o", str(tmp_path / "a.wav")),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ(),
    )  # fmt: skip
    with closing(opened(service.paths)) as conn:
        poll(lambda: conn.execute("SELECT count(*) FROM jobs").fetchone()[0])
    done = cosyd("say", TEXT, "--voice", "scripted", "-o", str(tmp_path / "b.wav"))
    assert done.returncode == 75
    assert b"Try again in" in done.stderr
    child.send_signal(signal.SIGINT)
    assert child.wait(WAIT_S) == 130


def test_status_and_restart_talk_to_the_running_cosyd(service: Service) -> None:
    shown = cosyd("status", "--json")
    assert shown.returncode == 0
    told = json.loads(shown.stdout)
    assert (told["running"], told["can_speak"], told["pid"]) == (True, True, os.getpid())
    assert cosyd("restart", "engine").returncode == 0
    told = [json.loads(cosyd("restart", target, "--json").stdout) for target in ("web", "all")]
    assert told == [
        {"target": "web", "engines": [], "web": True},
        {"target": "all", "engines": ["scripted"], "web": True},
    ]
    restarts = [params for method, params in service.calls if method == "restart"]
    assert restarts == [{"target": "worker:scripted"}, {"target": "web"}, {"target": "all"}]
    service.status = {**service.status, "engines": {"scripted": {"state": "failed", "code": "engine_failed"}}}
    failed = cosyd("status")
    assert failed.returncode == 75
    assert b"cosyd restart engine" in failed.stdout


def test_a_very_deep_state_folder_is_reached_all_the_same(tmp_path: Path) -> None:
    paths = new_state(tmp_path / ("d" * 100) / "s")
    folder = os.open(paths.run, os.O_PATH)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"/proc/self/fd/{folder}/control.sock")
    os.close(folder)
    server.listen()

    def answer() -> None:
        sock, _ = server.accept()
        gone = threading.Event()
        link = Link(sock, {"status": lambda _: {"engines": {}}}, gone.set).start()
        gone.wait(WAIT_S)
        link.close()

    thread = threading.Thread(target=answer)
    thread.start()
    done = cosyd("status", "--json", "--state", str(paths.root))
    thread.join(WAIT_S)
    server.close()
    assert json.loads(done.stdout)["running"] is True


def test_a_dead_socket_left_behind_counts_as_not_running(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(paths.control_socket))
    done = cosyd("status", "--state", str(paths.root))
    assert done.returncode == 75
    assert b"does not run here" in done.stderr


def test_a_wrong_configuration_is_told_before_anything_starts(tmp_path: Path) -> None:
    config = tmp_path / "cosyd.toml"
    config.write_text("kep_alive = 1\n")
    done = cosyd("run", "--state", str(tmp_path / "s"), "--config", str(config), COSYD_LANG="zh")
    assert done.returncode == 78
    assert "配置有误" in done.stderr.decode()
    assert not (tmp_path / "s").exists()


def test_head_may_close_the_pipe(service: Service) -> None:
    piped = subprocess.run(
        ["sh", "-c", f"{' '.join(command('admin', 'profile', 'show'))} | head -n 1"],
        capture_output=True, timeout=WAIT_S, env=environ(),
    )  # fmt: skip
    assert piped.stderr == b""


def test_say_works_alone_where_nothing_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    state, out = tmp_path / "fresh", tmp_path / "a.wav"
    done = cosyd("say", TEXT, "--voice", "scripted", "-o", str(out), "--state", str(state),
                 COSYD_ENGINES__EXTRA="scripted=tests.engines.scripted:ScriptedEngine",
                 COSYD_STATE_DIR=str(state))  # fmt: skip
    assert done.returncode == 0, done.stderr
    samples, _ = soundfile.read(out, dtype="float32")
    assert heard_numbers(samples) == [3, 5, 8]
    assert b"does not run here" in done.stderr
    with closing(opened(StatePaths.at(state, {}))) as conn:
        assert conn.execute("SELECT count(*) FROM generations WHERE status='done'").fetchone()[0] == 1
