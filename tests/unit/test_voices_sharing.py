"""A voice leaves as one file and comes back; every hostile file is refused with what to do."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.messages import error_text
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.voices import archive, sharing
from pipeline.voices.archive import CLIP, FEATURES, MANIFEST, read_archive
from pipeline.voices.catalogue import Voice
from pipeline.voices.feature_file import checked_features, features_bytes, features_path, metadata_hash
from pipeline.voices.registry import add_voice, clip_path, cloned_voices, parse_new_voice, voice_facts
from pipeline.voices.sharing import export_voice, file_name, import_voice, read_clip
from tests.unit.storekit import new_state

RATE, NOW, LATER = 24_000, 1_700_000_000.0, 1_800_000_000.0
SAID = {"consent": "own"}


def tone(seconds: float = 2.0, rate: int = RATE) -> Any:
    return (0.3 * np.sin(2 * np.pi * 220 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def arrays(tokens: int = 50) -> dict[str, Any]:
    draw = np.random.default_rng(5)
    return {
        "speech_tokens": draw.integers(0, 6561, tokens).astype(np.int32),
        "prompt_mel": draw.normal(size=(2 * tokens, 80)).astype(np.float32),
        "speaker": draw.normal(size=192).astype(np.float32),
    }


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[Any]:
    made = connect(paths.database, "accept")
    made.execute("PRAGMA synchronous = OFF")  # only for speed: no power cut is part of these tests
    yield made
    made.close()


@pytest.fixture
def voice(paths: StatePaths, conn: Any) -> Voice:
    """A voice that has spoken: its features are kept."""
    fields = {
        "name": "Großmutter 外婆", "consent": "agreed", "person": "Anna B.", "transcript": "Guten Tag.",
        "language": "de", "tags": ["Familie", "ruhig"],
    }  # fmt: skip
    made = add_voice(conn, paths, parse_new_voice(fields, NOW), tone(), RATE, NOW)
    digest = conn.execute("SELECT content_hash FROM voices").fetchone()[0]
    features_path(paths, made.id, made.engine).write_bytes(features_bytes(arrays(), digest))
    return made


@pytest.fixture
def exported(paths: StatePaths, conn: Any, voice: Voice, tmp_path: Path) -> Path:
    out = io.BytesIO()
    name = export_voice(conn, paths, voice.id, out)
    place = tmp_path / name
    place.write_bytes(out.getvalue())
    return place


def taken_in(conn: Any, paths: StatePaths, file: Path, said: dict[str, str] = SAID) -> Voice:
    return import_voice(conn, paths, read_archive(file), said, LATER, max_seconds=10)


def test_a_voice_comes_back_whole_with_a_consent_that_was_asked_again(
    paths: StatePaths, conn: Any, voice: Voice, exported: Path
) -> None:
    assert exported.name == "Großmutter-外婆.cosyd-voice.zip"
    with zipfile.ZipFile(exported) as made:
        assert made.namelist() == [MANIFEST, CLIP, FEATURES]
    back = taken_in(conn, paths, exported, {"consent": "agreed", "person": "Anna Berg"})
    assert back.id != voice.id
    assert dataclasses.replace(back, id=voice.id) == voice and back in cloned_voices(conn)
    for name, rate in ((back.id, RATE), (voice.id, RATE)):
        samples, found_rate = soundfile.read(clip_path(paths, name), dtype="float32")
        assert found_rate == rate and np.abs(samples - tone()).max() < 1e-4
    facts = voice_facts(conn)[back.id]
    assert facts["consent"] == {"choice": "agreed", "person": "Anna Berg", "at": utc_text(LATER)}
    assert facts["source"] == "import"
    kept = features_path(paths, back.id, back.engine).read_bytes()
    digest = conn.execute("SELECT content_hash FROM voices WHERE id = ?", (back.id,)).fetchone()[0]
    assert metadata_hash(kept) == digest
    assert all(np.array_equal(checked_features(kept)[name], array) for name, array in arrays().items())


def test_kept_features_are_what_safetensors_itself_reads(paths: StatePaths, voice: Voice) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="comes with the extra cosyvoice")
    data = features_path(paths, voice.id, voice.engine).read_bytes()
    assert all(np.array_equal(safetensors.load(data)[name], array) for name, array in arrays().items())
    assert checked_features(safetensors.save(arrays())).keys() == arrays().keys()


def test_the_same_voice_gives_the_same_file(
    paths: StatePaths, conn: Any, voice: Voice, exported: Path
) -> None:
    again = io.BytesIO()
    export_voice(conn, paths, voice.id, again)
    assert again.getvalue() == exported.read_bytes()


def test_features_of_another_clip_stay_at_home(paths: StatePaths, conn: Any, voice: Voice) -> None:
    path = features_path(paths, voice.id, voice.engine)
    for stale in (features_bytes(arrays(), "of another clip"), b"no features", b""):
        path.write_bytes(stale)
        out = io.BytesIO()
        export_voice(conn, paths, voice.id, out)
        with zipfile.ZipFile(out) as made:
            assert made.namelist() == [MANIFEST, CLIP]


def test_only_a_voice_that_is_there_is_exported(paths: StatePaths, conn: Any, voice: Voice) -> None:
    with pytest.raises(CosydError) as refused:
        export_voice(conn, paths, "heart", io.BytesIO())
    assert refused.value.code == "not_found"
    clip_path(paths, voice.id).unlink()
    with pytest.raises(CosydError) as refused:
        export_voice(conn, paths, voice.id, io.BytesIO())
    assert refused.value.params["reason"] == "changed"


@pytest.mark.parametrize(
    "said",
    [{}, {"consent": ""}, {"consent": "yes"}, {"consent": "agreed"}, {"consent": "agreed", "person": " "}],
)
def test_no_import_without_a_consent_said_now(
    paths: StatePaths, conn: Any, exported: Path, said: dict[str, str]
) -> None:
    with pytest.raises(CosydError) as refused:
        taken_in(conn, paths, exported, said)
    assert refused.value.params["field"] in ("consent", "person")
    assert len(list(paths.voices.iterdir())) == 1


# -- hostile files ----------------------------------------------------------------------------------------

Member = tuple[str, bytes]


def zipped(place: Path, *members: Member, method: int = zipfile.ZIP_STORED, mode: int = 0) -> Path:
    with pytest.MonkeyPatch.context() as quiet:
        quiet.setattr("warnings.warn", lambda *a, **k: None)  # zipfile warns of the duplicates that we want
        with zipfile.ZipFile(place, "w", method) as made:
            for name, data in members:
                info = zipfile.ZipInfo(name)
                info.compress_type, info.external_attr = method, mode << 16
                made.writestr(info, data)
    return place


def flac(samples: Any = None, rate: int = RATE, **how: Any) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, tone() if samples is None else samples, rate, **{"format": "FLAC", **how})
    return out.getvalue()


def manifest(clip: bytes, features: bytes | None = None, **other: Any) -> Member:
    files = {CLIP: clip} | ({} if features is None else {FEATURES: features})
    listed = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()}
    about = {"format": "cosyd-voice", "version": 1, "name": "Anna", "files": listed} | other
    return MANIFEST, json.dumps(about).encode()


CLIP_OK = flac()
GOOD = (manifest(CLIP_OK), (CLIP, CLIP_OK))


def patched(place: Path, change: Callable[[bytearray], None]) -> Path:
    data = bytearray(place.read_bytes())
    change(data)
    place.write_bytes(data)
    return place


def lie_about_sizes(data: bytearray) -> None:
    """The directory says that a small member is smaller still."""
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<L", data, at + 24, 10)


def claim_encryption(data: bytearray) -> None:
    for sign, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.index(sign)
        struct.pack_into("<H", data, at + flags, 1)


def rename_inside(data: bytearray) -> None:
    """The directory and the member itself give different names."""
    at = data.rindex(b"reference.flac", 0, data.index(b"PK\1\2"))
    data[at : at + 14] = b"/etc/passwd.fl"


def flip_a_bit(data: bytearray) -> None:
    data[data.index(b"fLaC") + 400] ^= 1


def prepend(data: bytearray) -> None:
    data[:0] = b"#!/bin/sh\nexit\n"


def swallow_the_first(data: bytearray) -> None:
    """Two members on the same bytes."""
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<L", data, at + 42, 0)


def reach_into_the_first(data: bytearray) -> None:
    """The second member begins before the first one ends."""
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<L", data, at + 42, 40)


BOMB = (MANIFEST, b" " * (8 * 1024**2))
HOSTILE: list[tuple[str, str, Callable[[Path], Path]]] = [
    ("no zip", "not_one", lambda p: (p.write_bytes(b"RIFF" * 99), p)[1]),
    ("empty", "not_one", lambda p: (p.touch(), p)[1]),
    ("cut off", "not_one", lambda p: patched(zipped(p, *GOOD), lambda d: d.__delitem__(slice(-30, None)))),
    ("a script before it", "not_one", lambda p: patched(zipped(p, *GOOD), prepend)),
    ("something behind it", "not_one", lambda p: patched(zipped(p, *GOOD), lambda d: d.extend(b"PDF"))),
    ("a bomb", "too_large", lambda p: zipped(p, BOMB, GOOD[1], method=zipfile.ZIP_DEFLATED)),
    ("a bomb that lies", "damaged", lambda p: patched(
        zipped(p, GOOD[1], BOMB, method=zipfile.ZIP_DEFLATED), lie_about_sizes)),
    ("lying sizes", "damaged", lambda p: patched(zipped(p, *GOOD), lie_about_sizes)),
    ("overlapping members", "damaged", lambda p: patched(zipped(p, *GOOD), swallow_the_first)),
    ("reaching into each other", "damaged", lambda p: patched(zipped(p, *GOOD), reach_into_the_first)),
    ("another name inside", "damaged", lambda p: patched(zipped(p, *GOOD), rename_inside)),
    ("one bit", "damaged", lambda p: patched(zipped(p, *GOOD), flip_a_bit)),
    ("encrypted", "encrypted", lambda p: patched(zipped(p, *GOOD), claim_encryption)),
    ("bzip2", "damaged", lambda p: zipped(p, *GOOD, method=zipfile.ZIP_BZIP2)),
    ("a symlink", "link", lambda p: zipped(p, *GOOD, mode=stat.S_IFLNK | 0o777)),
    ("a device", "link", lambda p: zipped(p, *GOOD, mode=stat.S_IFCHR | 0o600)),
    ("twice", "twice", lambda p: zipped(p, *GOOD, (CLIP, CLIP_OK))),
    ("a folder", "members", lambda p: zipped(p, *GOOD, ("folder/", b""))),
    ("an extra member", "members", lambda p: zipped(p, *GOOD, ("setup.py", b"import os"))),
    ("a pickle", "members", lambda p: zipped(p, *GOOD, ("features.pkl", b"\x80\x04."))),
    ("an absolute path", "members", lambda p: zipped(p, GOOD[0], ("/" + CLIP, CLIP_OK))),
    ("a way up", "members", lambda p: zipped(p, GOOD[0], ("../" + CLIP, CLIP_OK))),
    ("a backslash", "members", lambda p: zipped(p, GOOD[0], ("..\\" + CLIP, CLIP_OK))),
    ("another case", "members", lambda p: zipped(p, GOOD[0], (CLIP.upper(), CLIP_OK))),
    ("a hundred thousand members", "members", lambda p: zipped(p, *((f"{n}", b"") for n in range(9999)))),
    ("no clip", "missing", lambda p: zipped(p, GOOD[0])),
    ("no manifest", "missing", lambda p: zipped(p, GOOD[1])),
    ("another hash", "hash", lambda p: zipped(p, manifest(b"other"), GOOD[1])),
    ("an unlisted member", "manifest", lambda p: zipped(p, *GOOD, (FEATURES, b"x"))),
    ("no list", "manifest", lambda p: zipped(p, manifest(CLIP_OK, files=[1]), GOOD[1])),
    ("not JSON", "manifest", lambda p: zipped(p, (MANIFEST, b"{"), GOOD[1])),
    ("deep JSON", "manifest", lambda p: zipped(p, (MANIFEST, b"[" * 60_000), GOOD[1])),
    ("a number", "manifest", lambda p: zipped(p, (MANIFEST, b"5"), GOOD[1])),
    ("another format", "manifest", lambda p: zipped(p, manifest(CLIP_OK, format="x"), GOOD[1])),
    ("no version", "manifest", lambda p: zipped(p, manifest(CLIP_OK, version=True), GOOD[1])),
    ("a newer version", "version", lambda p: zipped(p, manifest(CLIP_OK, version=2), GOOD[1])),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "make"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_file_is_refused_and_leaves_nothing(
    paths: StatePaths, conn: Any, tmp_path: Path, reason: str, make: Callable[[Path], Path]
) -> None:
    with pytest.raises(CosydError) as refused:
        taken_in(conn, paths, make(tmp_path / "hostile.zip"))
    error = refused.value
    assert (error.code, error.params["reason"]) == ("bad_value", f"zip_{reason}")
    for language in ("en", "zh"):
        said = error_text(error.code, language, error.params)
        assert said.count("。" if language == "zh" else ". ") >= 1 and "?" not in said
    assert list(paths.voices.iterdir()) == [] and cloned_voices(conn) == ()


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    huge = tmp_path / "huge.zip"
    with huge.open("wb") as file:
        file.truncate(archive.MAX_BYTES + 1)
    with pytest.raises(CosydError) as refused:
        read_archive(huge)
    assert refused.value.params["reason"] == "zip_too_large"


def features_of(**changes: Any) -> bytes:
    return features_bytes(arrays() | changes, "x")


def renamed_header(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new) and old in data
    return data.replace(old, new)


BAD_FEATURES: dict[str, Callable[[], bytes]] = {
    "a pickle": lambda: b"\x80\x04\x95" + b"x" * 200,
    "nothing": lambda: b"",
    "a header without end": lambda: struct.pack("<Q", 2**62) + b"{}",
    "deep JSON": lambda: struct.pack("<Q", 60_000) + b"[" * 60_000,
    "a list": lambda: struct.pack("<Q", 8) + b"[1,2,3] ",
    "cut off": lambda: features_of()[:-4],
    "too long": lambda: features_of() + b"\0\0\0\0",
    "a token that no model knows": lambda: features_of(speech_tokens=np.full(50, 6561, np.int32)),
    "a negative token": lambda: features_of(speech_tokens=np.full(50, -1, np.int32)),
    "no tokens": lambda: features_bytes(arrays(0), "x"),
    "too many tokens": lambda: features_bytes(arrays(2000), "x"),
    "another mel": lambda: features_of(prompt_mel=np.zeros((100, 100), np.float32)),
    "a flat mel": lambda: features_of(prompt_mel=np.zeros(8000, np.float32)),
    "NaN": lambda: features_of(speaker=np.full(192, np.nan, np.float32)),
    "infinity": lambda: features_of(speaker=np.full(192, np.inf, np.float32)),
    "tokens as floats": lambda: features_of(speech_tokens=np.zeros(50, np.float32)),
    "another array": lambda: features_of(backdoor=np.zeros(1, np.float32)),
    "one array less": lambda: features_bytes({k: v for k, v in arrays().items() if k != "speaker"}, "x"),
    "half floats": lambda: renamed_header(features_of(), b'"F32"', b'"F16"'),
    "negative places": lambda: renamed_header(features_of(), b"[0,32000]", b"[-9,1999]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FEATURES)
def test_features_that_are_none_are_refused(paths: StatePaths, conn: Any, tmp_path: Path, kind: str) -> None:
    data = BAD_FEATURES[kind]()
    with pytest.raises(ValueError, match=r"[a-z]"):
        checked_features(data)
    file = zipped(tmp_path / "a.zip", manifest(CLIP_OK, data), (CLIP, CLIP_OK), (FEATURES, data))
    with pytest.raises(CosydError) as refused:
        taken_in(conn, paths, file)
    assert refused.value.params["reason"] == "zip_features" and list(paths.voices.iterdir()) == []


@pytest.mark.parametrize(
    ("clip", "reason"),
    [
        (lambda: b"RIFF" + b"\0" * 100, "zip_clip"),
        (lambda: flac(format="WAV"), "zip_clip"),
        (lambda: b"fLaC" + b"\0" * 100, "zip_clip"),
        (lambda: flac(np.stack([tone(), tone()], 1)), "zip_clip"),
        (lambda: flac(tone(2, 4000), 4000), "rate"),
        (lambda: flac(tone(0.5)), "short"),
        (lambda: flac(tone(11)), "zip_long"),
        (lambda: flac(np.zeros(2 * RATE)), "silent"),
    ],
)
def test_a_clip_that_is_none_is_refused(clip: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(CosydError) as refused:
        read_clip(clip(), 10.0)
    assert refused.value.params["reason"] == reason


@pytest.mark.parametrize(
    "about",
    [{"name": None}, {"name": ["x"]}, {"name": "…"}, {"name": "x" * 81}, {"transcript": 5}, {"language": []},
     {"tags": [1]}, {"tags": ["x" * 31]}],
)  # fmt: skip
def test_what_the_manifest_says_passes_the_checks_of_a_person(
    paths: StatePaths, conn: Any, tmp_path: Path, about: dict[str, Any]
) -> None:
    file = zipped(tmp_path / "a.zip", manifest(CLIP_OK, **about), GOOD[1])
    with pytest.raises(CosydError) as refused:
        taken_in(conn, paths, file)
    assert refused.value.code == "bad_value" and list(paths.voices.iterdir()) == []


def test_names_are_normalised_and_files_have_safe_names(paths: StatePaths, conn: Any, tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip", manifest(CLIP_OK, name="Zoe\u0301\n<b>"), GOOD[1])
    assert taken_in(conn, paths, file).name == "Zoé <b>"
    assert taken_in(conn, paths, file, {**SAID, "name": "外婆"}).name == "外婆"
    for name, safe in (
        ("../../etc/passwd", "etc-passwd"),
        ("a\\b:c*?", "a-b-c"),
        ("☃", "v-1"),
        ("外 婆", "外-婆"),
    ):
        assert file_name(name, "v-1") == f"{safe}.cosyd-voice.zip"
    assert len(file_name("x" * 80, "v-1")) < 60


def test_a_voice_without_features_is_learned_again(paths: StatePaths, conn: Any, tmp_path: Path) -> None:
    made = taken_in(conn, paths, zipped(tmp_path / "a.zip", *GOOD, method=zipfile.ZIP_DEFLATED))
    assert not features_path(paths, made.id, made.engine).exists() and clip_path(paths, made.id).exists()
    assert voice_facts(conn)[made.id]["source"] == sharing.SOURCE
