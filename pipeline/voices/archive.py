"""A voice as one zip: manifest.json, reference.flac, features.safetensors. Read as if an enemy had made it.

Three fixed names, nothing else; sizes are bounded before anything is unpacked and again while it is; hashes
are checked; nothing is extracted to a path, and nothing is ever a pickle. The clip is still sound from
elsewhere: `voices.sharing` decodes it, and what is kept is written anew. The consent inside is what somebody
said elsewhere; it is shown, and an import asks again.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.codes import CosydError

MANIFEST, CLIP, FEATURES = "manifest.json", "reference.flac", "features.safetensors"
LIMITS: Mapping[str, int] = {MANIFEST: 64 * 1024, CLIP: 16 * 1024**2, FEATURES: 8 * 1024**2}
"""Bytes of each member, unpacked. 30 s of sound are 3 MB, their features half of one."""
MAX_BYTES = sum(LIMITS.values()) + 4096

FORMAT, VERSION = "cosyd-voice", 1
_END = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE.TXT 4.3.16
_DIRECTORY_BYTES = 4096
_HEADER_BYTES = 30  # local file header without name and extra field, APPNOTE.TXT 4.3.7
_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same voice gives the same file
_ENCRYPTED = 0x1 | 0x40 | 0x2000


@dataclass(frozen=True, slots=True)
class Archive:
    """What was in a file: `about` is the manifest, a JSON object of strings, numbers and lists; `features` is
    None when there were none."""

    about: Mapping[str, Any]
    clip: bytes
    features: bytes | None


def refused(reason: str, **params: Any) -> CosydError:
    """Each reason has a sentence with what to do (`error.bad_value_zip_*`)."""
    return CosydError("bad_value", field="archive", reason=f"zip_{reason}", **params)


def write_archive(out: IO[bytes], about: Mapping[str, Any], clip: bytes, features: bytes | None) -> None:
    """Write the zip to `out`. Stored, not deflated: FLAC and floats hardly get smaller."""
    members = {CLIP: clip} | ({} if features is None else {FEATURES: features})
    files = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
    }
    manifest = {"format": FORMAT, "version": VERSION, **about, "files": files}
    text = json.dumps(manifest, ensure_ascii=False, indent=1).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        for name, data in {MANIFEST: text, **members}.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.external_attr = (stat.S_IFREG | 0o600) << 16
            made.writestr(info, data)


def read_archive(path: Path) -> Archive:
    """The checked content of a file. Raises CosydError(bad_value) with what is wrong and what to do."""
    _check_directory(path)
    try:
        with zipfile.ZipFile(path) as made:
            _check_members(made.infolist())
            found = {info.filename: _read(made, info) for info in made.infolist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError):
        # zipfile raises all of these for damage of one kind or another.
        raise refused("damaged") from None
    about = _manifest(found[MANIFEST])
    files = about.get("files")
    wanted = set(found) - {MANIFEST}
    if not isinstance(files, dict) or set(files) != wanted:
        raise refused("manifest")
    for name in sorted(wanted):
        entry = files[name]
        digest = hashlib.sha256(found[name]).hexdigest()
        if not isinstance(entry, dict) or entry.get("sha256") != digest:
            raise refused("hash", value=name)
    return Archive(about, found[CLIP], found.get(FEATURES))


def _check_directory(path: Path) -> None:
    """Bound the list of members before zipfile reads it: a file of 30 MB can list half a million, and a zip
    with something before, between or behind may be two files in one."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise refused("too_large", value=path.name if size else "", limit=MAX_BYTES)
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size))
        tail = file.read()
    if len(tail) < _END.size or tail[:4] != b"PK\5\6":
        raise refused("not_one")
    _, disk, first_disk, here, total, length, offset, comment = _END.unpack(tail)
    if disk or first_disk or comment or here != total or offset + length != size - _END.size:
        raise refused("not_one")
    if total > len(LIMITS) or length > _DIRECTORY_BYTES:
        raise refused("members", value=str(total))


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    names = [info.filename for info in members]
    for info in members:
        # What zipfile shows has been cut at a zero byte; what was written must be the same.
        if info.filename not in LIMITS or info.orig_filename != info.filename:
            raise refused("members", value=_shown(info.orig_filename))
        if names.count(info.filename) > 1:
            raise refused("twice", value=info.filename)
        if info.flag_bits & _ENCRYPTED:
            raise refused("encrypted")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir() or kind not in (0, stat.S_IFREG):
            raise refused("link", value=info.filename)
        if info.file_size > LIMITS[info.filename] or info.compress_size > LIMITS[info.filename] + 1024:
            raise refused("too_large", value=info.filename, limit=LIMITS[info.filename])
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise refused("damaged")
    for name in (MANIFEST, CLIP):
        if name not in names:
            raise refused("missing", value=name)
    at = 0
    for info in sorted(members, key=lambda member: member.header_offset):
        # Python's own answer to members on the same bytes has changed three times, from nothing to a warning.
        if info.header_offset < at:
            raise refused("damaged")
        at = info.header_offset + _HEADER_BYTES + info.compress_size


def _read(made: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """One member, never more than it says; zipfile checks its CRC at the end."""
    with made.open(info) as member:
        data = member.read(info.file_size + 1)
        if len(data) != info.file_size or member.read(1):
            raise refused("damaged")
    return data


def _manifest(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise refused("manifest") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise refused("manifest")
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise refused("manifest")
    if version > VERSION:
        raise refused("version", value=version)
    return found


def _shown(name: str) -> str:
    return "".join(ch if ch.isprintable() else "?" for ch in name[:80])
