"""Takes a backup in: looked at and unpacked beside what is there, then put in its place as one step.

What is there stays as it was until all of the backup was checked, unpacked and brought to our schema; then it
is renamed to a folder `before-restore-...`, and can be put back until `done`. The caller holds the instance
lock. A database file alone (of the backups folder) is taken too: then voices and recordings stay.
"""

from __future__ import annotations

import os
import shutil
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.archives import check_listed, copy_member, opened, read_member
from pipeline.audio.files import disk_errors, fsync_folder, write_whole
from pipeline.backup.form import CONFIG, DATABASE, MANIFEST, RULES, About, read_about, refused
from pipeline.backup.make import stamp
from pipeline.backup.moves import Move, finish, perform
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import resolve
from pipeline.profile.load import file_layer
from pipeline.store.backup import sync_file
from pipeline.store.ensure import ensure_schema
from pipeline.store.foreign import examine_database
from pipeline.store.migrate import locked, migration_lock
from pipeline.voices.feature_file import checked_features

ASIDE, FAILED, STAGING = "before-restore-", "restored-", "restore.new"
"""Folders beside the database: what was there, what would not run, what is being looked at."""
MACHINE_KEYS = ("profile", "gpu")
"""What a configuration says of its machine; another machine keeps its own."""
DAY_S = 86400.0
_MARGIN_BYTES = 64 * 1024**2
_SQLITE = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file holds, before anything is done with it. `about` is None for a database file alone."""

    file: Path
    about: About | None
    voices: int
    outputs: int
    bytes: int
    config: bool


@dataclass(frozen=True, slots=True)
class Staged:
    """A backup that was checked and unpacked. `config` is the text of its configuration file; `voices`: it
    brings voices, which then replace those that are there."""

    folder: Path
    voices: bool
    config: str | None


@dataclass(frozen=True, slots=True)
class Switched:
    """A restore that can be taken back: the folder with what was there, relative to the state folder, and
    the renames that were done."""

    aside: str
    moves: tuple[Move, ...]


def look(file: Path) -> Seen:
    """What the file is. Raises CosydError(bad_value) for one that is no backup, OSError."""
    with file.open("rb") as head:
        if head.read(len(_SQLITE)) == _SQLITE:
            return Seen(file, None, 0, 0, file.stat().st_size, False)
    with opened(file, RULES) as made:
        about, _ = _manifest(made)
        names = made.namelist()
        size = sum(info.file_size for info in made.infolist())
    clips = sum(name.endswith("/reference.flac") for name in names)
    sound = sum(name.startswith("outputs/") for name in names)
    return Seen(file, about, clips, sound, size, CONFIG in names)


def _manifest(made: zipfile.ZipFile) -> tuple[About, Mapping[str, Mapping[str, Any]]]:
    about, listed = read_about(read_member(made, made.getinfo(MANIFEST), RULES))
    return about, check_listed(listed, set(made.namelist()) - {MANIFEST}, RULES)


@contextmanager
def staged(paths: StatePaths, seen: Seen) -> Iterator[Staged]:
    """Check and unpack beside what is there. Whatever of it was not put in its place is gone at the end.

    Raises CosydError: `bad_value` (the file), `schema_mismatch` (made by a newer cosyd), `storage_full`.
    Recordings that are not here yet are put among the outputs at once: a file without a row harms nobody.
    """
    folder = paths.root / STAGING
    paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = paths.root / "restore.lock"
    with locked(lock, 0.0):
        with migration_lock(paths):
            finish(paths)  # of one that was killed: it needs what is in the folder that is emptied now
        own_like(paths.root, lock, paths.root / "migrate.lock")
        yield from _staged(paths, seen, folder)


def _staged(paths: StatePaths, seen: Seen, folder: Path) -> Iterator[Staged]:
    try:
        shutil.rmtree(folder, ignore_errors=True)
        _check_room(paths, seen)
        with disk_errors():
            folder.mkdir(mode=0o700)
            if seen.about is None:
                shutil.copyfile(seen.file, folder / DATABASE)
                config = None
            else:
                config = _unpack(paths, seen, folder)
            examine_database(folder / DATABASE)
            ensure_schema(StatePaths.at(folder, {}))
            sync_file(folder / DATABASE)
            if seen.about is not None:
                (folder / "voices").mkdir(mode=0o700, exist_ok=True)
        yield Staged(folder, seen.about is not None, config)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_room(paths: StatePaths, seen: Seen) -> None:
    needed = seen.bytes + _MARGIN_BYTES
    free = shutil.disk_usage(paths.root).free
    if free < needed:
        raise CosydError("storage_full", reason="no_room", needed=needed, free=free, folder=str(paths.root))


def _unpack(paths: StatePaths, seen: Seen, folder: Path) -> str | None:
    """All members to names of our own making; the text of the configuration."""
    config = None
    with opened(seen.file, RULES) as made:
        _, files = _manifest(made)
        for info in made.infolist():
            name = info.filename
            if name == MANIFEST:
                continue
            # The rules know every name here: none leads anywhere else.
            sound = name.startswith("outputs/")
            target = (paths.root if sound else folder) / name
            if sound and target.exists():
                continue
            _folder(paths.root, target.parent)
            part = target.with_name(target.name + ".part")
            part.unlink(missing_ok=True)  # as root nothing is written through a link of the service's
            try:
                with part.open("xb") as out:
                    digest = copy_member(made, info, out, RULES)
                    out.flush()
                    os.fsync(out.fileno())
                if digest != files[name]["sha256"]:
                    raise refused("hash", value=name)
                _check_content(name, part)
                if sound:
                    own_like(paths.root, part)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        if (folder / CONFIG).exists():
            try:
                config = (folder / CONFIG).read_text("utf-8")
            except UnicodeDecodeError:
                raise refused("config") from None
    return config


def _folder(root: Path, folder: Path) -> None:
    """Make a folder below the state folder, private and the service's own."""
    if not folder.is_dir():
        _folder(root, folder.parent)
        folder.mkdir(mode=0o700)
        own_like(root, folder)


