"""A real cosyd for tests: supervisor, web and workers as real processes on a free loopback port.

    with Service(tmp_path) as service:
        service.post("/v1/audio/speech", json={...})

Every wait has a deadline; nothing sleeps blindly. `Service` leaves no process behind, and says so by failing
when one is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from pipeline.rpc import LineReader, raise_failure, request

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {"engines.extra": "numbers=tests.engines.numbers:NumbersEngine"}
T = TypeVar("T")


def wait_for(check: Callable[[], T | None], timeout_s: float, what: str, every_s: float = 0.02) -> T:
    """Poll `check` until it gives something true. Raises AssertionError naming `what` at the deadline."""
    end = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(every_s)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Service:
    """One running instance. `settings` are dotted configuration keys given as `--set key=value`."""

    def __init__(
        self,
        state: Path,
        settings: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        ready_timeout_s: float = 60.0,
    ) -> None:
        self.state = state
        self.settings = dict(NUMBERS) | {"web.host": "127.0.0.1"} | dict(settings or {})
        self.port = port or free_port()
        self.log = state.parent / f"{state.name}.log"
        self._env = dict(env or {})
        self._ready_timeout_s = ready_timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, timeout=120.0, trust_env=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.state / "cosyd.db"

    # -- life ---------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """How the supervisor is started."""
        flags = ["--state", str(self.state), "--port", str(self.port)]
        for key, value in self.settings.items():
            flags += ["--set", f"{key}={value}"]
        return [sys.executable, "-m", "daemon.supervisor", *flags]

    def start(self, *, wait: bool = True) -> Service:
        """Start the supervisor; with `wait`, until /healthz answers."""
        self.state.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COSYD_", "NOTIFY_"))} | self._env
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), self._env.get("PYTHONPATH"))))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Until the page could be served."""

        def healthy() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"supervisor ended with {self.process.returncode}\n{self.tail()}")
            try:
                return httpx.get(f"{self.url}/healthz", timeout=2.0, trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_for(healthy, self._ready_timeout_s, "/healthz", 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM and wait; returns the exit status. Raises AssertionError if a process of it is left."""
        assert self.process is not None
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill_all()
                raise AssertionError(f"did not stop in {timeout_s} s\n{self.tail()}") from None
        self.gone(family, 3.0)
        return int(self.process.returncode)

    def kill_all(self) -> None:
        """SIGKILL to whatever is left of this instance."""
        for process in self.family():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def __enter__(self) -> Service:
        try:
            return self.start()
        except BaseException:
            self.kill_all()  # no `__exit__` follows
            raise

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.kill_all()
            self.http.close()

    def tail(self, lines: int = 60) -> str:
        """The end of the log, for failure messages."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    # -- processes ----------------------------------------------------------------------------------

    def family(self) -> list[psutil.Process]:
        """All live processes of this state folder, the supervisor first."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("COSYD_STATE_DIR") == str(self.state):
                    found.append(process)
                elif str(self.state) in process.cmdline() and "daemon.supervisor" in process.cmdline():
                    found.insert(0, process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    @staticmethod
    def gone(processes: list[psutil.Process], timeout_s: float) -> None:
        """Assert that all of `processes` end within `timeout_s`."""

        def left() -> list[str]:
            names = []
            for process in processes:
                try:
                    if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                        names.append(" ".join(process.cmdline()))
                except psutil.NoSuchProcess:
                    continue
            return names

        wait_for(lambda: not left(), timeout_s, f"the end of {left()}")

    def child(self, module: str, timeout_s: float = 20.0) -> psutil.Process:
        """The child that runs `module` (`ui`, `pipeline.worker`), once it is there."""

        def find() -> psutil.Process | None:
            for process in self.family():
                try:
                    if module in process.cmdline():
                        return process
                except psutil.NoSuchProcess:
                    continue
            return None

        return wait_for(find, timeout_s, f"a process of {module}")

    # -- talking to it ------------------------------------------------------------------------------

    def speech(self, text: str, *, voice: str = "numbers", fmt: str = "pcm", **more: Any) -> httpx.Response:
        """POST /v1/audio/speech, whole body."""
        body = {"model": "tts-1", "input": text, "voice": voice, "response_format": fmt, **more}
        return self.http.post("/v1/audio/speech", json=body)

    def submit(self, text: str, *, voice: str = "numbers", **more: Any) -> str:
        """POST /api/jobs; the job's id."""
        response = self.http.post("/api/jobs", json={"v": 1, "text": text, "voice": voice, **more})
        assert response.status_code in (200, 201, 202), response.text
        return str(response.json()["id"])

    def control(self, method: str, timeout_s: float = 10.0, **params: Any) -> Any:
        """One call on control.sock."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(self.state / "run" / "control.sock"))
            sock.sendall(request(1, method, params))
            reader = LineReader()
            while data := sock.recv(65536):
                for message in reader.feed(data):
                    if message.get("id") == 1:
                        if "error" in message:
                            raise_failure(message["error"])
                        return message.get("result")
        raise AssertionError("control.sock closed without an answer")

    @contextmanager
    def db(self) -> Iterator[sqlite3.Connection]:
        """A reading connection."""
        conn = sqlite3.connect(self.database, timeout=10, isolation_level=None)
        conn.row_factory = sqlite3.Row
        try:
            yield conn
        finally:
            conn.close()

    def rows(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """All rows of a query."""
        with self.db() as conn:
            return [dict(row) for row in conn.execute(sql, params)]

    def wait_job(self, job_id: str, timeout_s: float = 60.0, state: str | None = None) -> dict[str, Any]:
        """The job's row once it is over (or in `state`)."""

        def over() -> dict[str, Any] | None:
            found = self.rows("SELECT * FROM jobs WHERE id = ?", job_id)
            if found and found[0]["state"] in ((state,) if state else ("done", "failed", "cancelled")):
                return found[0]
            return None

        try:
            return wait_for(over, timeout_s, f"the end of job {job_id}", 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.rows('SELECT * FROM jobs')}\n{self.tail()}") from None

    def generations(self, count: int, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """All generation rows once there are `count`: a row is written just after the last sound went out."""
        wait_for(
            lambda: self.rows("SELECT count(*) AS n FROM generations")[0]["n"] >= count,
            timeout_s,
            f"{count} generation rows",
        )
        return self.rows("SELECT * FROM generations ORDER BY created_at")

    def event_kinds(self) -> list[str]:
        """Kinds of all events so far, in order."""
        return [row["kind"] for row in self.rows("SELECT kind FROM events ORDER BY rowid")]

    def status(self) -> dict[str, Any]:
        """The supervisor's status object."""
        value = self.control("status")
        assert isinstance(value, dict), json.dumps(value)
        return value


S = TypeVar("S", bound=Service)


@contextmanager
def all_stopped(made: list[S]) -> Iterator[list[S]]:
    """At the end each of `made` is stopped in order, and nothing of it is left whatever it says."""
    yield made
    for service in made:
        try:
            service.stop()
        finally:
            service.kill_all()
            service.http.close()


def ended(service: Service, timeout_s: float = 30.0) -> int:
    """Start, expect the supervisor to give up, return its exit status."""
    service.start(wait=False)
    assert service.process is not None
    try:
        return service.process.wait(timeout_s)
    finally:
        service.kill_all()


def plain_words(service: Service) -> str:
    """The log, which must hold no traceback."""
    text = service.log.read_text()
    assert "Traceback" not in text, text
    return text
