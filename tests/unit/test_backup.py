"""`cosyd backup` and `cosyd restore`: whole while others write, nothing of a bad file gets in, and whenever
it is killed there is the old state or the new one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.archives import copy_member, opened
from pipeline.backup import make, restore
from pipeline.backup.form import MANIFEST, RULES, refused
from pipeline.codes import CosydError
from pipeline.messages import catalogue
from pipeline.paths import StatePaths
from pipeline.retention import apply_retention
from pipeline.store.db import connect, write_transaction
from pipeline.store.ensure import ensure_schema
from pipeline.store.schema import SCHEMA_VERSION
from pipeline.voices.registry import clip_path, cloned_voices, remove_voice
from tests.unit.backupkit import files, filled, new_voice, recording, rewritten, rows
from tests.unit.killkit import KILL_AT
from tests.unit.storekit import CONFIG, NOW, new_state
from tests.unit.test_cli import cosyd


def backed_up(paths: StatePaths, target: Path, *, outputs: bool = True) -> make.Made:
    return make.write_backup(
        paths, target, config=None, outputs=outputs, profile="cpu", version="0.1.0", now=NOW
    )


def taken_in(paths: StatePaths, file: Path) -> None:
    done = cosyd("restore", str(file), "--yes", paths=paths)
    assert done.exit_code == 0, done.stderr


def test_everything_comes_back_on_another_machine(tmp_path: Path) -> None:
    paths, other = filled(tmp_path / "a"), StatePaths.at(tmp_path / "b" / "state", {})
    (tmp_path / "cosyd.toml").write_text('profile = "gpu-6g"\nkeep_alive = "7 min"\n')
    told = cosyd("backup", str(tmp_path / "all.zip"), "--outputs", "--json", paths=paths)
    assert told.exit_code == 0, told.stderr
    made = json.loads(told.stdout)
    assert (made["voices"], made["recordings"], made["outputs"], made["missing"]) == (2, 2, 2, 0)
    assert stat.S_IMODE((tmp_path / "all.zip").stat().st_mode) == 0o600
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "cosyd.toml").write_text('profile = "cpu"\nkeep_alive = "1 min"\n')
    done = cosyd("restore", str(tmp_path / "all.zip"), "--yes", "--json", paths=other)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["config"] == "restored"
    assert rows(other) == rows(paths)
    with closing(connect(other.database)) as conn:
        assert conn.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    kept, came = files(paths.root), files(other.root)
    assert {n for n in kept if n != "cosyd.db"} == {n for n in came if n != "cosyd.db"}
    assert all(came[name] == kept[name] for name in kept if name != "cosyd.db")
    config = (tmp_path / "b" / "cosyd.toml").read_text()
    assert 'profile = "cpu"' in config and "7 min" in config and "gpu-6g" not in config
    for path in (other.database, *other.voices.rglob("*"), *other.outputs.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert not list(other.root.glob("restore*.new")) and not list(other.root.glob("before-*"))


def test_a_backup_without_recordings_says_so_and_leaves_those_that_are_here(tmp_path: Path) -> None:
    paths = filled(tmp_path / "a")
    before = files(paths.root)
    told = cosyd("backup", str(tmp_path), paths=paths)
    assert told.exit_code == 0 and "--outputs" in told.stderr
    (file,) = tmp_path.glob("cosyd-*.zip")
    assert told.stdout.strip() == str(file)
    with zipfile.ZipFile(file) as made:
        assert not [name for name in made.namelist() if name.startswith("outputs/")]
    with closing(connect(paths.database)) as conn:
        recording(conn, paths, "Made after the backup.")
        for voice in cloned_voices(conn):
            remove_voice(conn, paths, voice.id, NOW)
    taken_in(paths, file)
    after = files(paths.root)
    assert before.items() - after.items() == {("cosyd.db", before["cosyd.db"])}
    assert len(rows(paths)["generations"]) == 2
    with closing(connect(paths.database)) as conn:  # as it was told: the sound of what came after goes
        apply_retention(conn, paths, CONFIG.outputs, NOW * 2)
    assert set(files(paths.root)) == set(before)


def test_a_restore_can_be_taken_back(tmp_path: Path) -> None:
    paths = filled(tmp_path / "a")
    backed_up(filled(tmp_path / "other", "Other"), tmp_path / "other.zip")
    before = rows(paths)
    taken_in(paths, tmp_path / "other.zip")
    assert rows(paths) != before
    (kept,) = paths.backups.glob("before-restore-*.zip")
    taken_in(paths, kept)
    assert rows(paths) == before
    with closing(connect(paths.database)) as conn:
        assert all(clip_path(paths, voice.id).is_file() for voice in cloned_voices(conn))


def test_a_nightly_database_alone_is_taken_too(tmp_path: Path) -> None:
    from pipeline.maintenance import run_task

    paths = filled(tmp_path / "a")
    before, voices = rows(paths), {n for n in files(paths.root) if n.startswith("voices/")}
    run_task("backup", paths, CONFIG, NOW)
    (nightly,) = paths.backups.glob("cosyd-*.db")
    content = bytearray(paths.database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    paths.database.write_bytes(content)  # the cure of `cosyd doctor` for this
    done = cosyd("restore", str(nightly), "--yes", "--json", paths=paths)
    assert done.exit_code == 0, done.stderr
    assert rows(paths) == before
    assert {n for n in files(paths.root) if n.startswith("voices/")} == voices
    # What was damaged could not be packed, so it is kept as it was.
    kept = Path(json.loads(done.stdout)["previous"])
    assert (kept / "cosyd.db").read_bytes() == bytes(content)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_backup_of_every_released_schema_is_taken_in(version: int, tmp_path: Path) -> None:
    kept = Path(__file__).parents[1] / f"data/schemas/v{version}.db"
    paths = StatePaths.at(tmp_path / "state", {})
    taken_in(paths, kept)
    assert len(rows(paths)["generations"]) == 1


def test_while_others_write_a_backup_is_one_moment(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    """Rows come in pairs and voices come and go; no backup has half a pair or a voice without its clip."""
    paths = filled(tmp_path / "a")
    over, failed = threading.Event(), []

    def write() -> None:
        try:
            with closing(connect(paths.database)) as conn:
                conn.execute("PRAGMA synchronous = OFF")
                for n in range(100_000):
                    if over.is_set():
                        return
                    with write_transaction(conn):
                        for half in ("a", "b"):
                            conn.execute("INSERT INTO settings VALUES (?, ?)", (f"{half}{n}", "x" * 500))
                    if n % 3 == 0:
                        voice = new_voice(conn, paths, f"V {n}", 110.0)
                        remove_voice(conn, paths, voice, NOW)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(rounds(3, 30)):
            file = tmp_path / f"{n}.zip"
            backed_up(paths, file)
            other = StatePaths.at(tmp_path / f"back{n}", {})
            taken_in(other, file)
            with closing(connect(other.database)) as conn:
                keys = {row[0] for row in conn.execute("SELECT key FROM settings")}
                assert {k[1:] for k in keys if k[0] == "a"} == {k[1:] for k in keys if k[0] == "b"}
                assert all(clip_path(other, voice.id).is_file() for voice in cloned_voices(conn))
            shutil.rmtree(other.root)
    finally:
        over.set()
        writer.join()
    assert not failed


# -- what is refused -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    backed_up(filled(folder / "state"), folder / "good.zip")
    return folder / "good.zip"


def edited(sql: str) -> Callable[[dict[str, bytes]], None]:
    """A change that runs statements in the database of a backup."""

    def change(members: dict[str, bytes]) -> None:
        with closing(sqlite3.connect(":memory:")) as conn:
            conn.deserialize(members["cosyd.db"])
            conn.executescript(sql)
            members["cosyd.db"] = conn.serialize()

    return change


def put(name: str, data: bytes = b"fLaC and more") -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: data})


def replaced(prefix: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda m: m.update({name: data for name in list(m) if name.startswith(prefix)})


def said(**values: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[MANIFEST] = json.dumps(json.loads(members[MANIFEST]) | values).encode()

    return change


def scrambled(members: dict[str, bytes]) -> None:
    data = bytearray(members["cosyd.db"])
    data[4096:] = b"\xa5" * (len(data) - 4096)
    members["cosyd.db"] = bytes(data)


PICKLE = b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."
BAD: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "a path out of the folder": (put("../escaped.flac"), "members"),
    "an absolute path": (put("/etc/cosyd/cosyd.toml"), "members"),
    "out by a voice": (put("voices/../../escaped/reference.flac"), "members"),
    "out by a month": (put("outputs/2026-01/../../../e.flac"), "members"),
    "a backslash": (put("voices\\x\\reference.flac"), "members"),
    "another file of the state folder": (put("run/control.sock"), "members"),
    "a lock": (put("instance.lock"), "members"),
    "a pickle beside the features": (put("voices/v-1/features.pkl", PICKLE), "members"),
    "a pickle instead of features": (put("voices/v-1/features-x.safetensors", PICKLE), "content"),
    "a program instead of a clip": (put("voices/v-1/reference.flac", b"\x7fELF"), "content"),
    "a program instead of sound": (put("outputs/2026-01/0123456789abcdef.flac", b"#!/bin/sh"), "content"),
    "Arabic digits": (put("outputs/٢٠٢٦-01/0123456789abcdef.flac"), "members"),
    "a long name": (put("voices/" + "v" * 65 + "/reference.flac"), "members"),
    "no manifest": (lambda m: m.pop(MANIFEST) and None, "missing"),
    "no database": (lambda m: m.pop("cosyd.db") and None, "missing"),
    "a newer form": (said(version=2), "version"),
    "a form that is no number": (said(version=True), "manifest"),
    "another kind of file": (said(format="cosyd-voice"), "manifest"),
    "a manifest of odd words": (said(cosyd="0.1\x1b[2J"), "manifest"),
    "no schema": (said(schema="1"), "manifest"),
    "a configuration of bytes": (put("cosyd.toml", b"\xff\xfe"), "config"),
    "a huge configuration": (put("cosyd.toml", b"#" * (2**20 + 1)), "too_large"),
    "a huge clip": (put("voices/v-1/reference.flac", b"fLaC" + bytes(16 * 2**20)), "too_large"),
    "no database at all": (put("cosyd.db", b"this was a database once" * 100), "database"),
    "an empty database": (put("cosyd.db", b""), "database"),
    "a damaged database": (scrambled, "database"),
    "a trigger": (
        edited("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM generations; END"), "database"),
    "a view": (edited("CREATE VIEW v AS SELECT * FROM api_keys"), "database"),
    "a table more": (edited("CREATE TABLE more (x)"), "database"),
    "a column more": (edited("ALTER TABLE settings ADD COLUMN more TEXT"), "database"),
    "a table less": (edited("DROP TABLE people"), "database"),
    "a recording elsewhere": (
        edited("UPDATE generations SET audio_path = 'outputs/2026-01/../../../etc/passwd'"), "database"),
    "another's recording": (
        edited("UPDATE generations SET audio_path = 'outputs/2026-01/0000000000000000.flac'"), "database"),
    "a voice elsewhere": (edited("UPDATE voices SET id = '../../x' WHERE name = 'Second'"), "database"),
    "a job elsewhere": (edited("UPDATE jobs SET created_at = '../../../x'"), "database"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_backup_is_refused_and_nothing_is_changed(name: str, good: Path, tmp_path: Path) -> None:
    change, reason = BAD[name]
    file = rewritten(good, tmp_path / "bad.zip", change)
    refused_untouched(file, tmp_path, reason)


def refused_untouched(file: Path, tmp_path: Path, reason: str) -> None:
    """`cosyd restore` refuses the file for the reason, and leaves everything as it was."""
    paths = filled(tmp_path / "home" / "state")
    before, outside = files(paths.root), sorted(p.name for p in paths.root.parent.iterdir())
    done = cosyd("restore", str(file), "--yes", paths=paths)
    assert done.exit_code == 2, done.stderr
    for language in ("en", "zh"):
        done = cosyd("restore", str(file), "--yes", paths=paths, lang=language)
        template = re.escape(catalogue(language)[f"error.bad_value_backup_{reason}"])  # type: ignore[index,arg-type]
        assert re.match(re.sub(r"\\\{[^}]*\}", ".*", template), done.stderr, re.DOTALL), done.stderr
    # Recordings come first and harm nobody without a row; the next clean-up takes them.
    after = {n: v for n, v in files(paths.root).items() if not n.startswith("outputs/") or n in before}
    assert after == before
    assert sorted(p.name for p in paths.root.parent.iterdir()) == outside
    assert not list(paths.root.glob("restore.*new")) and not paths.restore_journal.exists()
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_newer_database_is_refused_as_one(good: Path, tmp_path: Path) -> None:
    newer = edited(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    file = rewritten(good, tmp_path / "newer.zip", newer)
    paths = filled(tmp_path / "state")
    before = files(paths.root)
    done = cosyd("restore", str(file), "--yes", paths=paths)
    after = {n: v for n, v in files(paths.root).items() if not n.startswith("outputs/") or n in before}
    assert (done.exit_code, after) == (75, before)
    assert str(SCHEMA_VERSION + 1) in done.stderr


def _flipped(data: bytearray) -> None:
    data[len(data) // 2] ^= 0xFF


def _zip64_elsewhere(data: bytearray) -> None:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    large = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, 2**40, 2**50)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    data[-22:] = large + locator + end


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.extend(b"behind"), "not_one"),
        (lambda d: d.__setitem__(slice(0, 0), b"before"), "not_one"),
        (lambda d: d.__delitem__(slice(len(d) // 2, None)), "not_one"),
        (lambda d: d.__setitem__(slice(-2, None), b"\x01\x00"), "not_one"),
        (lambda d: d.clear(), "not_one"),
        (_flipped, "damaged"),
        (_zip64_elsewhere, "not_one"),
    ],
    ids=["behind", "before", "cut", "comment", "empty", "flipped", "zip64"],
)
def test_a_file_that_is_not_whole_is_refused(
    change: Callable[[bytearray], None], reason: str, good: Path, tmp_path: Path
) -> None:
    data = bytearray(good.read_bytes())
    change(data)
    file = tmp_path / "bad.zip"
    file.write_bytes(data)
    refused_untouched(file, tmp_path, reason)


def test_what_was_changed_after_it_was_made_is_refused(good: Path, tmp_path: Path) -> None:
    def other(members: dict[str, bytes]) -> None:
        edited("DELETE FROM voices")(members)

    file = rewritten(good, tmp_path / "bad.zip", other)
    with zipfile.ZipFile(good) as made, zipfile.ZipFile(file) as bad:
        members = {name: bad.read(name) for name in bad.namelist()} | {MANIFEST: made.read(MANIFEST)}
    with zipfile.ZipFile(file, "w") as bad:
        for name, data in members.items():
            bad.writestr(name, data)
    refused_untouched(file, tmp_path, "hash")


def test_a_member_that_is_a_link_or_has_a_password_or_is_there_twice_is_refused(
    good: Path, tmp_path: Path
) -> None:
    link = zipfile.ZipInfo("voices/v-1/reference.flac")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    for entry, reason in ((link, "link"), (zipfile.ZipInfo("cosyd.db"), "twice")):
        file = tmp_path / f"{reason}.zip"
        shutil.copyfile(good, file)
        with pytest.warns(UserWarning) if reason == "twice" else open(os.devnull):
            with zipfile.ZipFile(file, "a") as made:
                made.writestr(entry, b"/etc/passwd")
        with pytest.raises(CosydError) as caught:
            restore.look(file)
        assert caught.value.params["reason"] == f"backup_{reason}"


def test_a_bomb_is_stopped_by_what_it_says_or_by_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "bomb.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        with made.open("cosyd.db", "w", force_zip64=True) as out:
            for _ in range(64):
                out.write(bytes(2**20))
        made.writestr(MANIFEST, b"{}")
    data = file.read_bytes()
    at = data.index(b"PK\1\2")
    lying = bytearray(data)
    lying[at + 24 : at + 28] = struct.pack("<L", 4096)  # says 4 KB, unpacks to 64 MB
    file.write_bytes(lying)
    with opened(file, RULES) as made, (tmp_path / "out").open("wb") as out:
        with pytest.raises(CosydError):
            copy_member(made, made.getinfo("cosyd.db"), out, RULES)
    assert (tmp_path / "out").stat().st_size <= 2**20
    huge = restore.Seen(file, None, 0, 0, 2**60, False)
    paths = filled(tmp_path / "state")
    with pytest.raises(CosydError) as caught, restore.staged(paths, huge):
        pass
    assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "no_room")


def test_large_archives_are_read_too(tmp_path: Path) -> None:
    """More members than the small form of the list can count."""
    file = tmp_path / "many.zip"
    with zipfile.ZipFile(file, "w") as made:
        for n in range(66_000):
            made.writestr(f"outputs/2026-01/{n:016x}.flac", b"")
        made.writestr(MANIFEST, b"{}")
        made.writestr("cosyd.db", b"")
    with opened(file, RULES) as found:
        assert len(found.namelist()) == 66_002
    assert refused("not_one").info.exit_status == 2


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "own", "made"),
    [
        ('profile = "gpu-12g"\nkeep_alive = "5 min"\n', {}, 'keep_alive = "5 min"\n'),
        ('gpu = "GPU-1"\n[web]\nport = 80\n', {"gpu": 'gpu = "none"'}, 'gpu = "none"\n[web]\nport = 80\n'),
        ('keep_alive = "5 min"', {"profile": 'profile = "cpu"'}, 'profile = "cpu"\nkeep_alive = "5 min"\n'),
        ("kep_alive = 1\n", {}, None),
        ("not toml", {}, None),
        ('"profile" = "cpu"\n', {}, ""),
        ('note = """\nprofile = "x"\n"""\n', {}, None),
    ],
)  # fmt: skip
def test_a_configuration_keeps_what_this_machine_says_of_itself(
    text: str, own: dict[str, str], made: str | None
) -> None:
    found = restore.merged_config(text, own)
    assert (found is None) == (made is None)
    if made is not None:
        assert found is not None and found.split() == made.split()


def test_a_configuration_that_does_not_fit_is_put_beside(tmp_path: Path) -> None:
    paths = filled(tmp_path / "a" / "state")
    config = paths.root.parent / "cosyd.toml"
    config.write_text("kep_alive = '1 min'\n")
    cosyd("backup", str(tmp_path / "b.zip"), paths=paths)
    config.write_text("keep_alive = '3 min'\n")
    done = cosyd("restore", str(tmp_path / "b.zip"), "--yes", paths=paths)
    assert done.exit_code == 0, done.stderr
    assert config.read_text() == "keep_alive = '3 min'\n"
    assert (paths.root / "cosyd.toml.from-backup").read_text() == "kep_alive = '1 min'\n"
    assert "cosyd.toml.from-backup" in done.stderr


# -- asked, refused, killed ------------------------------------------------------------------------


def test_a_restore_asks_first_and_no_changes_nothing(tmp_path: Path, good: Path) -> None:
    paths = filled(tmp_path / "state")
    before = files(paths.root)
    done = cosyd("restore", str(good), paths=paths)  # nobody answers
    assert done.exit_code != 0 and files(paths.root) == before
    assert "Voices: 2" in done.stderr or "voices: 2" in done.stderr


def test_without_a_cosyd_or_a_folder_it_says_so(tmp_path: Path) -> None:
    done = cosyd("backup", str(tmp_path / "x.zip"), paths=StatePaths.at(tmp_path / "none", {}))
    assert done.exit_code == 2 and "--state" in done.stderr
    done = cosyd("backup", str(tmp_path / "none" / "x.zip"), paths=new_state(tmp_path / "state"))
    assert done.exit_code == 2 and str(tmp_path / "none") in done.stderr
    assert not list(tmp_path.glob("*.zip*"))


KILLED = (
    KILL_AT
    + """
