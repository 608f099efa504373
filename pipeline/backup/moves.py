"""Several renames as one step: a list of them is written down first, so that whoever finds it can go on.

A kill between two renames would leave a folder without a database, and the next start would make an empty
one. So `store.migrate`, which everybody runs before anything else, first does what such a list still asks
for. Names are below the state folder. The lock of the migrations is held, so that nobody else is half-way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.audio.files import fsync_folder, write_whole
from pipeline.paths import StatePaths


@dataclass(frozen=True, slots=True)
class Move:
    """`source` gets the name `target`; both are relative to the state folder. `over_empty`: an empty folder
    of that name is in nobody's way. Every start makes one where there is none."""

    source: str
    target: str
    over_empty: bool = False


def perform(paths: StatePaths, moves: Sequence[Move]) -> None:
    """All of the renames, or, after a kill, all of them once `finish` is called. What is no longer at its
    source is left out; a target that is there already is never replaced. Raises CosydError(storage_full)
    before the first, OSError."""
    root, journal = paths.root, paths.restore_journal
    write_whole(journal, json.dumps([[move.source, move.target, move.over_empty] for move in moves]).encode())
    _do(root, moves)
    journal.unlink()
    fsync_folder(root)


def finish(paths: StatePaths) -> bool:
    """Do what a list that was left still asks for; True when there was one."""
    root, journal = paths.root, paths.restore_journal
    try:
        listed = json.loads(journal.read_text("utf-8"))
    except FileNotFoundError:
        return False
    _do(root, [Move(*entry) for entry in listed])
    journal.unlink(missing_ok=True)
    fsync_folder(root)
    return True


def _do(root: Path, moves: Sequence[Move]) -> None:
    for move in moves:
        if not (_inside(move.source) and _inside(move.target)):
            raise ValueError(f"{move} leads out of the state folder")
        source, target = root / move.source, root / move.target
        in_the_way = os.path.lexists(target) and not (move.over_empty and _is_empty(target))
        if in_the_way or not os.path.lexists(source):
            continue  # done before
        os.rename(source, target)
        fsync_folder(target.parent)
        fsync_folder(source.parent)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)
