"""The whole model into its folder: listing, room on the disk, each file, the record of what came.

Only what speaking and adding a voice need is taken, never the TensorRT graph or other copies of the same
weights. `cosyd-files.json` beside the files keeps their sizes and checksums, so that `cosyd model check` can
compare years later, without network. Called by `cosyd model fetch`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.fetching.incoming import CHUNK, Incoming, part_path, room_errors
from pipeline.fetching.progress import Meter, Tell, Waiting
from pipeline.fetching.sources import (
    REPOSITORY,
    Listing,
    RemoteFile,
    Source,
    file_url,
    listing_url,
    parse_listing,
)
from pipeline.fetching.transfer import TRIES, Patience, download, get_json, open_client
from pipeline.model_files import NEEDED, OPTIONAL, RECORD, REINFORCED, missing_files
from pipeline.planning.memory import ModelSizes, flow_bytes, llm_bytes

LISTING_TRIES = 3
"""For a source that may have a successor; the last one is tried as often as a file."""

ELSEWHERE = frozenset({"no_network", "stalled", "not_offered", "refused", "source_broken", "too_many"})
"""What makes it worth asking the next source."""

MIN_FREE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did: where from, bytes that came now, files that were there already."""

    source: str
    revision: str
    came_bytes: int
    kept: tuple[str, ...]
    files: tuple[str, ...]


def prepared_bytes() -> int:
    """What the converted weights will take at most (bf16 and the text table), see `pipeline.planning`."""
    sizes = ModelSizes()
    table = sizes.text_rows * sizes.hidden * 2
    vocoder = 4 * sizes.vocoder_parameters + 8 * sizes.f0_parameters
    return llm_bytes(sizes, "bf16") + table + flow_bytes(sizes, "bf16") + vocoder


def wanted_files(listing: Listing, source: str, *, reinforced: bool = False) -> list[RemoteFile]:
    """The files that are taken, the small ones first, so that a wrong place is noticed soon. Raises
    CosydError(model_missing, not_offered)."""
    needed = (*NEEDED, REINFORCED) if reinforced else NEEDED
    if lacking := [name for name in needed if name not in listing.files]:
        raise CosydError("model_missing", reason="not_offered", source=source, detail=", ".join(lacking))
    names = [*needed, *(name for name in OPTIONAL if name in listing.files)]
    return sorted((listing.files[name] for name in names), key=lambda file: (file.size, file.path))


def room_needed(folder: Path, files: Sequence[RemoteFile], prepared: int) -> int:
    """Bytes still to be written: what is not there yet, and then the converted weights; nothing for a model
    that is there, whose weights are perhaps converted already."""
    left = 0
    for file in files:
        for path in (folder / file.path, part_path(folder / file.path, file)):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size == file.size or path.suffix == ".part":
                    left -= min(size, file.size)
                    break
        left += file.size
    return left + prepared if left else 0


def check_room(folder: Path, needed: int) -> None:
    """Raises CosydError(storage_full, no_room) with both numbers when the disk has too little."""
    place = folder
    while not place.exists():
        place = place.parent
    if not needed:
        return
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < needed + MIN_FREE_BYTES:
        raise CosydError(
            "storage_full", reason="no_room", needed=needed + MIN_FREE_BYTES, free=free, folder=str(place)
        )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One fetch at a time in a folder. Raises CosydError(model_missing, fetching)."""
    with room_errors(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / ".fetch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CosydError("model_missing", reason="fetching", folder=str(folder)) from None
        yield
    finally:
        os.close(fd)


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """File name -> size and checksum as they were fetched; empty when there is no record that can be read."""
    try:
        files = json.loads((folder / RECORD).read_text("utf-8"))["files"]
        return {str(name): dict(entry) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_record(
    folder: Path, source: str, revision: str, files: Mapping[str, Mapping[str, Any]], now: float
) -> None:
    """Keep what came from where. Raises OSError."""
    text = json.dumps(
        {
            "repository": REPOSITORY,
            "source": source,
            "revision": revision,
            "at": utc_text(now),
            "files": files,
        },
        indent=1,
    )
    part = folder / (RECORD + ".part")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(folder / RECORD)


def is_whole(folder: Path, file: RemoteFile) -> bool:
    """Whether the file is there with the right checksum; reads it through."""
    path = folder / file.path
    try:
        if path.stat().st_size != file.size:
            return False
        return not file.digest or checksum(path, file) == file.digest
    except OSError:
        return False


def checksum(path: Path, file: RemoteFile) -> str:
    """The checksum of `path` of the kind that `file` has. Raises OSError."""
    if file.sha256:
        found = hashlib.sha256()
    else:
        found = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            found.update(piece)
    return found.hexdigest()


def ask(
    client: httpx.Client, sources: Sequence[Source], tell: Tell, patience: Patience
) -> tuple[Source, Listing]:
    """The first source that offers the model. Raises CosydError(model_missing) of the first one's trouble."""
    first: CosydError | None = None
    for index, source in enumerate(sources):
        last = index + 1 == len(sources)
        meter = Meter(0, tell, time.monotonic)
        try:
            answer = get_json(
                client, source, listing_url(source), meter, patience, TRIES if last else LISTING_TRIES
            )
            listing = parse_listing(source, answer)
            wanted_files(listing, source.name)
            return source, listing
        except CosydError as error:
            first = first or error
            if last or error.params.get("reason") not in ELSEWHERE:
                raise first from error
            meter.wait(Waiting("next_source", 0.0, index + 1))
    raise AssertionError("there is always a source")


