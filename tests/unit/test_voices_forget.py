"""A person is forgotten: what goes, what stays, and that what is told is true."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import history, queue
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, Lane
from pipeline.model_files import ENGINE
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.queue.values import Outcome
from pipeline.store.db import connect
from pipeline.voices import forget
from pipeline.voices.catalogue import Voice
from pipeline.voices.feature_file import features_path
from pipeline.voices.forget import Forgotten, belongings, forget_person
from pipeline.voices.registry import add_voice, change_voice, cloned_voices, parse_new_voice, remove_voice
from tests.unit.storekit import new_state

RATE, NOW = 24_000, 1_700_000_000.0


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[Any]:
    made = connect(paths.database, "accept")
    made.execute("PRAGMA synchronous = OFF")  # only for speed: no power cut is part of these tests
    yield made
    made.close()


def new_voice(conn: Any, paths: StatePaths, name: str, person: str = "") -> Voice:
    fields = {"name": name, "consent": "agreed" if person else "own", "person": person}
    sound = np.sin(np.arange(2 * RATE) / 20).astype(np.float32)
    voice = add_voice(conn, paths, parse_new_voice(fields, NOW), sound, RATE, NOW)
    features_path(paths, voice.id, ENGINE).write_bytes(b"features")
    return voice


def waiting(conn: Any, voice: str, text: str) -> str:
    request = JobRequest(text, voice, mode="zero_shot", seed=1)
    return queue.submit(conn, request, engine=ENGINE, lane=Lane.page, now=NOW, config=Config())


def spoken(conn: Any, paths: StatePaths, voice: str, text: str) -> str:
    """A finished recording with its sound."""
    job = waiting(conn, voice, text)
    final = paths.final_audio(utc_text(NOW), job)
    final.parent.mkdir(parents=True, exist_ok=True)
    final.write_bytes(b"sound")
    outcome = Outcome("done", audio_path=str(final.relative_to(paths.root)), audio_format="flac")
    assert queue.end_job(conn, job, outcome, NOW)
    return job


def sounds(paths: StatePaths) -> list[Path]:
    return sorted(paths.outputs.rglob("*.flac"))


def everything(paths: StatePaths, words: bytes) -> bool:
    """Whether the words stand anywhere in the state folder's database files, also in freed pages."""
    return any(words in file.read_bytes() for file in paths.root.glob("cosyd.db*"))


def test_a_person_goes_with_all_voices_and_recordings(paths: StatePaths, conn: Any) -> None:
    first = new_voice(conn, paths, "Anna reads", "Anna Müller")
    second = new_voice(conn, paths, "Anna sings", "anna  Mu\u0308LLER")
    first, second = sorted((first, second), key=lambda voice: voice.id)
    other = new_voice(conn, paths, "Ben", "Ben")
    mine = new_voice(conn, paths, "Me")
    gone = [spoken(conn, paths, v.id, f"secret {n}") for n, v in enumerate((first, second))]
    stays = spoken(conn, paths, other.id, "harmless")
    paths.backups.mkdir(exist_ok=True)
    (paths.backups / "cosyd-1.db").write_bytes(b"backup")
    person = "Anna Müller" if first.name == "Anna reads" else "anna MüLLER"
    expected = Forgotten(
        voices=((first.id, first.name), (second.id, second.name)), person=person,
        clips=2, features=2, recordings=2, audio_bytes=10, jobs=0, backups=1,
    )  # fmt: skip
    assert belongings(conn, paths, first.id) == expected
    assert forget_person(conn, paths, first.id, NOW, recordings=True) == expected
    assert {v.id for v in cloned_voices(conn)} == {other.id, mine.id}
    assert sorted(f.name for f in paths.voices.iterdir()) == sorted([other.id, mine.id])
    assert [history.get(conn, job) for job in gone] == [None, None] and history.get(conn, stays)
    assert sounds(paths) == [paths.final_audio(utc_text(NOW), stays)]
    assert history.search(conn, "secret") == []
    with pytest.raises(CosydError) as refused:
        forget_person(conn, paths, first.id, NOW, recordings=True)
    assert refused.value.code == "not_found"


def test_whoever_gave_no_name_is_one_voice(paths: StatePaths, conn: Any) -> None:
    first, second = (new_voice(conn, paths, name) for name in ("Me", "Me too"))
    assert forget_person(conn, paths, first.id, NOW, recordings=True).voices == ((first.id, "Me"),)
    assert [v.id for v in cloned_voices(conn)] == [second.id]


def test_recordings_stay_unless_they_are_asked_for_and_can_be_asked_for_later(
    paths: StatePaths, conn: Any
) -> None:
    voice = new_voice(conn, paths, "Anna", "Anna")
    job = spoken(conn, paths, voice.id, "kept")
    gone = forget_person(conn, paths, voice.id, NOW, recordings=False)
    assert (gone.clips, gone.features, gone.recordings, gone.audio_bytes) == (1, 1, 0, 0)
    assert history.get(conn, job) and len(sounds(paths)) == 1 and list(paths.voices.iterdir()) == []
    later = forget_person(conn, paths, voice.id, NOW, recordings=True)
    assert (later.clips, later.recordings, later.audio_bytes) == (0, 1, 5)
    assert history.get(conn, job) is None and sounds(paths) == []


