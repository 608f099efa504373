"""The runner's pure parts: what is due, seeds of takes, stored cuts; and crashes at the end of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import queue
from pipeline.attendant import Due, Held, Limits, due
from pipeline.cutting import Cut, cut_job, same_cut
from pipeline.jobs import SEED_MAX, JobRequest, JobState, Lane, SegmentState
from pipeline.paths import segment_pcm
from pipeline.queue.values import SegmentRow
from pipeline.take import Stop, Why, take_seed
from tests.unit.test_runner import Bed, sentences

LEASE_S, GRACE_S = 15.0, 10.0
IDLE = Held(renewed_at=100.0, looked_at=100.0)
SPEAKING = replace(IDLE, began_at=100.0, limits=Limits(first_chunk_s=60.0, whole_s=90.0))


@pytest.mark.parametrize(
    ("held", "now", "expected"),
    [
        (IDLE, 100.5, Due()),
        (IDLE, 101.0, Due(look=True)),
        (IDLE, 105.0, Due(renew=True, look=True)),
        (replace(IDLE, looked_at=104.5), 105.0, Due(renew=True)),
        (replace(IDLE, leave_at=50.0), 100.5, Due()),  # between segments the runner itself sees it
        (SPEAKING, 100.5, Due()),
        (replace(SPEAKING, looked_at=161, renewed_at=161), 161.0, Due(stop=Why.DEADLINE)),
        (replace(SPEAKING, looked_at=161, renewed_at=161, heard=True), 161.0, Due()),
        (replace(SPEAKING, looked_at=191, renewed_at=191, heard=True), 191.0, Due(stop=Why.DEADLINE)),
        # An engine that moves on is given more time, and not for ever; one that stands still is not.
        (replace(SPEAKING, looked_at=161, renewed_at=161, moved_at=150.0), 161.0, Due()),
        (replace(SPEAKING, looked_at=170, renewed_at=170, moved_at=150.0), 170.0, Due(stop=Why.DEADLINE)),
        (replace(SPEAKING, looked_at=699, renewed_at=699, moved_at=698.0), 699.0, Due()),
        (replace(SPEAKING, looked_at=701, renewed_at=701, moved_at=700.0), 701.0, Due(stop=Why.DEADLINE)),
        (replace(SPEAKING, looked_at=999, renewed_at=999, moved_at=998.0, heard=True), 999.0, Due()),
        (
            replace(SPEAKING, looked_at=699, renewed_at=699, moved_at=698.0, leave_at=650.0),
            699.0,
            Due(stop=Why.LEAVE),
        ),
        (replace(SPEAKING, leave_at=100.2), 100.1, Due()),
        (replace(SPEAKING, leave_at=100.2), 100.2, Due(stop=Why.LEAVE)),
        (replace(SPEAKING, stopped_at=100.1, leave_at=100.2), 100.5, Due()),  # stopped once is enough
        (replace(SPEAKING, looked_at=110, renewed_at=110, stopped_at=100.0), 110.0, Due()),
        (replace(SPEAKING, looked_at=110, renewed_at=110, stopped_at=100.0), 110.1, Due(hung=True)),
        (replace(IDLE, looked_at=200, renewed_at=200, stopped_at=100.0), 200.0, Due()),  # the engine is back
    ],
)
def test_what_is_due(held: Held, now: float, expected: Due) -> None:
    assert due(held, now, lease_s=LEASE_S, grace_s=GRACE_S) == expected


def test_the_first_reason_to_stop_stays() -> None:
    now = iter([5.0, 6.0])
    stop = Stop(lambda: next(now))
    assert not stop.is_set() and stop.why is None and stop.since is None
    stop.set(Why.CANCEL)
    stop.set(Why.DEADLINE)
    assert (stop.is_set(), stop.why, stop.since) == (True, Why.CANCEL, 5.0)


@given(st.integers(0, SEED_MAX), st.integers(0, 5))
def test_a_seed_of_a_take_is_a_seed_and_always_the_same(seed: int, take: int) -> None:
    assert 0 <= take_seed(seed, take) <= SEED_MAX
    assert take_seed(seed, take) == take_seed(seed, take)
    assert (take_seed(seed, take) == seed) == (take == 0) or take > 0


def rows_of(cut: Cut) -> list[SegmentRow]:
    return [
        SegmentRow("j", s.idx, s.start, s.end, s.text, SegmentState.DONE, 0, 0, 1, None)
        for s in cut_job(cut, [])
    ]


TEXTS = st.lists(
    st.sampled_from(
        ["One short sentence. ", "你好，世界。", "And on, and on, without an end, ", "3.14 ", "\n\n", "word "]
    ),
    min_size=1,
    max_size=40,
).map("".join)


@given(TEXTS, st.sampled_from(list(Lane)), st.floats(1.0, 10.0), st.floats(1.0, 10.0), st.data())
def test_a_later_cut_keeps_what_is_finished_and_loses_nothing(
    text: str, lane: Lane, before_s: float, after_s: float, data: st.DataObject
) -> None:
    request = JobRequest(text=text, voice="v")
    rows = rows_of(Cut(request, lane, before_s))
    finished = rows[: data.draw(st.integers(0, len(rows)))]
    again = cut_job(Cut(request, lane, after_s), finished)
    assert same_cut(again[: len(finished)], finished)
    assert [s.idx for s in again] == list(range(len(again)))
    at = 0
    for segment in again:  # in order, and only blanks between them
        assert segment.start >= at and not text[at : segment.start].strip(" \n,.，。")
        at = segment.end
    assert not text[at:].strip(" \n,.，。")


@given(TEXTS, st.sampled_from(list(Lane)), st.floats(1.0, 10.0))
def test_the_same_limits_give_the_same_cut(text: str, lane: Lane, longest_s: float) -> None:
    cut = Cut(JobRequest(text=text, voice="v"), lane, longest_s)
    rows = rows_of(cut)
    assert same_cut(cut_job(cut, rows), rows)


class Crash(BaseException):
    """Ends the process at this line, as SIGKILL would."""


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[list[Bed]]:
    """Two workers one after the other on the same state."""
    found = [Bed(tmp_path), Bed(tmp_path)]
    found[1].clock.advance(100)
    yield found
    for bed in found:
        bed.close()


def crash_and_requeue(bed: Bed) -> None:
    with pytest.raises(Crash):
        bed.runner.turn()
    queue.requeue_owner(bed.conn, "test:1", bed.clock.wall())


def test_a_crash_between_the_flac_and_its_row_only_ends_the_job_again(
    beds: list[Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = beds
    job_id = first.submit(sentences(2))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.job_run.queue.end_job", lambda *args: (_ for _ in ()).throw(Crash()))
        crash_and_requeue(first)
    assert first.paths.final_audio(first.job(job_id).created_at, job_id).exists()
    second.runner.turn()
    assert second.engine.spoken == [] and second.heard(job_id) == [1, 2]
    assert second.job(job_id).state is JobState.DONE and not second.folder(job_id).exists()
    assert second.row(job_id)["synthesis_seconds"] is None or second.row(job_id)["rtf"] >= 0


def test_a_crash_between_a_file_and_its_row_makes_that_segment_again(
    beds: list[Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = beds
    job_id = first.submit(sentences(2))
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipeline.job_run.queue.finish_segment", lambda *args, **more: (_ for _ in ()).throw(Crash())
        )
        crash_and_requeue(first)
    assert segment_pcm(first.folder(job_id), 0).exists()
    second.runner.turn()
    assert [number for number, _ in second.engine.spoken] == [1, 2]
    assert first.engine.spoken[0] == second.engine.spoken[0]  # the same seed: an equal take
    assert second.heard(job_id) == [1, 2]


def test_a_crash_before_the_segment_files_are_gone_leaves_a_finished_job(
    beds: list[Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = beds
    job_id = first.submit(sentences(2))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.job_run.remove_segments", lambda *args: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            first.runner.turn()
    assert second.job(job_id).state is JobState.DONE and second.heard(job_id) == [1, 2]
    assert not second.runner.turn()
