""" "Forget this person": everything that was made of somebody's voice goes, and what went is told.

A person is who a consent names (`agreed`): all voices with that name go together; another choice of consent
names nobody, so only the one voice is meant. Clip and features always go, recordings (row, search text,
sound, the texts of waiting jobs) when asked for, also of a voice that was deleted before. Copies that this
cannot reach are counted, not hidden: nightly backups keep the old rows, never the sound, until they are
replaced. What a restore kept for the way back has clips too, so it goes where it has one of these.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline import history, queue
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.db import write_transaction
from pipeline.voices.registry import remove_voice, voice_facts, voice_folder

PATIENCE_S = 10.0
"""A piece that is being spoken in the voice is stopped first; this long is waited for its end."""
_LOOK_EVERY_S = 0.05
_AT_ONCE = 100  # rows in one transaction, which stays below 50 ms
_PAGES_AT_ONCE = 200
_VOICE = "CASE WHEN json_valid(request) THEN json_extract(request, '$.voice') END"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What belongs to a person, before; what went, after. `voices` are (id, name); `recordings` rows with
    `audio_bytes` of sound; `jobs` waiting or speaking; `backups` files that still have the rows; `left`: jobs
    that did not end in time, whose recordings another call will find."""

    voices: tuple[tuple[str, str], ...]
    person: str
    clips: int
    features: int
    recordings: int
    audio_bytes: int
    jobs: int
    backups: int
    left: int = 0


def belongings(conn: sqlite3.Connection, paths: StatePaths, voice_id: str) -> Forgotten:
    """What there is of the person behind a cloned voice. Raises CosydError(not_found)."""
    consents = {other: fact["consent"] for other, fact in voice_facts(conn).items()}
    names = {row["id"]: row["name"] for row in conn.execute("SELECT id, name FROM voices")}
    if voice_id not in names:
        raise CosydError("not_found")
    consent = consents.get(voice_id, {"choice": "", "person": ""})
    person = _same(consent)
    ids = [
        voice_id,
        *(o for o, said in consents.items() if person and o != voice_id and _same(said) == person),
    ]
    recordings = _recordings(conn, ids)
    if voice_id not in consents and not recordings and not _jobs(conn, ids):
        raise CosydError("not_found")  # deleted, and nothing left of it
    return Forgotten(
        voices=tuple((other, names[other]) for other in sorted(ids)),
        person=consent["person"],
        clips=sum((voice_folder(paths, other) / "reference.flac").is_file() for other in ids),
        features=sum(len(list(voice_folder(paths, other).glob("features-*"))) for other in ids),
        recordings=len(recordings),
        audio_bytes=sum(_size(paths, row["audio_path"]) for row in recordings),
        jobs=len(_jobs(conn, ids)),
        backups=_copies(paths),
    )


