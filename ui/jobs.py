"""From a checked request to a job and its sound: accept, follow, cancel. Used by every API.

The one place of the web that knows the queue. Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from pipeline import queue
from pipeline.acceptance import Accepted, accept, check_request, job_progress
from pipeline.audio.follow import JobFollower
from pipeline.codes import CosydError
from pipeline.jobs import FINAL_STATES, JobRequest, JobState
from pipeline.voices.catalogue import find_voice
from pipeline.voices.reference import F32
from ui.refusal import refusal
from ui.services import Services

WAIT_EVERY_S = 0.05
CLOSED_S = 10.0
"""When to come again after a stop: a restart takes about that long."""


class Desk:
    """Takes jobs in and follows them. One per web process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._listeners: Counter[str] = Counter()

    def check(self, fields: Mapping[str, Any], *, max_chars: int) -> JobRequest:
        """Validate loose fields, the voice included (OpenAI's names become the default voice).

        Raises CosydError; nothing is written.
        """
        services = self._services
        request, _ = check_request(
            fields, services.voices, services.config, services.paths.root, max_chars=max_chars
        )
        return request

    async def accept(
        self, request: JobRequest, *, patience_s: float, source: tuple[F32, int] | None = None
    ) -> Accepted:
        """Put a checked request into the queue. Committed when this returns. `source` is the recording of a
        conversion (mono samples, rate).

        Raises CosydError: `queue_full(retry_after)`, `foreign_memory`, `storage_full`, `storage_busy`,
        `shutting_down`.
        """
        services = self._services
        voice = find_voice(request.voice, services.voices, services.config.web.default_voice)

        if (error := refusal(services.state, voice.engine)) is not None:
            raise error

        def insert(conn: sqlite3.Connection) -> Accepted:
            return accept(
                conn,
                request,
                voice.engine,
                paths=services.paths,
                config=services.config,
                now=services.clock.wall(),
                patience_s=patience_s,
                source=source,
            )

        accepted = await services.write(insert)
        services.tell("job_queued", engine=voice.engine)
        return accepted

    # -- listening ----------------------------------------------------------------------------------

    def follower(self, job_id: str, created_at: str) -> JobFollower:
        """A reader of the job's sound. Drive it with `pcm`, in which it is closed."""
        paths = self._services.paths
        return JobFollower(
            paths.job_dir(created_at, job_id),
            paths.final_audio(created_at, job_id),
            lambda: self._services.read_now(job_progress, job_id),
        )

    async def pcm(self, job_id: str, created_at: str) -> AsyncGenerator[bytes, None]:
        """s16le pieces as they are made, until the job is over. Raises the job's CosydError after them.

        No thread waits for a client: each look at the files is a short step in a pool.
        """
        services = self._services
        self._listeners[job_id] += 1
        follower = self.follower(job_id, created_at)
        try:
            while True:
                if data := await services.in_audio_thread(follower.read):
                    yield data
                elif follower.error is not None:
                    raise follower.error
                elif follower.finished:
                    return
                else:
                    await self._still_spoken(job_id)
                    await asyncio.sleep(follower.delay_s)
        finally:
            follower.close()
            self._listeners[job_id] -= 1
            if self._listeners[job_id] <= 0:
                del self._listeners[job_id]

    async def wait_done(self, job_id: str) -> None:
        """Returns when the recording is whole. Raises the job's CosydError when it ended otherwise."""
        while True:
            progress = await self._services.read(job_progress, job_id)
            if progress.state == JobState.DONE:
                return
            if progress.state in FINAL_STATES:
                raise progress.error or CosydError("internal")
            await self._still_spoken(job_id)
            await asyncio.sleep(WAIT_EVERY_S)

    async def _still_spoken(self, job_id: str) -> None:
        """Raises CosydError(shutting_down) when the house closes and nobody works on the job: it goes on at
        the next start, but not for this listener."""
        if not self._services.closing:
            return
        try:
            waits = (await self._services.read(job_progress, job_id)).state == JobState.QUEUED
        except CosydError:
            waits = False  # not known now
        if waits:
            raise CosydError("shutting_down", retry_after_s=CLOSED_S)
        await asyncio.sleep(WAIT_EVERY_S)

    # -- ending -------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> bool:
        """Ask for the end of a job. False when it was over or never was."""
        asked = bool(await self._services.write(queue.request_cancel, job_id, self._services.clock.wall()))
        if asked:
            self._services.tell("cancel", job=job_id)
        return asked

    def abandoned(self, job_id: str) -> None:
        """The client of a job went away: cancel after `patience.disconnect_s` if nobody reads by then."""
        self._services.later(self._cancel_if_alone(job_id))

    async def _cancel_if_alone(self, job_id: str) -> None:
        end = time.monotonic() + self._services.config.patience.disconnect_s
        # In short steps, so that a drain does not leave the job to nobody.
        while (left := end - time.monotonic()) > 0 and not self._services.draining:
            await asyncio.sleep(min(0.25, left))
        if not self._listeners[job_id]:
            try:
                await self.cancel(job_id)
            except CosydError:
                pass  # the job's own deadline ends it
