"""The form of a backup file: a zip with manifest.json, the database, the voices, the configuration and, when
asked for, recordings. Pure: names, limits and the words of refusals.

    manifest.json                              what it is, when and by which cosyd, checksums of the rest
    cosyd.db                                   a consistent copy
    cosyd.toml                                 the configuration file, where there was one
    voices/ID/reference.flac                   clips, and what was learned of them (safetensors)
    outputs/YYYY-MM/JOB.flac                   recordings
    outputs/YYYY-MM/JOB/source.flac            what a waiting voice conversion is made of
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.archives import Rules, parse_manifest
from pipeline.codes import CosydError
from pipeline.voices.archive import CLIP, LIMITS
from pipeline.voices.archive import FEATURES as FEATURES_NAME

MANIFEST, DATABASE, CONFIG = "manifest.json", "cosyd.db", "cosyd.toml"
FORMAT, VERSION = "cosyd-backup", 1
MIB, GIB = 1024**2, 1024**3
MAX_MANIFEST, MAX_CONFIG, MAX_DATABASE, MAX_RECORDING = 64 * MIB, MIB, 256 * GIB, 4 * GIB
"""A line of the manifest for each recording; the rest by the free disk, which is looked at first."""

_CLIP = re.compile(r"voices/([a-z0-9][a-z0-9_-]{0,63})/reference\.flac")
_FEATURES = re.compile(r"voices/([a-z0-9][a-z0-9_-]{0,63})/features-[a-z0-9_-]{1,40}\.safetensors")
_OUTPUT = re.compile(r"outputs/\d{4}-\d{2}/[0-9a-f]{16}(\.flac|/source\.flac)", re.ASCII)


def member_limit(name: str) -> int | None:
    """Bytes that a member of this name may have; None when it does not belong in a backup."""
    if name in (fixed := {MANIFEST: MAX_MANIFEST, DATABASE: MAX_DATABASE, CONFIG: MAX_CONFIG}):
        return fixed[name]
    if _CLIP.fullmatch(name):
        return LIMITS[CLIP]
    if _FEATURES.fullmatch(name):
        return LIMITS[FEATURES_NAME]
    return MAX_RECORDING if _OUTPUT.fullmatch(name) else None


def refused(reason: str, **params: Any) -> CosydError:
    """Each reason has a sentence with what to do (`error.bad_value_backup_*`)."""
    return CosydError("bad_value", field="FILE", reason=f"backup_{reason}", **params)


RULES = Rules(
    limit=member_limit,
    needed=(MANIFEST, DATABASE),
    max_members=500_000,
    directory_bytes=64 * MIB,
    refused=refused,
)


@dataclass(frozen=True, slots=True)
class About:
    """What a backup says of itself: `made_at` UTC text, `cosyd` the version that made it, `schema` of its
    database, `profile` the hardware class it ran as, `outputs` whether recordings are in it."""

    made_at: str
    cosyd: str
    schema: int
    profile: str
    outputs: bool


def write_manifest(about: About, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The manifest; `files` is name to `bytes` and `sha256`."""
    said = {
        "format": FORMAT, "version": VERSION, "made_at": about.made_at, "cosyd": about.cosyd,
        "schema": about.schema, "profile": about.profile, "outputs": about.outputs, "files": files,
    }  # fmt: skip
    return json.dumps(said, ensure_ascii=False, indent=0).encode()


def read_about(data: bytes) -> tuple[About, Any]:
    """What it is, and its list of files, not looked at yet. Raises what `refused` makes."""
    found = parse_manifest(data, FORMAT, VERSION, RULES)
    schema, outputs = found.get("schema"), found.get("outputs")
    words = [found.get(name) for name in ("made_at", "cosyd", "profile")]
    made_at, cosyd, profile = map(str, words)
    if type(schema) is not int or type(outputs) is not bool:
        raise refused("manifest")
    if not all(isinstance(word, str) and len(word) <= 80 and word.isprintable() for word in words):
        raise refused("manifest")
    return About(made_at, cosyd, schema, profile, outputs), found.get("files")
