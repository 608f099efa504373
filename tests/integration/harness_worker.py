"""A tiny supervisor for tests: one real worker process over a real socketpair."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pipeline import queue, rpc
from pipeline.child import lease_owner
from pipeline.jobs import JobRequest, Lane
from pipeline.paths import StatePaths
from pipeline.profile import Config, to_json
from pipeline.store.db import connect
from pipeline.store.migrate import migrate

T = TypeVar("T")
LIMIT_S = 20.0
ROOT = Path(__file__).resolve().parents[2]


def eventually(look: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """Poll until `look` gives something true; fails with `what` after the limit."""
    end = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.005)
    return found


def is_gone(pid: int) -> bool:
    """No such process, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class House:
    """A state folder with its database, and the configuration that workers get."""

    def __init__(self, root: Path, config: Config) -> None:
        self.paths = StatePaths.at(root, {})
        self.paths.ensure()
        migrate(self.paths, now=time.time())
        self.config = config
        self.paths.effective_config.write_text(to_json(config))
        self.conn = connect(self.paths.database, "accept")

    def submit(
        self,
        text: str,
        *,
        lane: Lane = Lane.page,
        client: str = "a",
        seed: int = 7,
        engine: str = "scripted",
    ) -> str:
        request = JobRequest(text=text, voice=engine, source="page", client=client, seed=seed)
        return queue.submit(self.conn, request, engine=engine, lane=lane, now=time.time(), config=self.config)

    def state(self, job_id: str) -> str:
        job = queue.get_job(self.conn, job_id)
        assert job is not None
        return str(job.state)

    def wait_state(self, job_id: str, wanted: str, limit_s: float = LIMIT_S) -> None:
        eventually(lambda: self.state(job_id) == wanted, f"job is {wanted}", limit_s)

    def segment_states(self, job_id: str) -> list[str]:
        return [str(s.state) for s in queue.load_segments(self.conn, job_id)]

    def folder(self, job_id: str) -> Path:
        job = queue.get_job(self.conn, job_id)
        assert job is not None
        return self.paths.job_dir(job.created_at, job_id)

    def wait_in_segment(self, job_id: str, idx: int) -> None:
        """Until the part file of that segment has its first samples."""
        part = self.folder(job_id) / f"{idx:04d}.part"
        eventually(lambda: part.exists() and part.stat().st_size > 0, f"segment {idx} is being made")

    def row(self, job_id: str) -> dict[str, Any]:
        return dict(self.conn.execute("SELECT * FROM generations WHERE id=?", (job_id,)).fetchone())

    def open_gate(self) -> None:
        (self.paths.root / "gate").touch()

    def close(self) -> None:
        self.conn.close()


class WorkerProcess:
    """`python -m pipeline.worker`, and everything that it said."""

    def __init__(self, house: House, engine: str = "scripted", **environ: str) -> None:
        self.messages: list[tuple[float, dict[str, Any]]] = []
        self._news = threading.Condition()
        self._next_id = 0
        self._house = house
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "pipeline.worker", "--engine", engine],
                cwd=ROOT,
                env={
                    **os.environ, "COSYD_LINK_FD": str(theirs.fileno()), "COSYD_INSTANCE": "test",
                    "COSYD_PARENT_PID": str(os.getpid()), "COSYD_STATE_DIR": str(house.paths.root),
                    "COSYD_CONFIG": str(house.paths.effective_config), **environ,
                },
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.stderr = b""
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def owner(self) -> str:
        return lease_owner("test", self.pid)

    def _read(self) -> None:
        reader = rpc.LineReader()
        try:
            while data := self.sock.recv(65536):
                with self._news:
                    self.messages += [(time.monotonic(), message) for message in reader.feed(data)]
                    self._news.notify_all()
        except OSError:
            pass

    def _drain(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as stream:
            for line in stream:
                self.stderr += line

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [m.get("params", {}) for _, m in list(self.messages) if m.get("method") == method]

    def wait_for(self, method: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        with self._news:
            if not self._news.wait_for(lambda: self.heard(method), limit_s):
                raise AssertionError(f"no {method} within {limit_s:g} s; stderr: {self.stderr!r}")
        return self.heard(method)[0]

    def send(self, method: str, **params: Any) -> None:
        self.sock.sendall(rpc.notification(method, params))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next_id += 1
        call_id = self._next_id
        self.sock.sendall(rpc.request(call_id, method, params))

        def answer() -> dict[str, Any] | None:
            return next((m for _, m in list(self.messages) if m.get("id") == call_id), None)

        with self._news:
            found = self._news.wait_for(answer, LIMIT_S)
        assert found, f"no answer to {method}"
        return found

    def kill(self) -> None:
        """kill -9, and what the supervisor does then."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(LIMIT_S)
        queue.requeue_owner(self._house.conn, self.owner, time.time())

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status."""
        return self.popen.wait(limit_s)

    def close(self) -> None:
        if self.popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        self.sock.close()
        self._drainer.join(LIMIT_S)
