"""Listening to a job while it is made, while it is made again, and after it was made."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.files import SegmentWriter, remove_segments, write_final_flac
from pipeline.audio.follow import FAST_POLL_S, SLOW_POLL_S, JobFollower, JobProgress, follow_job
from pipeline.audio.join import OVERLAP, join
from pipeline.clock import FakeClock
from pipeline.codes import CosydError
from pipeline.jobs import JobState
from tests.engines.numbers import decode
from tests.unit.audiokit import number_segment, write_segment


def noise(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(-32768, 32768, length).astype(np.int16)


class Job:
    """A job's files and row, moved on by the test as a worker would."""

    def __init__(self, root: Path, segments: int | None) -> None:
        self.dir, self.final = root / "job", root / "job.flac"
        self.progress = JobProgress(JobState.RUNNING, segments)
        self.probes = 0
        self.clock = FakeClock()

    def probe(self) -> JobProgress:
        self.probes += 1
        return self.progress

    def follower(self, start: int = 0) -> JobFollower:
        return JobFollower(self.dir, self.final, self.probe, start=start, monotonic=self.clock.monotonic)

    def finish(self, count: int) -> None:
        write_final_flac(self.dir, self.final, count)
        self.progress = JobProgress(JobState.DONE, count)
        remove_segments(self.dir)

    def read_all(self, follower: JobFollower) -> bytes:
        """Read until the end, on a clock that runs with the follower's wishes."""
        out = b""
        for _ in range(10_000):
            out += follower.read()
            if follower.finished or follower.error:
                return out
            self.clock.advance(follower.delay_s)
        raise AssertionError("the follower does not end")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, 3)


