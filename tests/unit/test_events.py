"""Events and samples in their tables."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.events import (
    EVENT_KINDS,
    Event,
    Sample,
    insert_events,
    insert_samples,
    recent_events,
    samples_since,
)
from pipeline.messages import catalogue
from tests.unit.storekit import NOW, new_state, opened, rows


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(opened(new_state(tmp_path), "telemetry")) as connection:
        yield connection


FULL = Event(
    NOW, "trim_done", "LOW", "ram", None, {"rss_before": 5, "name": "语音"},
    ram_available_bytes=1, vram_free_bytes=2, freed_bytes=3,
)  # fmt: skip


def test_an_event_comes_back_as_it_went_in(conn: sqlite3.Connection) -> None:
    insert_events(conn, [FULL])
    assert recent_events(conn) == [FULL]


def test_the_latest_events_come_first_and_can_be_narrowed(conn: sqlite3.Connection) -> None:
    events = [Event(NOW + i, kind) for i, kind in enumerate(["started", "ready", "trim_done", "ready"])]
    insert_events(conn, events)
    assert recent_events(conn, 2) == [events[3], events[2]]
    assert recent_events(conn, kinds=["ready"]) == [events[3], events[1]]
    assert recent_events(conn, kinds=[]) == []
    assert recent_events(conn, since=NOW + 2) == [events[3], events[2]]
    assert recent_events(conn, 0) == []


def test_a_kind_outside_the_closed_set_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="unknown event kind"):
        Event(NOW, "exploded")


def test_every_kind_has_its_sentence() -> None:
    texts = catalogue("en")
    assert {kind for kind in EVENT_KINDS if f"event.{kind}" not in texts} == set()


def test_numbers_that_json_does_not_know_do_not_lose_the_event(conn: sqlite3.Connection) -> None:
    params = {"path": Path("/x"), "inf": float("inf"), "deep": [{"nan": float("nan")}]}
    insert_events(conn, [Event(NOW, "failed", params=params)])
    (event,) = recent_events(conn)
    assert event.params == {"path": "/x", "inf": "inf", "deep": [{"nan": "nan"}]}


def test_nothing_to_insert_takes_no_lock(conn: sqlite3.Connection) -> None:
    conn.execute("BEGIN IMMEDIATE")
    insert_events(conn, [])
    insert_samples(conn, [])
    conn.execute("ROLLBACK")


def test_samples_keep_unknown_as_unknown(conn: sqlite3.Connection) -> None:
    samples = [Sample(NOW, 1, 2, 3, 4, 5, 0.5, 60.0, 100.0), Sample(NOW + 10), Sample(NOW + 20, 7)]
    insert_samples(conn, samples)
    assert samples_since(conn, NOW) == samples
    assert samples_since(conn, NOW + 10) == samples[1:]
    row = rows(conn, "SELECT * FROM samples")[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(row.pop("at")))
    assert set(row.values()) == {None}
