"""Zip files from elsewhere, read as if an enemy had made them; what a voice file and a backup have in common.

Only names that the rules know, each once; the list of members is bounded before zipfile reads it, sizes
before anything is unpacked and again while it is; nothing is extracted to a path that the file names, links
and passwords are refused. The rules say in whose words a refusal is told.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.codes import CosydError

_END = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE.TXT 4.3.16
_LOCATOR = struct.Struct("<4sLQL")  # where the large form of it is, 4.3.15
_LARGE = struct.Struct("<4sQ2H2L4Q")  # that form, 4.3.14
_HEADER_BYTES = 30  # local file header without name and extra field, 4.3.7
_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same content gives the same file
_ENCRYPTED = 0x1 | 0x40 | 0x2000
BLOCK_BYTES = 1024**2
DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError
)  # fmt: skip
"""zipfile raises all of these for damage of one kind or another."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`limit(name)` is how many bytes a member may have, None when it does not belong; `needed` names must
    be there; `refused(reason, **params)` makes the error; `max_bytes` None leaves the file's size free."""

    limit: Callable[[str], int | None]
    needed: tuple[str, ...]
    max_members: int
    directory_bytes: int
    refused: Callable[..., CosydError]
    max_bytes: int | None = None


def member(name: str, method: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    """The entry of a file that is written: for its owner only, without a date."""
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = method
    info.external_attr = (stat.S_IFREG | 0o600) << 16
    return info


@contextmanager
def opened(path: Path, rules: Rules) -> Iterator[zipfile.ZipFile]:
    """The zip, its list of members checked. Raises what `rules.refused` makes."""
    _check_directory(path, rules)
    try:
        made = zipfile.ZipFile(path)
    except DAMAGE:
        raise rules.refused("damaged") from None
    with made:
        _check_members(made.infolist(), rules)
        yield made


def read_member(made: zipfile.ZipFile, info: zipfile.ZipInfo, rules: Rules) -> bytes:
    """A small one, never more than it says; zipfile checks its CRC at the end."""
    try:
        with made.open(info) as source:
            data = source.read(info.file_size + 1)
            if len(data) != info.file_size or source.read(1):
                raise rules.refused("damaged")
    except DAMAGE:
        raise rules.refused("damaged") from None
    return data


def copy_member(made: zipfile.ZipFile, info: zipfile.ZipInfo, out: IO[bytes] | None, rules: Rules) -> str:
    """Unpack a large one into `out` (nowhere for None); its SHA-256. What the disk refuses passes as
    OSError."""
    digest, left = hashlib.sha256(), info.file_size
    try:
        source = made.open(info)
    except DAMAGE:
        raise rules.refused("damaged") from None
    with source:
        while True:
            try:
                block = source.read(BLOCK_BYTES)
            except DAMAGE:
                raise rules.refused("damaged") from None
            left -= len(block)
            if left < 0:
                raise rules.refused("damaged")
            if not block:
                break
            digest.update(block)
            if out is not None:
                out.write(block)
    if left:
        raise rules.refused("damaged")
    return digest.hexdigest()


def parse_manifest(data: bytes, form: str, version: int, rules: Rules) -> dict[str, Any]:
    """The JSON object of a manifest of format `form`, of any version up to `version`. Raises what
    `rules.refused` makes of `manifest` and, for a later one, of `version`."""
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise rules.refused("manifest") from None
    if not isinstance(found, dict) or found.get("format") != form:
        raise rules.refused("manifest")
    said = found.get("version")
    if type(said) is not int or said < 1:
        raise rules.refused("manifest")
    if said > version:
        raise rules.refused("version", value=said)
    return found


def check_listed(files: Any, names: set[str], rules: Rules) -> Mapping[str, Mapping[str, Any]]:
    """The `files` of a manifest: it must list exactly `names`, each with a checksum."""
    if not isinstance(files, dict) or set(files) != names:
        raise rules.refused("manifest")
    for entry in files.values():
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise rules.refused("manifest")
    return files


def _check_directory(path: Path, rules: Rules) -> None:
    """Bound the list of members before zipfile reads it: a file of 30 MB can list half a million, and a zip
    with something before, between or behind may be two files in one."""
    size = path.stat().st_size
    if rules.max_bytes is not None and size > rules.max_bytes:
        raise rules.refused("too_large", value=path.name, limit=rules.max_bytes)
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size))
        tail = file.read()
        if len(tail) < _END.size or tail[:4] != b"PK\5\6":
            raise rules.refused("not_one")
        _, disk, first_disk, here, total, length, offset, comment = _END.unpack(tail)
        end = size - _END.size
        if total == 0xFFFF or length == 0xFFFFFFFF or offset == 0xFFFFFFFF:
            end = size - _END.size - _LOCATOR.size - _LARGE.size
            if end < 0:
                raise rules.refused("not_one")
            file.seek(end)
            _, rest, _, _, disk, first_disk, here, total, length, offset = _LARGE.unpack(
                large := file.read(_LARGE.size)
            )
            locator, _, place, disks = _LOCATOR.unpack(file.read(_LOCATOR.size))
            if large[:4] != b"PK\6\6" or locator != b"PK\6\7" or place != end or disks > 1:
                raise rules.refused("not_one")
            if rest != _LARGE.size - 12:
                raise rules.refused("not_one")
    if disk or first_disk or comment or here != total or offset + length != end:
        raise rules.refused("not_one")
    if total > rules.max_members or length > rules.directory_bytes:
        raise rules.refused("members", value=str(total))


def _check_members(members: list[zipfile.ZipInfo], rules: Rules) -> None:
    seen: set[str] = set()
    for info in members:
        limit = rules.limit(info.filename)
        # What zipfile shows has been cut at a zero byte; what was written must be the same.
        if limit is None or info.orig_filename != info.filename:
            raise rules.refused("members", value=_shown(info.orig_filename))
        if info.filename in seen:
            raise rules.refused("twice", value=info.filename)
        seen.add(info.filename)
        if info.flag_bits & _ENCRYPTED:
            raise rules.refused("encrypted")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir() or kind not in (0, stat.S_IFREG):
            raise rules.refused("link", value=info.filename)
        if info.file_size > limit or info.compress_size > limit + 1024:
            raise rules.refused("too_large", value=info.filename, limit=limit)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise rules.refused("damaged")
    for name in rules.needed:
        if name not in seen:
            raise rules.refused("missing", value=name)
    at = 0
    for info in sorted(members, key=lambda member: member.header_offset):
        # Python's own answer to members on the same bytes has changed three times, from nothing to a warning.
        if info.header_offset < at:
            raise rules.refused("damaged")
        at = info.header_offset + _HEADER_BYTES + info.compress_size


def _shown(name: str) -> str:
    return "".join(ch if ch.isprintable() else "?" for ch in name[:80])
