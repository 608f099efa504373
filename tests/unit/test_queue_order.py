"""Who is next: lanes, priority, round robin. Pure."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs import Lane
from pipeline.queue import Candidate, gives_way, next_job


def candidate(
    job_id: str, lane: Lane = Lane.page, client: str = "", created: str = "1", priority: int = 0
) -> Candidate:
    return Candidate(job_id, lane, "page", client, priority, created)


INTERACTIVE = candidate("i", Lane.interactive, created="9")
PAGE = candidate("p", Lane.page, created="5")
BATCH = candidate("b", Lane.batch, created="1")


@pytest.mark.parametrize(
    ("waiting", "chosen"),
    [
        ([], None),
        ([BATCH, PAGE, INTERACTIVE], INTERACTIVE),
        ([BATCH, PAGE], PAGE),
        ([candidate("x", created="2"), candidate("y", created="1")], candidate("y", created="1")),
        (
            [candidate("x", created="1"), candidate("y", created="2", priority=1)],
            candidate("y", created="2", priority=1),
        ),
    ],
)
def test_the_smallest_lane_then_priority_then_age(waiting: list[Candidate], chosen: Candidate | None) -> None:
    assert next_job(waiting) == chosen


def test_clients_of_a_lane_take_turns_even_when_one_queues_a_hundred() -> None:
    waiting = [candidate(f"a{i:03}", client="a", created=f"{i:03}") for i in range(100)]
    waiting += [candidate(f"{c}0", client=c, created="500") for c in "bc"]
    served: dict[str, float] = {}
    order = []
    for turn in range(4):
        chosen = next_job(waiting, served)
        assert chosen is not None
        waiting.remove(chosen)
        served[chosen.client_key] = turn
        order.append(chosen.job_id)
    assert order == ["a000", "b0", "c0", "a001"]


def test_a_running_job_gives_way_to_a_higher_lane_not_to_a_lower_one() -> None:
    assert gives_way(PAGE, [INTERACTIVE, BATCH])
    assert not gives_way(PAGE, [BATCH])
    assert not gives_way(PAGE, [])


def test_two_long_texts_of_two_clients_alternate_and_of_one_client_do_not() -> None:
    mine, yours = candidate("m", client="me", created="1"), candidate("y", client="you", created="2")
    assert gives_way(mine, [yours], {"page:me": 1.0})
    assert not gives_way(yours, [mine], {"page:me": 1.0})
    assert not gives_way(mine, [candidate("m2", client="me", created="2")], {"page:me": 1.0})


@given(
    st.lists(
        st.builds(
            candidate,
            job_id=st.uuids().map(str),
            lane=st.sampled_from(Lane),
            client=st.sampled_from("abc"),
            created=st.sampled_from("1234"),
        ),
        max_size=30,
        unique_by=lambda c: c.job_id,
    )
)
def test_everybody_is_served_once_and_nobody_is_two_turns_ahead(waiting: list[Candidate]) -> None:
    served: dict[str, float] = {}
    order: list[Candidate] = []
    left = list(waiting)
    while (chosen := next_job(left, served)) is not None:
        left.remove(chosen)
        served[chosen.client_key] = len(order)
        order.append(chosen)
    assert sorted(order, key=lambda c: c.job_id) == sorted(waiting, key=lambda c: c.job_id)
    assert [c.lane for c in order] == sorted(c.lane for c in order)
    for lane in Lane:
        turns: Counter[str] = Counter()
        rest = Counter(c.client for c in waiting if c.lane == lane)
        for c in (c for c in order if c.lane == lane):
            turns[c.client] += 1
            rest[c.client] -= 1
            behind = [turns[other] for other in rest if rest[other] > 0]
            assert all(turns[c.client] - count <= 1 for count in behind)