def fetch_model(
    folder: Path,
    sources: Sequence[Source],
    tell: Tell,
    *,
    now: float,
    patience: Patience | None = None,
    reinforced: bool = False,
    prepared: int | None = None,
    on_listing: Callable[[Source, int, int], None] = lambda source, needed, count: None,
) -> Fetched:
    """Bring what is missing of the model into `folder`. Files that are there and whole are kept.

    `on_listing` is told source, bytes to come and number of files before the first one. Raises CosydError:
    `model_missing` with a reason, `storage_full`. What came before an error or an interruption is kept.
    """
    patience = patience or Patience()
    with alone_in(folder), open_client(patience) as client:
        source, listing = ask(client, sources, tell, patience)
        files = wanted_files(listing, source.name, reinforced=reinforced)
        needed = room_needed(folder, files, prepared_bytes() if prepared is None else prepared)
        check_room(folder, needed)
        record = read_record(folder)
        meter = Meter(sum(file.size for file in files), tell, time.monotonic)
        on_listing(source, room_needed(folder, files, 0), len(files))
        kept, came = [], 0
        for file in files:
            url = file_url(source, listing.revision, file.path)
            meter.tell(file.path)  # reading a large file through takes a while
            if is_whole(folder, file):
                kept.append(file.path)
                meter.had(file.size)
                digest = file.sha256
            else:
                digest = download(client, source, url, file, folder / file.path, meter, patience)
                came += file.size
            record[file.path] = {
                "size": file.size, "sha256": digest or file.sha256, "git_sha1": file.git_sha1,
            }  # fmt: skip
            with room_errors(folder, file.size):
                write_record(folder, source.name, listing.revision, record, now)
    return Fetched(source.name, listing.revision, came, tuple(kept), tuple(file.path for file in files))


def copy_model(
    folder: Path,
    origin: Path,
    tell: Tell,
    *,
    now: float,
    reinforced: bool = False,
    prepared: int | None = None,
) -> Fetched:
    """The same from a folder of this machine, a download of another program for example. The checksums of
    what was read are recorded. Raises CosydError: `model_missing` (no_files), `storage_full`."""
    missing = missing_files(origin)
    if reinforced and not (origin / REINFORCED).is_file():
        missing = (*missing, REINFORCED)
    if missing:
        raise CosydError(
            "model_missing", reason="from_incomplete", folder=str(origin), missing=", ".join(missing)
        )
    wanted = (*NEEDED, REINFORCED) if reinforced else NEEDED
    names = [*wanted, *(name for name in OPTIONAL if (origin / name).is_file())]
    files = [RemoteFile(name, (origin / name).stat().st_size) for name in names]
    if folder.exists() and folder.samefile(origin):
        raise CosydError("model_missing", reason="from_itself", folder=str(folder))
    with alone_in(folder):
        check_room(folder, room_needed(folder, files, prepared_bytes() if prepared is None else prepared))
        meter = Meter(sum(file.size for file in files), tell, time.monotonic)
        record: dict[str, dict[str, Any]] = {}
        for file in files:
            with room_errors(folder, file.size), Incoming(folder / file.path, file) as incoming:
                incoming.restart()
                with (origin / file.path).open("rb") as stream:
                    while piece := stream.read(CHUNK):
                        incoming.write(piece)
                        meter.moved(file.path, len(piece))
                if incoming.size != file.size:
                    raise CosydError(
                        "model_missing", reason="from_changed", folder=str(origin), file=file.path
                    )
                record[file.path] = {"size": file.size, "sha256": incoming.finish(), "git_sha1": ""}
        with room_errors(folder, 0):
            write_record(folder, "folder", "", record, now)
    return Fetched("folder", "", sum(file.size for file in files), (), tuple(names))


def as_json(fetched: Fetched) -> dict[str, Any]:
    """For `--json`."""
    return asdict(fetched)