def samples(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


def test_sound_comes_while_a_segment_grows_but_for_the_last_30_ms(job: Job) -> None:
    a = noise(9000, 1)
    with job.follower() as follower, SegmentWriter(job.dir, 0) as writer:
        assert follower.read() == b""
        writer.append_int16(a[:2000])
        first = samples(follower.read())
        assert np.array_equal(first, a[: 2000 - OVERLAP])
        writer.append_int16(a[2000:])
        assert np.array_equal(samples(follower.read()), a[2000 - OVERLAP : 9000 - OVERLAP])
        assert follower.position == 9000 - OVERLAP
        writer.finish()


def test_all_segments_are_heard_and_the_end_needs_no_final_file(job: Job) -> None:
    segments = [noise(5000 + 100 * i, i) for i in range(3)]
    for idx, segment in enumerate(segments):
        write_segment(job.dir, idx, segment)
    with job.follower() as follower:
        assert np.array_equal(samples(job.read_all(follower)), join(segments))
        assert follower.finished and follower.error is None


def test_a_finished_job_is_read_from_its_flac(job: Job) -> None:
    segments = [noise(200_000, i) for i in range(3)]
    for idx, segment in enumerate(segments):
        write_segment(job.dir, idx, segment)
    job.finish(3)
    with job.follower() as follower:
        assert np.array_equal(samples(job.read_all(follower)), join(segments))
    with job.follower(start=123_457) as follower:
        assert np.array_equal(samples(job.read_all(follower)), join(segments)[123_457:])


def test_the_flac_may_replace_the_segments_at_any_moment(job: Job) -> None:
    segments = [noise(60_000, i) for i in range(3)]
    for idx, segment in enumerate(segments):
        write_segment(job.dir, idx, segment)
    whole = join(segments)
    with job.follower() as early, job.follower() as late:
        heard = late.read()
        assert 0 < len(heard) < 2 * len(whole)
        job.finish(3)
        assert np.array_equal(samples(heard + job.read_all(late)), whole)
        assert np.array_equal(samples(job.read_all(early)), whole)


def test_a_second_take_goes_on_at_the_listeners_offset(job: Job) -> None:
    old, new = noise(20_000, 1), noise(18_000, 2)
    writer = SegmentWriter(job.dir, 0)
    writer.append_int16(old[:10_000])
    with job.follower() as follower:
        heard = [samples(follower.read())]
        assert len(heard[0]) == 10_000 - OVERLAP
        again = SegmentWriter(job.dir, 0)  # the first worker was killed; nobody tidied up
        again.append_int16(new[:6000])
        assert follower.read() == b"", "the new take is not yet where the listener is"
        again.append_int16(new[6000:])
        again.finish()
        heard.append(samples(follower.read()))
        for idx in (1, 2):
            write_segment(job.dir, idx, noise(3000, idx))
        heard.append(samples(job.read_all(follower)))
    stream = np.concatenate(heard)
    offset = 10_000 - OVERLAP
    assert np.array_equal(stream[:offset], old[:offset])
    assert np.array_equal(stream[offset + 480 : 17_000], new[offset + 480 : 17_000])
    assert len(stream) == len(join([new, noise(3000, 1), noise(3000, 2)]))
    writer.abort()


def test_a_shorter_second_take_is_followed_by_the_next_segment(job: Job) -> None:
    writer = SegmentWriter(job.dir, 0)
    writer.append_int16(noise(10_000, 1))
    with job.follower() as follower:
        heard = follower.read()
        write_segment(job.dir, 0, noise(4000, 2))
        nxt = [noise(30_000, 3), noise(3000, 4)]
        for idx, segment in enumerate(nxt, 1):
            write_segment(job.dir, idx, segment)
        rest = samples(job.read_all(follower))
    assert len(heard) // 2 == 10_000 - OVERLAP
    assert np.array_equal(rest[OVERLAP : OVERLAP + 20_000], nxt[0][OVERLAP : OVERLAP + 20_000])
    writer.abort()


def test_a_finished_file_of_another_take_is_gone_over_to_with_a_fade(job: Job) -> None:
    old, new = noise(20_000, 1), noise(18_000, 2)
    writer = SegmentWriter(job.dir, 0)
    writer.append_int16(old[:10_000])
    with job.follower() as follower:
        heard = follower.read()
        for idx, segment in enumerate([new, noise(3000, 1), noise(3000, 2)]):
            write_segment(job.dir, idx, segment)
        job.finish(3)
        stream = samples(heard + job.read_all(follower))
    offset = 10_000 - OVERLAP
    whole = join([new, noise(3000, 1), noise(3000, 2)])
    assert len(stream) == len(whole)
    assert np.array_equal(stream[:offset], old[:offset])
    assert np.array_equal(stream[offset + 480 :], whole[offset + 480 :])
    assert not np.array_equal(stream[offset : offset + 480], whole[offset : offset + 480])
    writer.abort()


def test_every_number_is_heard_once_when_a_take_is_made_again_with_another_seed(job: Job) -> None:
    for cut in range(500, 11_000, 700):
        write_segment(job.dir, 0, number_segment(7))
        writer = SegmentWriter(job.dir, 1)
        writer.append_int16(number_segment(85, seed=1)[:cut])
        with job.follower() as follower:
            heard = follower.read()
            write_segment(job.dir, 1, number_segment(85, seed=2))
            write_segment(job.dir, 2, number_segment(9))
            heard += job.read_all(follower)
        assert decode(heard) == [7, 85, 9], cut
        writer.abort()
        remove_segments(job.dir)


def test_a_failed_job_gives_what_it_has_and_then_its_error(job: Job) -> None:
    a = noise(6000, 1)
    write_segment(job.dir, 0, a)
    job.progress = JobProgress(JobState.FAILED, 3, CosydError("worker_died"))
    with job.follower() as follower:
        assert np.array_equal(samples(job.read_all(follower)), a)
        assert follower.error is not None and follower.error.code == "worker_died"
        assert follower.read() == b""


def test_cancelled_and_deleted_jobs_end_with_their_code(job: Job) -> None:
    job.progress = JobProgress(JobState.CANCELLED)
    with job.follower() as follower:
        assert job.read_all(follower) == b""
        assert follower.error is not None and follower.error.code == "cancelled"
    job.progress = JobProgress(JobState.DONE, 3)
    with job.follower() as follower:
        job.read_all(follower)
        assert follower.error is not None and follower.error.code == "not_found"


def test_it_polls_fast_until_the_first_sound_and_less_often_later(job: Job) -> None:
    with job.follower() as follower:
        for _ in range(2000):
            follower.read()
            assert follower.delay_s <= 2 * FAST_POLL_S
            job.clock.advance(follower.delay_s)
        assert job.probes < 100, "the database is asked far less often than the folder"
        with SegmentWriter(job.dir, 0) as writer:
            writer.append_int16(noise(5000, 1))
            assert follower.read()
            assert follower.delay_s == FAST_POLL_S
            for _ in range(50):
                follower.read()
            assert follower.delay_s == SLOW_POLL_S


def test_one_read_gives_a_bounded_amount(job: Job) -> None:
    write_segment(job.dir, 0, noise(24_000 * 60, 1))
    with job.follower() as follower:
        assert 0 < len(follower.read()) <= 2 * 24_000 * 5


def test_files_are_closed(job: Job) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        write_segment(job.dir, 0, noise(5000, 1))
        with job.follower() as follower:
            follower.read()
    for idx in (1, 2):
        write_segment(job.dir, idx, noise(5000, 1))
    job.finish(3)
    for _ in range(20):
        with job.follower() as follower:
            job.read_all(follower)
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_worker_does_between_reads_the_stream_equals_the_joined_signal(
    data: st.DataObject,
) -> None:
    """Grows, crashes and starts again (with or without tidying up), finishes, writes the FLAC, removes."""
    lengths = data.draw(st.lists(st.integers(1500, 6000), min_size=1, max_size=4))
    segments = [noise(length, i) for i, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), len(segments))
        job.progress = JobProgress(JobState.RUNNING, None)
        out = b""
        with job.follower() as follower:

            def listen() -> None:
                nonlocal out
                for _ in range(data.draw(st.integers(0, 2))):
                    out += follower.read()
                    job.clock.advance(0.3)

            for idx, segment in enumerate(segments):
                listen()
                for _ in range(data.draw(st.integers(0, 2))):
                    broken = SegmentWriter(job.dir, idx)
                    broken.append_int16(segment[: data.draw(st.integers(0, len(segment)))])
                    listen()
                    if data.draw(st.booleans()):
                        broken.abort()
                        listen()
                    else:
                        os.close(broken._fd or -1)
                job.progress = JobProgress(JobState.RUNNING, len(segments))
                writer, at = SegmentWriter(job.dir, idx), 0
                for size in data.draw(st.lists(st.integers(1, 2500), max_size=3)):
                    writer.append_int16(segment[at : at + size])
                    at = min(len(segment), at + size)
                    listen()
                writer.append_int16(segment[at:])
                listen()
                writer.finish()
                listen()
            write_final_flac(job.dir, job.final, len(segments))
            listen()
            job.progress = JobProgress(JobState.DONE, len(segments))
            listen()
            remove_segments(job.dir)
            out += job.read_all(follower)
            assert follower.error is None
        assert np.array_equal(samples(out), join(segments))


