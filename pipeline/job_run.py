"""The work on one claimed job: plan or pick up its segments, speak them one by one, end it with its row.

`pipeline.runner` decides when to go on, give way or stop; here is what each step does and in which order, so
that a crash at any line leaves something the next claim can go on from:

- a segment is finished when its row says done *and* its file has that many samples. A file whose row does
  not say done (a crash between rename and row) is made again: the row is the truth, equal seeds give an equal
  take, and a file left by a worker that was taken for dead is never trusted.
- the end: FLAC beside, fsync, rename; then the generation row; then the segment files go. With the FLAC but
  no row the next claim finds all segments done and only ends the job; with the row but files left,
  maintenance removes them.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline import queue
from pipeline.attendant import Attendant, Limits
from pipeline.audio.check import Listener
from pipeline.audio.files import SegmentWriter, remove_segments, write_final_flac
from pipeline.child import HeartbeatState
from pipeline.clock import Clock
from pipeline.codes import CosydError
from pipeline.conversion import Converting, cut_source, voice_in
from pipeline.cutting import Cut, cut_job, same_cut
from pipeline.engines.base import Engine, Options, Segment, VoiceFeatures
from pipeline.hearing.checking import hearing_check
from pipeline.jobs import SAMPLE_RATE, JobRequest, SegmentState, estimate_seconds
from pipeline.paths import StatePaths, segment_pcm
from pipeline.profile import Config
from pipeline.pronunciations import dictionary
from pipeline.queue.values import Claim, Outcome, SegmentRow
from pipeline.take import Interrupted, OpenWriter, Stop, speak_segment, take_seed
from pipeline.text.language import detect
from pipeline.voices.features import find_row, voice_for

log = logging.getLogger(__name__)

T = TypeVar("T")
Patiently = Callable[[Callable[[], T]], T]


class LeaseLost(Exception):
    """The job is somebody else's by now; nothing of it may be touched any more."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a worker works with, the same for all its jobs. `conn` belongs to the engine's thread."""

    engine: Engine
    paths: StatePaths
    config: Config
    conn: sqlite3.Connection
    clock: Clock
    heartbeat: HeartbeatState
    attendant: Attendant
    open_writer: OpenWriter = SegmentWriter

    def longest_segment_s(self) -> float:
        """The profile's limit, or the engine's when that is less."""
        return min(self.config.longest_segment_s, self.engine.capabilities().longest_segment_s)


class JobRun:
    """One claim of one job. `patiently` runs a database call again while the database is locked."""

    def __init__(
        self,
        bench: Bench,
        claim: Claim,
        stop: Stop,
        *,
        patiently: Callable[[Callable[[], Any]], Any],
        on_chunk: Callable[[], None],
    ) -> None:
        request = claim.job.request
        if request is None:
            raise ValueError("a claimed job has a request")
        self._bench, self._job, self._token, self._stop = bench, claim.job, claim.token, stop
        self._patiently, self._on_chunk = patiently, on_chunk
        self._request: JobRequest = request
        self._dir = bench.paths.job_dir(claim.job.created_at, claim.job.id)
        self._rows: dict[int, SegmentRow] = {}
        self._segments: tuple[Segment, ...] = ()
        self._done = self._retakes = 0
        self._voice: VoiceFeatures | str = request.voice
        self._begun: int | None = None  # marked running when it was planned

    def prepare(self) -> None:
        """Cut the text on the first claim and store it; later pick up what is stored. Raises LeaseLost."""
        stored = queue.load_segments(self._bench.conn, self._job.id)
        kept = self._kept(stored)
        self._segments = self._cut(stored[:kept])
        if any(row.state is SegmentState.DONE for row in stored[kept:]):  # its file is gone
            self._must(lambda: queue.reopen_segments(self._bench.conn, self._job.id, kept, self._token))
        if not same_cut(self._segments, stored):
            seed, conn = self._request.seed or 0, self._bench.conn
            self._must(
                lambda: queue.plan_segments(
                    conn, self._job.id, self._token, self._segments, seed=seed, begin=kept
                )
            )
            self._begun = kept
        self._rows = {row.idx: row for row in queue.load_segments(self._bench.conn, self._job.id)}
        self._done = kept
        if not self._segments:
            raise CosydError("empty_text")  # markup only
        if self._done < len(self._segments):
            self._find_voice()

    def _cut(self, finished: list[SegmentRow]) -> tuple[Segment, ...]:
        longest_s = self._bench.longest_segment_s()
        if self._request.mode == "convert":
            return cut_source(self._dir, longest_s, finished)
        words = self._patiently(lambda: dictionary(self._bench.conn))
        natural = self._bench.engine.capabilities().natural
        return cut_job(Cut(self._request, self._job.lane, longest_s, words, natural), finished)

    def _find_voice(self) -> None:
        """A cloned voice that was never spoken is enrolled here. Raises take.Interrupted, CosydError."""
        bench, wanted = self._bench, self._request.voice
        row = self._patiently(lambda: find_row(bench.conn, wanted))
        late_s = bench.config.timeout_factor * bench.config.deadlines.first_audio_s
        bench.heartbeat.progress()
        bench.attendant.begin(Limits(first_chunk_s=late_s, whole_s=late_s))
        try:
            self._voice = voice_for(bench.engine, bench.paths, wanted, row)
        finally:
            bench.attendant.end()
        bench.heartbeat.progress()
        if self._stop.is_set():
            raise Interrupted

    def remaining(self) -> Iterator[Segment]:
        """The segments still to be spoken, in order."""
        yield from self._segments[self._done :]

    def speak(self, segment: Segment) -> None:
        """Make one segment. Raises LeaseLost, take.Interrupted, CosydError, and what the engine raises."""
        bench, job_id, idx = self._bench, self._job.id, segment.idx
        if idx != self._begun:
            self._must(lambda: queue.begin_segment(bench.conn, job_id, idx, self._token))
        bench.heartbeat.working_on(job_id, idx)
        deadlines, factor = bench.config.deadlines, bench.config.timeout_factor
        converting = self._request.mode == "convert"
        expected_s = (
            (segment.end - segment.start) / 1000 / self._request.speed
            if converting
            else estimate_seconds(segment.text, self._request.speed)
        )
        like_s = voice_in(self._dir, segment) / self._request.speed if converting else None
        bench.attendant.begin(
            Limits(
                first_chunk_s=factor * deadlines.first_audio_s,
                whole_s=factor * (deadlines.segment_base_s + deadlines.segment_per_audio_s * expected_s),
            )
        )
        began = bench.clock.monotonic()
        first_audio_at: float | None = None

        def on_chunk() -> None:
            nonlocal first_audio_at
            if first_audio_at is None:
                first_audio_at = bench.clock.wall()
                bench.attendant.heard()
            bench.heartbeat.progress()
            self._on_chunk()

        try:
            take = speak_segment(
                Converting(bench.engine, self._dir) if converting else bench.engine,
                segment,
                self._voice,
                self._options(idx),
                job_dir=self._dir,
                stop=self._stop,
                on_chunk=on_chunk,
                confirm=lambda: self._patiently(lambda: queue.still_held(bench.conn, job_id, self._token)),
                open_writer=bench.open_writer,
                listen=lambda: Listener(
                    segment.text,
                    self._request.speed,
                    expected_s=expected_s,
                    natural=bench.config.take_check != "signal" and bench.engine.capabilities().natural,
                    like_s=like_s,
                    misheard=None if converting else hearing_check(bench.config, bench.paths, segment),
                ),
            )
        finally:
            bench.attendant.end()
        self._retakes += take.retries
        self._must(
            lambda: queue.finish_segment(
                bench.conn,
                job_id,
                idx,
                self._token,
                samples=take.samples,
                synthesis_s=bench.clock.monotonic() - began,
                first_audio_at=first_audio_at,
            )
        )

    def complete(self) -> None:
        """All segments are done: the one file, the row, then the segment files go. Raises LeaseLost."""
        final = self._bench.paths.final_audio(self._job.created_at, self._job.id)
        samples = write_final_flac(self._dir, final, len(self._segments))
        self._end(
            replace(
                self._outcome("done"),
                audio_path=str(final.relative_to(self._bench.paths.root)),
                audio_format="flac",
                audio_seconds=samples / SAMPLE_RATE,
            )
        )
        remove_segments(self._dir)

    def fail(self, error: CosydError) -> None:
        """End with a row that says why. On a full disk the files go first, to make room for the row."""
        if error.code == "storage_full":
            remove_segments(self._dir)
        status = "cancelled" if error.code == "cancelled" else "failed"
        detail = str(error.params.get("reason", "")) or None
        self._end(replace(self._outcome(status), error_code=error.code, error=detail))
        remove_segments(self._dir)

    def release(self) -> None:
        """Give the job back with what is done of it; no attempt is charged. Nothing to do when it is lost."""
        self._patiently(
            lambda: queue.release(self._bench.conn, self._job.id, self._token, self._bench.clock.wall())
        )

    def retry_leaner(self) -> None:
        """Give it back after an out-of-memory; the attempt is charged, the last one fails the job."""
        bench = self._bench
        requeued = self._patiently(
            lambda: queue.retry_leaner(bench.conn, self._job.id, self._token, bench.clock.wall())
        )
        if requeued is not None and requeued.failed:
            remove_segments(self._dir)

    def _options(self, idx: int) -> Callable[[int], Options]:
        seed, request = self._rows[idx].seed, self._request

        def options(take: int) -> Options:
            return Options(
                seed=take_seed(seed, take),
                speed=request.speed,
                mode=request.mode,
                instruct=request.instruct,
            )

        return options

    def _kept(self, stored: list[SegmentRow]) -> int:
        """How many segments from the start are finished, file included."""
        for row in stored:
            if row.state is not SegmentState.DONE or not _has_samples(self._dir, row):
                return row.idx
        return len(stored)

    def _outcome(self, status: Any) -> Outcome:
        bench = self._bench
        can = bench.engine.capabilities()
        bench.heartbeat.sample()
        language = self._request.language
        return Outcome(
            status,
            language=detect(self._request.text) if language == "auto" else language,
            model=can.model,
            device=can.device,
            dtype=can.dtype,
            profile=bench.config.profile,
            peak_rss_bytes=bench.heartbeat.peak_rss_bytes,
            peak_vram_bytes=bench.heartbeat.peak_vram_bytes,
            retakes=self._retakes,
        )

    def _end(self, outcome: Outcome) -> None:
        bench = self._bench
        self._must(lambda: queue.end_job(bench.conn, self._job.id, outcome, bench.clock.wall(), self._token))

    def _must(self, call: Callable[[], bool]) -> None:
        if not self._patiently(call):
            raise LeaseLost(self._job.id)


def _has_samples(job_dir: Path, row: SegmentRow) -> bool:
    try:
        return segment_pcm(job_dir, row.idx).stat().st_size == 2 * row.samples
    except OSError:
        return False