def test_a_voice_that_was_deleted_before_can_still_be_forgotten(paths: StatePaths, conn: Any) -> None:
    voice = new_voice(conn, paths, "Anna", "Anna")
    spoken(conn, paths, voice.id, "old")
    assert remove_voice(conn, paths, voice.id, NOW)
    assert forget_person(conn, paths, voice.id, NOW, recordings=True).recordings == 1


def test_what_waits_vanishes_and_what_is_spoken_is_stopped_first(paths: StatePaths, conn: Any) -> None:
    voice = new_voice(conn, paths, "Anna", "Anna")
    asleep = waiting(conn, voice.id, "waiting words")
    spoken_now = waiting(conn, voice.id, "spoken words")
    claim = queue.claim(conn, spoken_now, "worker", NOW, 60)
    assert claim is not None
    other = waiting(conn, "heart", "stays")
    looks = 0

    def worker_stops(_: float) -> None:
        nonlocal looks
        looks += 1
        assert queue.cancel_requested(conn, spoken_now)
        if looks == 3:
            assert queue.end_job(
                conn, spoken_now, Outcome("cancelled", error_code="cancelled"), NOW, claim.token
            )

    gone = forget_person(conn, paths, voice.id, NOW, recordings=True, sleep=worker_stops)
    assert (gone.jobs, gone.recordings, gone.left, looks) == (2, 1, 0, 3)
    assert queue.get_job(conn, asleep) is None and history.get(conn, spoken_now) is None
    assert [row["id"] for row in conn.execute("SELECT id FROM jobs")] == [other]


def test_a_job_that_does_not_end_in_time_is_told(paths: StatePaths, conn: Any) -> None:
    voice = new_voice(conn, paths, "Anna", "Anna")
    job = waiting(conn, voice.id, "spoken words")
    assert queue.claim(conn, job, "worker", NOW, 60)
    gone = forget_person(conn, paths, voice.id, NOW, recordings=True, patience_s=0.2, sleep=lambda _: None)
    assert (gone.jobs, gone.left) == (1, 1)


def test_many_recordings_go_in_short_transactions(
    paths: StatePaths, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget, "_AT_ONCE", 10)
    voice = new_voice(conn, paths, "Anna", "Anna")
    for n in range(23):
        spoken(conn, paths, voice.id, f"number {n}")
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    assert forget_person(conn, paths, voice.id, NOW, recordings=True).recordings == 23
    conn.set_trace_callback(None)
    begun = [n for n, said in enumerate(statements) if said.startswith("BEGIN")]
    together = [
        len({said for said in statements[a:b] if said.startswith("DELETE FROM generations WHERE id")})
        for a, b in zip(begun, [*begun[1:], None], strict=True)
    ]
    assert [count for count in together if count] == [10, 10, 3] and sounds(paths) == []


def test_what_was_said_is_overwritten_in_the_database_file(paths: StatePaths, conn: Any) -> None:
    voice = new_voice(conn, paths, "Anna Zylinder", "Anna Zylinder")
    change_voice(conn, voice.id, tags=["Zylindertag"])
    for n in range(9):
        spoken(conn, paths, voice.id, f"Quarzgeheimnis {n} " + "and more " * 30)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert everything(paths, b"Quarzgeheimnis") and everything(paths, b"Zylinder")
    forget_person(conn, paths, voice.id, NOW, recordings=True)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for words in (b"Quarzgeheimnis", b"quarzgeheimnis", b"Zylinder", b"Zylindertag"):
        assert not everything(paths, words)
    with pytest.raises(CosydError) as refused:
        belongings(conn, paths, "v-nobody")
    assert refused.value.code == "not_found"


def test_what_a_restore_kept_of_the_voice_goes_and_what_it_kept_of_others_stays(
    conn: Any, paths: StatePaths
) -> None:
    anna, ben = new_voice(conn, paths, "Anna", "Anna"), new_voice(conn, paths, "Ben", "Ben")
    paths.backups.mkdir(exist_ok=True)
    for name, voice in (("a", anna), ("b", ben)):
        with zipfile.ZipFile(paths.backups / f"before-restore-{name}.zip", "w") as kept:
            kept.writestr(f"voices/{voice.id}/reference.flac", b"fLaC")
        (paths.root / f"restored-{name}/voices" / voice.id).mkdir(parents=True)
    (paths.backups / "before-restore-broken.zip").write_bytes(b"cannot be looked at")
    assert belongings(conn, paths, anna.id).backups == 5
    gone = forget_person(conn, paths, anna.id, NOW, recordings=False)
    assert gone.backups == 2
    assert [path.name for path in paths.backups.iterdir()] == ["before-restore-b.zip"]
    assert [path.name for path in paths.root.glob("restored-*")] == ["restored-b"]