def test_follow_job_waits_for_a_real_writer_and_is_close_behind_it(tmp_path: Path) -> None:
    segments = [number_segment(n) for n in (3, 14, 159)]
    job = Job(tmp_path, 3)
    opened, times = threading.Event(), {}

    def work() -> None:
        opened.wait(10)
        for idx, segment in enumerate(segments):
            with SegmentWriter(job.dir, idx) as writer:
                for at in range(0, len(segment), 3000):
                    writer.append_int16(segment[at : at + 3000])
                    times.setdefault("written", time.monotonic())
                writer.finish()
        job.finish(3)

    worker = threading.Thread(target=work)
    worker.start()
    out = b""

    def sleep(seconds: float) -> None:
        opened.set()
        time.sleep(seconds)

    for piece in follow_job(job.dir, job.final, job.probe, sleep=sleep):
        times.setdefault("heard", time.monotonic())
        out += piece
    worker.join()
    assert np.array_equal(samples(out), join(segments))
    assert decode(out) == [3, 14, 159]
    assert times["heard"] - times["written"] < 0.25


def test_follow_job_raises_the_jobs_error(tmp_path: Path) -> None:
    job = Job(tmp_path, 1)
    job.progress = JobProgress(JobState.FAILED, 1, CosydError("bad_take"))
    with pytest.raises(CosydError) as error:
        list(follow_job(job.dir, job.final, job.probe))
    assert error.value.code == "bad_take"
