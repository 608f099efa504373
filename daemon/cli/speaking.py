"""Makes a job of a text, follows its sound to the sinks, and cancels it when the person stops.

Works against the running cosyd; where none runs, `pipeline.alone` works the queue beside us.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from daemon.cli.control import ANSWER_S, connect_control, control
from daemon.cli.frame import note, text
from daemon.cli.layers import current_config, resolve_all
from daemon.cli.player import PlayerSink
from daemon.cli.voices import all_voices
from pipeline import queue
from pipeline.acceptance import accept, check_request, job_progress
from pipeline.audio.encode import StreamEncoder, check_format, encode_file, open_encoder
from pipeline.audio.follow import SLOW_POLL_S, JobFollower
from pipeline.audio.tags import ai_tag
from pipeline.codes import CosydError
from pipeline.jobs import FINAL_STATES, SAMPLE_RATE, JobRequest, JobState
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import check_schema, connect
from pipeline.store.ensure import ensure_schema
from pipeline.voices.catalogue import Voice
from pipeline.voices.reference import F32

PROGRESS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Result:
    """What `--json` tells. `id` is also the recording's id in the history."""

    id: str
    voice: str
    engine: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """A finished job, where its FLAC lies, and what files of it say of themselves."""

    result: Result
    final: Path
    tag: str

    def write_file(self, format: str, output: Path) -> None:
        """Encode with exact sizes in the header. Raises CosydError(storage_full | internal)."""
        encode_file(self.final, format, output, self.tag)


class Sinks:
    """Where samples go while they are made: stdout in `format`, a player, both or neither."""

    def __init__(self, format: str | None, player: tuple[str, ...] | None) -> None:
        self.tag = ""
        """What the stream says of itself; set before the first sample."""
        self._format, self._command = format, player
        self._encoder: StreamEncoder | None = None
        self._player: PlayerSink | None = None

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._encoder is not None:
            self._encoder.close()
        if self._player is not None:
            self._player.close()

    def write(self, pcm: bytes) -> None:
        """Raises BrokenPipeError when the reader of stdout went away, ClickException when the player did."""
        if self._format is not None:
            self._encoder = self._encoder or open_encoder(self._format, tag=self.tag)
            sys.stdout.buffer.write(self._encoder.encode(pcm))
            sys.stdout.buffer.flush()
        if self._command is not None:
            # Started with the first sound, so that a refused job leaves no player behind.
            self._player = self._player or PlayerSink(self._command)
            try:
                self._player.write(pcm)
            except BrokenPipeError:
                raise self._player_failed() from None

    def finish(self) -> None:
        """All samples were written."""
        if self._encoder is not None:
            sys.stdout.buffer.write(self._encoder.finish())
            sys.stdout.buffer.flush()
        if self._player is not None and not self._player.finish():
            raise self._player_failed()

    def _player_failed(self) -> click.ClickException:
        return click.ClickException(text("player_failed", program=(self._command or ("",))[0]))


def _checked(paths: StatePaths, config: Config, fields: Mapping[str, Any]) -> tuple[JobRequest, Voice]:
    voices = all_voices(paths, config)
    return check_request(fields, voices, config, paths.root, max_chars=config.limits.long_text_chars)


@contextmanager
def workshop(paths: StatePaths) -> Iterator[Config]:
    """Somebody who works the queue: the running cosyd, or for the time of the block a worker of our own."""
    sock = connect_control(paths.control_socket)
    if sock is not None:
        sock.close()
        yield current_config(paths)
        return
    from pipeline.alone import working_alone

    note("alone")
    config = resolve_all(paths).config
    paths.ensure()
    ensure_schema(paths)
    with working_alone(paths, config):
        yield config


def check_fields(paths: StatePaths, fields: Mapping[str, Any]) -> None:
    """Raises the CosydError that `speak` would refuse these fields with."""
    _checked(paths, current_config(paths), fields)


