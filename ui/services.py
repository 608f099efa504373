"""What the routes share: configuration, the database through threads, the link, the supervisor's last state.

One instance per web process, made in `ui.app`. SQLite runs in threads, each with its own connections, so that
the event loop never waits for a lock: accepting a job may wait 30 s for one (CONTRACTS 3).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pipeline.access import ApiKey, check_api_key, check_session, hash_token, touch_api_key
from pipeline.audio.tags import ai_tag
from pipeline.clock import Clock, SystemClock
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import Kind, check_place, connect, file_identity, storage_error
from pipeline.voices.catalogue import Voice, ready_made
from pipeline.voices.registry import cloned_voices
from pipeline.voices.saved import saved_voices
from ui.scratch import scratch_of

P = ParamSpec("P")
T = TypeVar("T")

WRITE_THREADS = 32
"""As many clients as may wait for a locked database at once; idle threads are reused, new ones rare."""
READ_THREADS = 4
AUDIO_THREADS = 4
ENTRY_KEPT_S = 5.0
"""How long a credential that was good is not looked up again; a revoked key works that much longer."""


class Uplink(Protocol):
    """What the web says to the supervisor; `pipeline.rpc.Link` is one."""

    def notify(self, method: str, **params: Any) -> bool: ...

    def call(self, method: str, *, timeout_s: float, **params: Any) -> Any: ...


class Services:
    """Shared by all routes. `link` is None where no supervisor is (a web of its own in tests)."""

    def __init__(
        self, config: Config, paths: StatePaths, link: Uplink | None = None, clock: Clock | None = None
    ) -> None:
        self.config, self.paths, self.link = config, paths, link
        self.clock: Clock = clock or SystemClock()
        self.state: Mapping[str, Any] = {}
        self.draining = False
        self.closing = False
        """Nobody takes over: what is not spoken now is spoken after the next start."""
        self.ready_made: tuple[Voice, ...] = ready_made(config.engines.extra)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._local = threading.local()
        self._file: tuple[int, int] | None = None
        self._open: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._writers = ThreadPoolExecutor(WRITE_THREADS, "accept")
        self._readers = ThreadPoolExecutor(READ_THREADS, "read")
        self._audio = ThreadPoolExecutor(AUDIO_THREADS, "audio")
        self._entries: dict[str, float] = {}

    @property
    def voices(self) -> tuple[Voice, ...]:
        """All voices of this moment; the ready-made ones when the database does not answer. Some 50 us."""
        try:
            return (*self.ready_made, *self.read_now(cloned_voices), *saved_voices(self.paths))
        except CosydError:
            return self.ready_made

    @property
    def scratch(self) -> Path:
        """The folder for this process's temporary files; removed with it (`ui.scratch`)."""
        folder = scratch_of(self.paths.tmp, os.getpid())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def tag(self, job_id: str) -> str:
        """What a file of this recording says of itself; "" where that is switched off."""
        return ai_tag(job_id) if self.config.outputs.ai_tag else ""

    # -- database -----------------------------------------------------------------------------------

    def connection(self, kind: Kind) -> sqlite3.Connection:
        """This thread's connection of `kind`."""
        conn: sqlite3.Connection | None = getattr(self._local, kind, None)
        if self._file is None:
            self._file = file_identity(self.paths.database)
        else:
            check_place(self.paths.database, self._file)
        if conn is None:
            # any_thread: `close` runs in the main thread, when no other uses it any more.
            conn = connect(self.paths.database, kind, any_thread=True)
            setattr(self._local, kind, conn)
            with self._lock:
                self._open.append(conn)
        return conn

    def read_now(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """`work(connection, ...)` in this thread, read-only. Raises CosydError for what the store means."""
        try:
            return work(self.connection("read"), *args, **kw)
        except sqlite3.Error as error:
            raise storage_error(error) or error from error

    async def read(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """`read_now` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: self.read_now(work, *args, **kw))

    async def write(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """`work(connection, ...)` in a thread, on a connection that waits for a lock and syncs fully."""

        def run() -> T:
            try:
                return work(self.connection("accept"), *args, **kw)
            except sqlite3.Error as error:
                raise storage_error(error) or error from error

        return await asyncio.get_running_loop().run_in_executor(self._writers, run)

    async def in_audio_thread(self, work: Callable[[], T]) -> T:
        """Run a step of decoding or encoding (milliseconds) off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._audio, work)

    # -- supervisor ---------------------------------------------------------------------------------

    def tell(self, method: str, **params: Any) -> None:
        """A message that only makes things fast: the database is the truth, so a lost one is no error."""
        if self.link is not None:
            self.link.notify(method, **params)

    async def ask(self, method: str, *, timeout_s: float, **params: Any) -> Any:
        """A call to the supervisor. Raises its CosydError, or `shutting_down`."""
        link = self.link
        if link is None:
            raise CosydError("shutting_down", retry_after_s=2.0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._readers, lambda: link.call(method, timeout_s=timeout_s, **params)
        )

    # -- who may come in ----------------------------------------------------------------------------

    async def may_enter(self, session: str | None, key: str | None) -> bool:
        """Whether a session cookie or a bearer key is good. Looks into the database at most each 5 s."""
        now = self.clock.monotonic()
        shown = [hash_token(token) for token in (session, key) if token]
        if any(self._entries.get(entry, 0.0) > now for entry in shown):
            return True
        if not shown:
            return False
        good, used = await self.read(_look_up, session, key, self.clock.wall())
        if good:
            if len(self._entries) > 1000:
                self._entries = {k: until for k, until in self._entries.items() if until > now}
            self._entries[hash_token(good)] = now + ENTRY_KEPT_S
        if used is not None:
            self.later(self._touch(used))
        return good is not None

    async def _touch(self, key: ApiKey) -> None:
        try:
            await self.write(touch_api_key, key, self.clock.wall())
        except CosydError:
            pass  # `last_used_at` is a convenience; the request must not fail for it

    # -- life ---------------------------------------------------------------------------------------

    def later(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine beside the request; kept alive until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def close(self) -> None:
        """Stop the threads and close every connection."""
        for pool in (self._writers, self._readers, self._audio):
            pool.shutdown(wait=True, cancel_futures=True)
        for conn in self._open:
            conn.close()
        self._open.clear()


def _look_up(
    conn: sqlite3.Connection, session: str | None, key: str | None, now: float
) -> tuple[str | None, ApiKey | None]:
    if session and check_session(conn, session, now) is not None:
        return session, None
    if key and (found := check_api_key(conn, key)) is not None:
        return key, found
    return None, None