def forget_person(
    conn: sqlite3.Connection,
    paths: StatePaths,
    voice_id: str,
    now: float,
    *,
    recordings: bool,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Forgotten:
    """Delete it. Returns what went. Raises CosydError: `not_found`, `storage_busy`, and `internal` when a
    folder could not be removed.

    The voices go first, so that nothing new is spoken with them; then what waits or speaks is cancelled.
    """
    (usual,) = conn.execute("PRAGMA secure_delete").fetchone()
    conn.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, not only unlinked
    try:
        before = belongings(conn, paths, voice_id)
        ids = [other for other, _ in before.voices]
        for other in ids:
            remove_voice(conn, paths, other, now)
        _drop_kept_clips(paths, ids)
        before = replace(before, backups=_copies(paths))
        for job in _jobs(conn, ids):
            queue.request_cancel(conn, job, now)
        left = [other for other in ids if voice_folder(paths, other).exists()]
        if left:
            raise CosydError("internal", reason="voice_folder_left", path=str(voice_folder(paths, left[0])))
        if not recordings:
            return replace(before, recordings=0, audio_bytes=0)
        for _ in range(max(1, int(patience_s / _LOOK_EVERY_S))):
            _drop_waiting(conn, ids)
            if not _jobs(conn, ids):
                break
            sleep(_LOOK_EVERY_S)
        went, size = _delete_recordings(conn, paths, ids)
        if went:
            _empty_search_index(conn)
        return replace(before, recordings=went, audio_bytes=size, left=len(_jobs(conn, ids)))
    finally:
        conn.execute(f"PRAGMA secure_delete = {usual}")


def _copies(paths: StatePaths) -> int:
    """Backups, and what a restore keeps for a while."""
    places = ((paths.backups, "*"), (paths.root, "before-restore-*"), (paths.root, "restored-*"))
    return sum(len(list(folder.glob(pattern))) for folder, pattern in places if folder.is_dir())


def _drop_kept_clips(paths: StatePaths, ids: Sequence[str]) -> None:
    """What a restore left for the way back (`pipeline.backup.restore`), where it holds a clip of these voices
    or cannot be looked at."""
    folders = tuple(f"voices/{other}/" for other in ids)
    for file in paths.backups.glob("before-restore-*.zip"):
        try:
            with zipfile.ZipFile(file) as kept:
                holds = any(name.startswith(folders) for name in kept.namelist())
        except (zipfile.BadZipFile, OSError):
            holds = True
        if holds:
            file.unlink(missing_ok=True)
    for folder in (*paths.root.glob("before-restore-*"), *paths.root.glob("restored-*")):
        if any((folder / "voices" / other).exists() for other in ids):
            shutil.rmtree(folder, ignore_errors=True)


def _same(consent: dict[str, str]) -> str:
    """The person that a consent names, so that two spellings of one name are equal; "" for nobody."""
    if consent["choice"] != "agreed":
        return ""
    return " ".join(unicodedata.normalize("NFKC", consent["person"]).casefold().split())


def _marks(ids: Sequence[str]) -> str:
    return ", ".join("?" * len(ids))


def _recordings(conn: sqlite3.Connection, ids: Sequence[str]) -> list[sqlite3.Row]:
    return conn.execute(
        f"SELECT id, audio_path FROM generations WHERE voice IN ({_marks(ids)})", tuple(ids)
    ).fetchall()


def _jobs(conn: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    """Jobs of these voices that are not over; only they have a request."""
    rows = conn.execute(
        f"SELECT id FROM jobs WHERE state IN ('queued', 'running') AND {_VOICE} IN ({_marks(ids)})",
        tuple(ids),
    )
    return [row["id"] for row in rows]


def _drop_waiting(conn: sqlite3.Connection, ids: Sequence[str]) -> None:
    """Jobs that nobody has begun vanish with their text; one that is spoken ends by its cancel wish."""
    with write_transaction(conn):
        conn.execute(f"DELETE FROM jobs WHERE state = 'queued' AND {_VOICE} IN ({_marks(ids)})", tuple(ids))


def _delete_recordings(conn: sqlite3.Connection, paths: StatePaths, ids: Sequence[str]) -> tuple[int, int]:
    went = size = 0
    while found := _recordings(conn, ids)[:_AT_ONCE]:
        sizes = {row["id"]: _size(paths, row["audio_path"]) for row in found}
        gone = history.delete_many(conn, paths, list(sizes))
        if not gone:
            break
        went += len(gone)
        size += sum(sizes[id_] for id_ in gone)
    return went, size


def _empty_search_index(conn: sqlite3.Connection) -> None:
    """FTS5 only marks words as deleted until its parts are merged, so they are merged now, some pages in each
    transaction: `merge` with a negative number begins, positive ones go on until nothing changes
    (sqlite.org/fts5.html, 6.7)."""
    pages = -_PAGES_AT_ONCE
    while True:
        before = conn.total_changes
        with write_transaction(conn):
            conn.execute("INSERT INTO generations_fts (generations_fts, rank) VALUES ('merge', ?)", (pages,))
        if conn.total_changes - before < 2:
            return
        pages = _PAGES_AT_ONCE


def _size(paths: StatePaths, audio_path: str | None) -> int:
    file = None if audio_path is None else history.output_file(paths, audio_path)
    try:
        return 0 if file is None else file.stat().st_size
    except OSError:
        return 0