def _check_content(name: str, file: Path) -> None:
    """Sound is FLAC, features are features: nothing else gets among the voices and recordings."""
    if name.endswith(".flac"):
        with file.open("rb") as head:
            if head.read(4) != b"fLaC":
                raise refused("content", value=name)
    elif name.endswith(".safetensors"):
        try:
            checked_features(file.read_bytes())
        except ValueError:
            raise refused("content", value=name) from None


def switch(paths: StatePaths, staged: Staged, now: float) -> Switched:
    """Put it in the place of what is there, all of it or nothing, whatever happens. Raises CosydError,
    OSError."""
    aside = ASIDE + stamp(now)
    moves: list[Move] = []
    there = [DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", *(["voices"] if staged.voices else [])]
    brought = [DATABASE, *(["voices"] if staged.voices else [])]
    with migration_lock(paths):
        own_like(paths.root, staged.folder)
        (paths.root / aside).mkdir(mode=0o700)
        moves += [Move(name, f"{aside}/{name}") for name in there if os.path.lexists(paths.root / name)]
        moves += [Move(f"{STAGING}/{name}", name, over_empty=True) for name in brought]
        try:
            perform(paths, moves)
        except CosydError:
            with suppress(OSError):
                (paths.root / aside).rmdir()
            raise
    own_like(paths.root, paths.root / aside)
    return Switched(aside, tuple(moves))


def put_back(paths: StatePaths, switched: Switched, now: float) -> None:
    """Undo a switch; what had been brought in is kept in a folder `restored-...` for whoever wants to know
    why it would not run. Raises CosydError, OSError."""
    failed = f"{FAILED}{stamp(now)}"
    kept = {move.source for move in switched.moves}
    with migration_lock(paths):
        (paths.root / failed).mkdir(mode=0o700)
        logs = [name for name in (f"{DATABASE}-wal", f"{DATABASE}-shm") if (paths.root / name).exists()]
        out = [move.target for move in switched.moves if move.source.startswith(STAGING)]
        perform(
            paths,
            [Move(name, f"{failed}/{name}") for name in (*out, *logs)]
            + [
                Move(f"{switched.aside}/{name}", name, over_empty=True)
                for name in sorted(kept)
                if "/" not in name
            ],
        )
        with suppress(OSError):
            (paths.root / switched.aside).rmdir()


def done(paths: StatePaths, switched: Switched) -> None:
    """The restore is good: what was there before goes."""
    shutil.rmtree(paths.root / switched.aside, ignore_errors=True)
    fsync_folder(paths.root)


def own_like(like: Path, *entries: Path) -> None:
    """As root: give files and folders with all that is in them to the owner of `like`, so that the service
    finds its own. A share may forbid it; then its server says whose they are."""
    if os.geteuid() != 0:
        return
    owner = like.stat()
    for entry in entries:
        for path in (entry, *(entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else ())):
            with suppress(PermissionError):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def sweep(paths: StatePaths, now: float) -> int:
    """Folders that a killed restore left: what was half unpacked after a day, the state of before after a
    month. Called by the nightly backup; returns how many went."""
    went = 0
    for pattern, kept_s in ((STAGING, DAY_S), (f"{ASIDE}*", 30 * DAY_S), (f"{FAILED}*", 30 * DAY_S)):
        for folder in paths.root.glob(pattern):
            if now - folder.stat().st_mtime > kept_s:
                shutil.rmtree(folder, ignore_errors=True)
                went += 1
    return went


def merged_config(text: str, own: Mapping[str, str]) -> str | None:
    """The configuration of a backup for this machine: without what it says of its own (`MACHINE_KEYS`), with
    the lines `own` has for them. None when that is no good configuration here."""
    lines = text.splitlines()
    top = next((n for n, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))

    def key(line: str) -> str:
        return line.partition("=")[0].strip().strip("\"'") if "=" in line else ""

    kept = [line for n, line in enumerate(lines) if n >= top or key(line) not in MACHINE_KEYS]
    made = "\n".join([*(own[name] for name in MACHINE_KEYS if name in own), *kept, ""])
    try:
        wanted = {k: v for k, v in tomllib.loads(text).items() if k not in MACHINE_KEYS}
        found = tomllib.loads(made)
        if {k: v for k, v in found.items() if k not in MACHINE_KEYS} != wanted:
            return None
        if {k for k in found if k in MACHINE_KEYS} != set(own):
            return None
        resolve([file_layer("backup", made)])
    except (tomllib.TOMLDecodeError, CosydError):
        return None
    return made


def machine_lines(text: str) -> dict[str, str]:
    """The lines of a configuration that say something of its machine."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    return {key: f'{key} = "{found[key]}"' for key in MACHINE_KEYS if isinstance(found.get(key), str)}


def write_config(path: Path, text: str) -> None:
    """The configuration in its place, with the mode and the owner of the one before. Raises CosydError,
    OSError."""
    before = path.stat() if path.exists() else None
    write_whole(path, text.encode())
    if before is not None:
        os.chmod(path, before.st_mode & 0o777)
        if os.geteuid() == 0:
            os.chown(path, before.st_uid, before.st_gid)
