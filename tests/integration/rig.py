"""A web process (and workers) without the supervisor: real children, real sockets, real database.

    with Rig(tmp_path) as rig:
        rig.http.get("/healthz")

The rig plays the supervisor's part of the links: it passes `job_queued` on as `work_available`, `cancel` as
`cancel`, sends `state`, and keeps what children said in `said`. Tests of the whole use
`tests.integration.service` instead.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from pipeline.paths import StatePaths
from pipeline.profile import Layer, resolve, to_json
from pipeline.rpc import Link
from pipeline.store.ensure import ensure_schema
from tests.integration.service import ROOT, wait_for


class Child:
    """One child process with its link; `said` has every (method, params) it sent."""

    def __init__(self, rig: Rig, module: list[str], fds: Mapping[str, int], name: str) -> None:
        self.name = name
        self.said: list[tuple[str, dict[str, Any]]] = []
        ours, theirs = socket.socketpair()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COSYD_", "NOTIFY_", "GRADIO_"))}
        env |= {
            "COSYD_LINK_FD": str(theirs.fileno()),
            "COSYD_INSTANCE": rig.instance,
            "COSYD_STATE_DIR": str(rig.paths.root),
            "COSYD_CONFIG": str(rig.paths.effective_config),
            "COSYD_PARENT_PID": str(os.getpid()),
            "PYTHONPATH": str(ROOT),
        } | rig.env
        if fds:
            env["COSYD_LISTEN_FDS"] = ",".join(f"{door}={fd}" for door, fd in fds.items())
        with rig.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "default", *module],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), *fds.values()],
            )
        theirs.close()
        handlers = {
            method: self._keeper(rig, method)
            for method in (
                "hello",
                "ready",
                "heartbeat",
                "oom",
                "drained",
                "fatal",
                "job_queued",
                "cancel",
                "trim",
                "restart",
            )
        }
        self.link = Link(ours, handlers, on_eof=lambda: None)
        self.link.start()  # only now: what it hears may be answered at once
        rig.children.append(self)

    def _keeper(self, rig: Rig, method: str) -> Any:
        def keep(params: dict[str, Any]) -> Any:
            self.said.append((method, params))
            return rig.heard(self, method, params)

        return keep

    def told(self, method: str) -> list[dict[str, Any]]:
        """Params of every message of that method."""
        return [params for name, params in self.said if name == method]

    def wait(self, method: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """The first message of that method."""

        def find() -> list[dict[str, Any]] | None:
            if self.process.poll() is not None and not self.told(method):
                raise AssertionError(f"{self.name} ended with {self.process.returncode}")
            return self.told(method) or None

        return wait_for(find, timeout_s, f"{method} of {self.name}")[0]

    def end(self) -> None:
        """SIGKILL, if it still runs."""
        self.link.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Rig:
    """`settings` are dotted configuration keys; `bind` the address of the listening socket."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        engines: tuple[str, ...] = ("numbers",),
        bind: str = "127.0.0.1",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.paths = StatePaths.at(folder / "state", {})
        self.paths.ensure()
        self.log = folder / "rig.log"
        self.env = dict(env or {})
        self.instance = secrets.token_hex(8)
        extra = {"numbers": "tests.engines.numbers:NumbersEngine"}
        values: dict[str, Any] = {"engines.extra": extra, "web.default_voice": "numbers"} | dict(
            settings or {}
        )
        self.config = resolve([Layer("test", values)]).config
        self.paths.effective_config.write_text(to_json(self.config))
        ensure_schema(self.paths)
        self.listener = socket.create_server((bind, 0), backlog=1024)
        self.port = int(self.listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.engines = engines
        self.web: Child | None = None
        self.children: list[Child] = []
        self.workers: dict[str, Child] = {}
        self.http = httpx.Client(base_url=self.url, timeout=60.0, trust_env=False)
        self._lock = threading.Lock()

    # -- life ---------------------------------------------------------------------------------------

    def __enter__(self) -> Rig:
        try:
            for engine in self.engines:
                self.start_worker(engine)
            self.start_web()
            for worker in self.workers.values():
                worker.wait("ready")
            self.send_state()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        for child in self.children:
            child.end()
        self.http.close()
        self.listener.close()

    def start_web(self) -> Child:
        """A web on the listening socket; waits until it is ready."""
        self.web = Child(self, ["-m", "ui"], {"http": self.listener.fileno()}, "web")
        try:
            self.web.wait("ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None
        return self.web

    def start_worker(self, engine: str) -> Child:
        """A worker of `engine`."""
        self.workers[engine] = Child(
            self, ["-m", "pipeline.worker", "--engine", engine], {}, f"worker {engine}"
        )
        return self.workers[engine]

    def tail(self) -> str:
        """The end of the children's log."""
        return self.log.read_text("utf-8", "replace")[-6000:]

    # -- the supervisor's part ----------------------------------------------------------------------

    def heard(self, child: Child, method: str, params: dict[str, Any]) -> Any:
        """What the supervisor does with a message."""
        if method == "job_queued":
            for worker in self.workers.values():
                worker.link.notify("work_available")
        elif method == "cancel":
            for worker in self.workers.values():
                worker.link.notify("cancel", **params)
        elif method == "trim":
            return {"web": {"rss_before": 200, "rss_after": 100}}
        elif method == "restart":
            return {"restarted": params.get("target")}
        return None

    def send_state(self, **changes: Any) -> None:
        """Push `state{...}` to the web."""
        engines = {
            name: {
                "state": "ready",
                "code": None,
                "params": {},
                "rss_bytes": 150 * 1024**2,
                "vram_bytes": None,
                "capabilities": {},
                "queued": 0,
                "running": 0,
                "wait_reason": None,
                "restarts": 0,
            }
            for name in self.engines
        }
        state: dict[str, Any] = {
            "pid": os.getpid(),
            "started_at": "2026-01-01T00:00:00.000000Z",
            "level": "ok",
            "ram": {"available_bytes": 9 * 1024**3, "total_bytes": 16 * 1024**3, "level": "ok"},
            "vram": None,
            "swap": {"used_bytes": 0, "total_bytes": 8 * 1024**3},
            "engines": engines,
            "web": {"state": "ready", "rss_bytes": 140 * 1024**2, "restarts": 0},
            "pressure": {"foreign": []},
            "profile": "cpu",
        } | changes
        assert self.web is not None
        self.web.link.notify("state", **state)
        wait_for(lambda: self.http.get("/api/state").json().get("known"), 10.0, "the state")

    # -- helpers ------------------------------------------------------------------------------------

    def speech(self, text: str, *, voice: str = "numbers", fmt: str = "pcm", **more: Any) -> httpx.Response:
        """POST /v1/audio/speech, whole body."""
        body = {"model": "tts-1", "input": text, "voice": voice, "response_format": fmt, **more}
        return self.http.post("/v1/audio/speech", json=body)

    def rows(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """All rows of a query."""
        conn = sqlite3.connect(self.paths.database, timeout=10)
        conn.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in conn.execute(sql, params)]
        finally:
            conn.close()