import sys
kill_at(int(sys.argv[1]), sys.argv[2].split(","))
from daemon.cli.main import main
main(sys.argv[3:])
"""
)


FEW, ALL_CALLS = "rename", "rename,replace,fsync,unlink,mkdir,rmdir"


def killed_after(calls: int, names: str, *words: str) -> int:
    """`cosyd WORDS`, which kills itself -9 before its call number `calls` of those of `os` that are named."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(calls), names, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def test_killed_at_any_step_a_restore_leaves_the_old_state_or_the_new_one(tmp_path: Path, long: bool) -> None:
    backed_up(filled(tmp_path / "other", "Other"), tmp_path / "other.zip")
    first = filled(tmp_path / "first")
    bad = rewritten(tmp_path / "other.zip", tmp_path / "bad.zip", put("cosyd.db", b"no database"))
    old = rows(first)
    taken_in(fresh := StatePaths.at(tmp_path / "fresh", {}), tmp_path / "other.zip")
    new, seen, step = rows(fresh), set(), 0
    while True:
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        shutil.copytree(first.root, tmp_path / "state")
        paths = StatePaths.at(tmp_path / "state", {})
        words = ("restore", str(tmp_path / "other.zip"), "--yes", "--state", str(paths.root))
        status = killed_after(step, ALL_CALLS if long else FEW, *words)
        if step % 2:  # somebody tries another file at once, and it is a bad one
            assert cosyd("restore", str(bad), "--yes", paths=paths).exit_code == 2
        ensure_schema(paths)  # what every start does first
        found = rows(paths)
        assert found in (old, new), f"killed at {step}"
        with closing(connect(paths.database)) as conn:
            voices = {voice.id for voice in cloned_voices(conn)}
        assert {folder.name for folder in paths.voices.iterdir()} == voices, f"killed at {step}"
        assert not paths.restore_journal.exists()
        seen.add("new" if found == new else "old")
        if status == 0:
            break
        step += 1
    assert seen == {"old", "new"} and step >= 5
    taken_in(paths, tmp_path / "other.zip")  # and it can be done again


def test_killed_at_any_step_a_backup_leaves_no_file_that_looks_whole(tmp_path: Path, long: bool) -> None:
    paths, step = filled(tmp_path / "state"), 0
    before, target = files(paths.root), tmp_path / "b.zip"
    words = ("backup", str(target), "--outputs", "--state", str(paths.root))
    while killed_after(step, ALL_CALLS if long else "replace,fsync", *words) != 0:
        if target.exists():
            make.verify(target)  # killed after it had got its name
        step += 1
    make.verify(target)
    assert step > 3 and files(paths.root) == before
    assert not target.with_name("b.zip.part").exists()


def test_folders_that_a_killed_restore_left_go_after_a_while(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    for name in ("restore.new", "before-restore-20260101-000000", "restored-20260101-000000"):
        (paths.root / name).mkdir()
    now = (paths.root / "restore.new").stat().st_mtime
    assert restore.sweep(paths, now) == 0
    assert restore.sweep(paths, now + 2 * restore.DAY_S) == 1
    assert restore.sweep(paths, now + 31 * restore.DAY_S) == 2
    assert not list(paths.root.glob("*restore*20*"))