def speak(
    paths: StatePaths,
    fields: Mapping[str, Any],
    sinks: Sinks,
    *,
    progress: bool,
    source: tuple[F32, int] | None = None,
) -> Spoken:
    """Queue the text (or `source`, the recording of a conversion: mono samples, rate), pass its sound on as
    it comes, wait for the end. Ctrl-C cancels the job.

    Raises the CosydError that refused or ended it, KeyboardInterrupt, BrokenPipeError.
    """
    check_format(str(fields["format"]))
    check_fields(paths, fields)  # what is wrong is told before anything starts
    with workshop(paths) as config:
        request, voice = _checked(paths, config, fields)
        conn = connect(paths.database, "accept")
        try:
            check_schema(conn)
            return _speak(conn, paths, config, request, voice, sinks, progress, source)
        finally:
            conn.close()


def _speak(
    conn: sqlite3.Connection,
    paths: StatePaths,
    config: Config,
    request: JobRequest,
    voice: Voice,
    sinks: Sinks,
    progress: bool,
    source: tuple[F32, int] | None,
) -> Spoken:
    job = accept(
        conn,
        request,
        voice.engine,
        paths=paths,
        config=config,
        now=time.time(),
        patience_s=config.patience.batch_s,
        source=source,
    )
    sinks.tag = ai_tag(job.id) if config.outputs.ai_tag else ""
    try:
        _tell(paths, "job_queued", engine=job.engine)
        final = paths.final_audio(job.created_at, job.id)
        folder = paths.job_dir(job.created_at, job.id)
        with JobFollower(folder, final, lambda: job_progress(conn, job.id)) as follower:
            samples = _follow(conn, job.id, follower, sinks, progress)
        sinks.finish()
        _wait_for_end(conn, job.id)
    except BaseException:
        # Ctrl-C, a closed pipe, a full disk: nobody listens any more. Harmless when the job is over.
        if queue.request_cancel(conn, job.id, time.time()):
            _tell(paths, "cancel", job=job.id)
        raise
    return Spoken(Result(job.id, voice.id, voice.engine, round(samples / SAMPLE_RATE, 3)), final, sinks.tag)


def _follow(
    conn: sqlite3.Connection, job_id: str, follower: JobFollower, sinks: Sinks, progress: bool
) -> int:
    samples, shown_at = 0, 0.0
    while True:
        if pcm := follower.read():
            sinks.write(pcm)
            samples += len(pcm) // 2
        elif follower.error is not None:
            raise follower.error
        elif follower.finished:
            break
        else:
            time.sleep(follower.delay_s)
        if progress and time.monotonic() - shown_at > PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            _show(_progress_line(conn, job_id, samples))
    if progress:
        _show("")
    return samples


def _wait_for_end(conn: sqlite3.Connection, job_id: str) -> None:
    """The last sample is heard a moment before the FLAC and the recording's row are there. Raises the
    CosydError of a job that failed in that moment."""
    while (found := job_progress(conn, job_id)).state not in FINAL_STATES:
        time.sleep(SLOW_POLL_S)
    if found.state != JobState.DONE:
        raise found.error or CosydError("cancelled")


def _progress_line(conn: sqlite3.Connection, job_id: str, samples: int) -> str:
    done, total = conn.execute(
        "SELECT coalesce(sum(state='done'), 0), count(*) FROM segments WHERE job_id=?", (job_id,)
    ).fetchone()
    if total:
        return text("progress_pieces", done=done, total=total, seconds=samples / SAMPLE_RATE)
    place = queue.position(conn, job_id)
    if place is not None and place.ahead:
        return text("progress_queue", ahead=place.ahead, seconds=place.seconds_ahead)
    return text("progress_starting")


def _show(line: str) -> None:
    """Overwrite the progress line."""
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def _tell(paths: StatePaths, method: str, **params: Any) -> None:
    """Make it fast; the database is the truth, so a cosyd that does not answer is no error."""
    try:
        with control(paths) as link:
            if link is not None:
                link.call(method, timeout_s=ANSWER_S, **params)
    except CosydError:
        pass
