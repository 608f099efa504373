"""Backup, restore and update on disks that are too small or fill up meanwhile: nothing half-made is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.backup import make, restore
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.db import connect, write_transaction
from tests.system.mounts import small_tmpfs
from tests.system.swap_helper import MIB
from tests.unit.backupkit import files, filled, rows
from tests.unit.storekit import NOW
from tests.unit.test_cli import cosyd

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path, 2 * MIB) as folder:
        yield folder


def large(paths: StatePaths) -> None:
    """A database of some megabytes that cannot be packed smaller."""
    with closing(connect(paths.database)) as conn, write_transaction(conn):
        for n in range(30):
            conn.execute("INSERT INTO settings VALUES (?, hex(randomblob(100000)))", (f"large {n}",))


def test_a_backup_onto_a_disk_that_fills_up_leaves_nothing_there(tmp_path: Path, small_disk: Path) -> None:
    paths = filled(tmp_path / "state")
    large(paths)
    old = small_disk / "b.zip"
    old.write_bytes(b"an older backup")
    done = cosyd("backup", str(old), paths=paths)
    assert done.exit_code == 75, done.stderr
    assert "full" in done.stderr
    assert old.read_bytes() == b"an older backup", "the older one stays until the new one is whole"
    assert [path.name for path in small_disk.iterdir()] == ["b.zip"]
    assert list(paths.tmp.iterdir()) == []


def test_a_backup_without_room_for_the_snapshot_says_how_much_is_needed(
    tmp_path: Path, small_disk: Path
) -> None:
    paths = filled(small_disk / "state")
    before = rows(paths)
    done = cosyd("backup", str(tmp_path / "b.zip"), paths=paths)
    assert done.exit_code == 75, done.stderr
    assert "are needed" in done.stderr
    assert not list(tmp_path.glob("b.zip*")) and rows(paths) == before


def test_a_restore_into_too_small_a_disk_is_refused_before_anything_is_done(
    tmp_path: Path, small_disk: Path
) -> None:
    source = filled(tmp_path / "source")
    large(source)
    make.write_backup(source, tmp_path / "b.zip", config=None, outputs=True, profile="", version="", now=NOW)
    target = filled(small_disk / "state")
    before, content = files(target.root), rows(target)
    done = cosyd("restore", str(tmp_path / "b.zip"), "--yes", paths=target)
    assert done.exit_code == 75 and "needed" in done.stderr, done.stderr
    assert files(target.root) == before and rows(target) == content


def test_a_disk_that_fills_up_while_a_restore_unpacks_leaves_the_old_state(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody else took the room after it was looked at."""
    monkeypatch.setattr(restore, "_check_room", lambda paths, seen: None)
    source = filled(tmp_path / "source")
    large(source)
    make.write_backup(source, tmp_path / "b.zip", config=None, outputs=False, profile="", version="", now=NOW)
    target = filled(small_disk / "state")
    before = rows(target)
    with pytest.raises(CosydError) as caught, restore.staged(target, restore.look(tmp_path / "b.zip")):
        pass
    assert caught.value.code == "storage_full"
    assert rows(target) == before and not (target.root / restore.STAGING).exists()
