"""A voice as one zip: manifest.json, reference.flac, features.safetensors. Read as if an enemy had made it.

Three fixed names, nothing else; sizes are bounded before anything is unpacked and again while it is; hashes
are checked; nothing is extracted to a path, and nothing is ever a pickle. The clip is still sound from
elsewhere: `voices.sharing` decodes it, and what is kept is written anew. The consent inside is what somebody
said elsewhere; it is shown, and an import asks again.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.archives import Rules, check_listed, member, opened, parse_manifest, read_member
from pipeline.codes import CosydError

MANIFEST, CLIP, FEATURES = "manifest.json", "reference.flac", "features.safetensors"
LIMITS: Mapping[str, int] = {MANIFEST: 64 * 1024, CLIP: 16 * 1024**2, FEATURES: 8 * 1024**2}
"""Bytes of each member, unpacked. 30 s of sound are 3 MB, their features half of one."""
MAX_BYTES = sum(LIMITS.values()) + 4096

FORMAT, VERSION = "cosyd-voice", 1


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


RULES = Rules(
    limit=LIMITS.get,
    needed=(MANIFEST, CLIP),
    max_members=len(LIMITS),
    directory_bytes=4096,
    refused=refused,
    max_bytes=MAX_BYTES,
)


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
            made.writestr(member(name), data)


def read_archive(path: Path) -> Archive:
    """The checked content of a file. Raises CosydError(bad_value) with what is wrong and what to do."""
    with opened(path, RULES) as made:
        found = {info.filename: read_member(made, info, RULES) for info in made.infolist()}
    about = parse_manifest(found[MANIFEST], FORMAT, VERSION, RULES)
    wanted = set(found) - {MANIFEST}
    files = check_listed(about.get("files"), wanted, RULES)
    for name in sorted(wanted):
        if files[name]["sha256"] != hashlib.sha256(found[name]).hexdigest():
            raise refused("hash", value=name)
    return Archive(about, found[CLIP], found.get(FEATURES))
