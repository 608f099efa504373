"""Finding, paging and deleting recordings, in every script."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import history, queue
from pipeline.jobs import JobRequest, Lane, is_han
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.queue import Outcome
from tests.unit.storekit import NOW, new_state, opened, rows

TEXTS = (
    "今天天气很好，我们去公园散步吧。",
    "The quick brown fox jumps over the lazy dog.",
    "我用的是iPhone 15 Pro，存储256GB。",
    "東京タワーはとても高いです。ﾃﾚﾋﾞも見た。",
    "서울의 날씨가 좋습니다.",
    "Ｆｕｌｌ－ｗｉｄｔｈ ＡＢＣ and Straße, café.",
    "天天向上",
    "好天气",
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> StatePaths:
    return new_state(tmp_path_factory.mktemp("history") / "state")


@pytest.fixture(scope="module")
def conn(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    with closing(opened(paths)) as connection:
        for i, text in enumerate(TEXTS):
            recorded(connection, text, now=NOW + i, owner="ann" if i % 2 else "")
        yield connection


def recorded(
    conn: sqlite3.Connection, text: str, *, now: float = NOW, owner: str = "", audio: str | None = None
) -> str:
    """A finished recording; its id."""
    request = JobRequest(text=text, voice="heart", owner=owner)
    job = queue.submit(
        conn, request, engine="builtin", lane=Lane.page, now=now, config=Config(), free_bytes=2**40
    )
    assert queue.end_job(conn, job, Outcome("done", audio_path=audio), now)
    return job


def found(conn: sqlite3.Connection, query: str, **more: object) -> list[int]:
    """Indices into TEXTS, as found."""
    return [TEXTS.index(g.text) for g in history.search(conn, query, **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("天", [7, 6, 0]),
        ("天气", [7, 0]),
        ("气天", []),
        ("天天气", [0]),
        ("今天天气", [0]),
        ("天天", [6, 0]),
        ("散步 公园", [0]),
        ("公园，散步！", [0]),
        ("quick", [1]),
        ("QUI", [1]),
        ("uick", []),
        ("lazy fox", [1]),
        ("lazy cat", []),
        ("iph 存储", [2]),
        ("iPhone手机", []),
        ("256", [2]),
        ("タワー", [3]),
        ("テレビ", [3]),
        ("ﾃﾚﾋﾞ", [3]),
        ("東京", [3]),
        ("날씨", [4]),
        ("full", [5]),
        ("abc", [5]),
        ("strasse", [5]),
        ("cafe", [5]),
        ("fox OR 天气", []),
        ("fox*", [1]),
        ('"fox"', [1]),
        ("words:fox", []),
        ("-fox", [1]),
        ("NEAR(fox dog)", []),
        ("'; DROP TABLE generations; --", []),
        ("%", []),
        ("。", []),
        ("\x00", []),
        ("\ud800", []),
        ("", [7, 6, 5, 4, 3, 2, 1, 0]),
        ("   ", [7, 6, 5, 4, 3, 2, 1, 0]),
    ],
)
def test_what_a_query_finds(conn: sqlite3.Connection, query: str, expected: list[int]) -> None:
    assert found(conn, query) == expected


def test_every_run_of_han_characters_finds_its_texts(conn: sqlite3.Connection) -> None:
    """Against a plain look through all texts: no run of one to five characters is missed or made up."""
    runs = {text[i : i + n] for text in TEXTS for n in range(1, 6) for i in range(len(text))}
    runs = {run for run in runs if all(is_han(ch) for ch in run)}
    assert len(runs) > 60
    for run in runs:
        assert found(conn, run) == [i for i in reversed(range(len(TEXTS))) if run in TEXTS[i]], run


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=80))
def test_no_query_raises(conn: sqlite3.Connection, query: str) -> None:
    assert len(history.search(conn, query)) <= len(TEXTS)


def test_a_very_long_query_is_sane(conn: sqlite3.Connection) -> None:
    assert history.search(conn, "天" * 100_000) == []
    assert history.search(conn, "zebra " * 100_000) == []


def test_pages_follow_without_gap_while_new_ones_arrive(tmp_path: Path) -> None:
    with closing(opened(new_state(tmp_path))) as conn:
        ids = [recorded(conn, f"天气 number {i}", now=NOW) for i in range(7)]
        for query in ("", "天气", "number"):
            seen: list[str] = []
            before = None
            while page := history.search(conn, query, limit=3, before=before):
                seen += [g.id for g in page]
                before = page[-1].seq
                ids.append(recorded(conn, "天气 number, later"))
            assert seen == list(reversed(ids))[-len(seen) :]
            assert set(ids[:7]) <= set(seen)


def test_one_persons_recordings(conn: sqlite3.Connection) -> None:
    assert found(conn, "", owner="ann") == [7, 5, 3, 1]
    assert found(conn, "天气", owner="ann") == [7]
    assert found(conn, "天气", owner="bob") == []


def test_limits_are_held(conn: sqlite3.Connection) -> None:
    assert len(history.search(conn, "", limit=2)) == 2
    assert history.search(conn, "", limit=0) == []
    assert history.search(conn, "天", limit=-5) == []


def test_one_recording_by_its_jobs_id(conn: sqlite3.Connection) -> None:
    newest = history.search(conn, "", limit=1)[0]
    assert history.get(conn, newest.job_id) == newest
    assert history.get(conn, "no such id") is None
    assert newest.stand_in is False


def test_deleting_erases_row_search_text_job_and_files(tmp_path: Path) -> None:
    paths = new_state(tmp_path)
    with closing(opened(paths)) as conn:
        keep = recorded(conn, "天气 keep")
        gone = recorded(conn, "天气 secret")
        row = history.get(conn, gone)
        assert row is not None
        flac = paths.final_audio(row.created_at, gone)
        folder = paths.job_dir(row.created_at, gone)
        folder.mkdir(parents=True)
        (folder / "0000.pcm").write_bytes(b"x")
        flac.write_bytes(b"x")
        conn.execute(
            "UPDATE generations SET audio_path=? WHERE id=?", (str(flac.relative_to(paths.root)), gone)
        )
        assert history.delete(conn, paths, gone)
        assert not history.delete(conn, paths, gone)
        assert not flac.exists() and not folder.exists()
        assert [g.id for g in history.search(conn, "天气")] == [keep]
        assert history.search(conn, "secret") == []
        assert [row["id"] for row in rows(conn, "SELECT id FROM jobs")] == [keep]
        conn.execute("INSERT INTO generations_fts (generations_fts, rank) VALUES ('integrity-check', 1)")


def test_deleting_never_reaches_outside_the_outputs(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    victim = tmp_path / "victim.flac"
    victim.write_bytes(b"x")
    with closing(opened(paths)) as conn:
        for path in ("../victim.flac", str(victim), "cosyd.db", "outputs/../cosyd.db"):
            assert history.delete(conn, paths, recorded(conn, "x", audio=path))
    assert victim.exists() and paths.database.exists()


def test_search_numbers_survive_a_vacuum(tmp_path: Path) -> None:
    paths = new_state(tmp_path)
    with closing(opened(paths)) as conn:
        ids = [recorded(conn, f"天气 {i}") for i in range(10)]
        for i in (0, 1, 2, 9):
            history.delete(conn, paths, ids[i])
        conn.execute("VACUUM")
        later = recorded(conn, "天气 later")
        assert [g.id for g in history.search(conn, "天气")] == [later, *reversed(ids[3:9])]
