"""Voices of spk2info.pt in the list, and what a kill in the middle of adding a voice leaves: nothing half."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.maintenance import run_task
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.voices.leftovers import GRACE_S, sweep_voices
from pipeline.voices.registry import cloned_voices
from pipeline.voices.saved import find_saved, saved_folder, saved_voices
from tests.unit.storekit import new_state, opened

ROOT = Path(__file__).parents[2]

ADD = """
import os, sys, threading
import numpy as np
from pathlib import Path
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.voices import registry

where, root = sys.argv[1:]

def stand_still(*_, **__):
    print("here", flush=True)
    threading.Event().wait()

if where == "clip half written":
    import soundfile
    real = soundfile.write
    soundfile.write = lambda file, *a, **k: (real(file, *a, **k), os.truncate(file, 1000), stand_still())
elif where == "clip without its name":
    Path.rename = stand_still
elif where == "clip without a row":
    registry.write_transaction = stand_still
elif where == "row not committed":
    conn_of = registry.write_transaction
    from contextlib import contextmanager
    @contextmanager
    def write_transaction(conn):
        with conn_of(conn):
            yield
            stand_still()
    registry.write_transaction = write_transaction
elif where == "clip without its row after removing":
    registry.shutil.rmtree = stand_still
paths = StatePaths.at(Path(root), {})
conn = connect(paths.database, "accept")
new = registry.parse_new_voice({"name": "Anna", "consent": "own", "transcript": "Hello."}, 1.79e9)
tone = np.sin(np.arange(72_000) / 20).astype(np.float32)
voice = registry.add_voice(conn, paths, new, tone, 24_000, 1.79e9)
registry.remove_voice(conn, paths, voice.id, 1.79e9)
stand_still()
"""


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    made = opened(paths)
    yield made
    made.close()


@pytest.mark.parametrize(
    "where",
    ["clip half written", "clip without its name", "clip without a row", "row not committed",
     "clip without its row after removing"],
)  # fmt: skip
def test_a_kill_in_the_middle_leaves_no_half_voice(
    paths: StatePaths, conn: sqlite3.Connection, where: str
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ADD, where, str(paths.root)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "here\n"
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    assert cloned_voices(conn) == ()
    (folder,) = paths.voices.iterdir()
    now = folder.stat().st_mtime
    assert sweep_voices(conn, paths, now) == 0  # it might only wait for its row
    assert sweep_voices(conn, paths, now + GRACE_S + 1) == 1
    assert list(paths.voices.iterdir()) == []


def test_living_voices_and_strangers_are_left_alone(paths: StatePaths, conn: sqlite3.Connection) -> None:
    conn.execute(
        "INSERT INTO voices (id, name, owner, engine, created_at) VALUES ('v-1', 'A', '', 'cosyvoice3', 'x')"
    )
    for name in ("v-1/reference.flac", "v-1/features.safetensors.part", "v-2/reference.flac", "My Files/a"):
        (paths.voices / name).parent.mkdir(exist_ok=True)
        (paths.voices / name).write_bytes(b"x")
    (paths.voices / "v-3").symlink_to(paths.root)
    later = (paths.voices / "v-1").stat().st_mtime + GRACE_S + 5
    assert run_task("retention", paths, Config(), later)["clips"] == 2
    assert {str(p.relative_to(paths.voices)) for p in paths.voices.glob("*/*") if "v-3" not in p.parts} == {
        "v-1/reference.flac", "My Files/a",
    }  # fmt: skip
    assert paths.database.exists()


def test_voices_of_spk2info_are_listed_as_they_are_now(paths: StatePaths) -> None:
    assert saved_voices(paths) == ()
    folder = saved_folder(paths)
    folder.mkdir(parents=True)
    entry = {"id": "saved-0123456789ab", "name": "小安", "transcript": "你好。", "content_hash": "aa"}
    (folder / "voices.json").write_text(json.dumps({"voices": [entry, {**entry, "id": "../x"}]}), "utf-8")
    (voice,) = saved_voices(paths)
    assert (voice.id, voice.name, voice.engine) == ("saved-0123456789ab", "小安", "cosyvoice3")
    assert voice.transcript and not voice.builtin and not voice.starter
    assert find_saved(paths, voice.id) == entry and find_saved(paths, "saved-000000000000") is None
    (folder / "voices.json").write_text("{not json", "utf-8")
    assert saved_voices(paths) == ()
