"""What state the model's files are in, one by one: there, whole, as they were fetched. Imports no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.fetching.model import checksum, read_record
from pipeline.fetching.sources import RemoteFile
from pipeline.model_files import NEEDED, OPTIONAL, REINFORCED


@dataclass(frozen=True, slots=True)
class FileState:
    """One file: `state` is a key of [model] after `file_`: good, missing, empty, size, checksum, unreadable,
    unchecked (no checksum is known), there (not read), or a problem of [cosyvoice3]."""

    name: str
    state: str
    size: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether it cannot be used as it is."""
        return self.state not in ("good", "unchecked", "there")


def look_at_files(
    folder: Path,
    *,
    quick: bool = False,
    reinforced: bool = False,
    told: Callable[[str, int, int], None] = lambda *_: None,
) -> list[FileState]:
    """The state of each file that is needed or known. `quick` reads none of them; with `reinforced` the other
    language model is needed too."""
    record = read_record(folder)
    others = [n for n in (*OPTIONAL, REINFORCED) if n in record or (folder / n).exists()]
    needed = (*NEEDED, REINFORCED) if reinforced else NEEDED
    found = []
    for name in dict.fromkeys((*needed, *others)):
        told(name, 0, 0)
        found.append(_look(folder / name, name, record.get(name), quick))
    return found


def _look(path: Path, name: str, known: Mapping[str, Any] | None, quick: bool) -> FileState:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return FileState(name, "missing")
    except OSError as error:
        return FileState(name, "unreadable", params={"detail": error.strerror or ""})
    if size == 0:
        return FileState(name, "empty")
    if known is not None and isinstance(known.get("size"), int) and known["size"] != size:
        return FileState(name, "size", size, {"found": size, "wanted": known["size"]})
    if quick:
        return FileState(name, "there", size)
    file = RemoteFile(name, size, *(str((known or {}).get(k) or "") for k in ("sha256", "git_sha1")))
    if not file.digest:
        return FileState(name, "unchecked", size)
    try:
        right = checksum(path, file) == file.digest
    except OSError as error:
        return FileState(name, "unreadable", size, {"detail": error.strerror or ""})
    return FileState(name, "good" if right else "checksum", size)


def with_problems(states: list[FileState], problems: list[Mapping[str, Any]]) -> list[FileState]:
    """The same, with what the engine found inside the files; its word comes after a wrong checksum."""
    found = list(states)
    for problem in problems:
        names = str(problem["file"]).split(", ")
        for index, state in enumerate(found):
            inside = any(state.name == n or state.name.startswith(n + "/") for n in names)
            if inside and not state.bad:
                params = {"file": problem["file"], "detail": problem.get("detail", "")}
                found[index] = FileState(state.name, str(problem["problem"]), state.size, params)
                break
    return found
