"""Recordings over HTTP: looked at, a part chosen, made a voice; and what is left of uploads that go wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from pipeline.maintenance import run_task
from pipeline.profile import Config
from tests.integration.rig import Rig
from tests.integration.service import wait_for
from tests.unit.clipkit import RATE, speechlike, stand_in_model, write

FORM = {"name": "Ben", "consent": "own"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A web that believes in a model: nothing here is spoken, so nobody opens it."""
    folder = tmp_path_factory.mktemp("uploads")
    with Rig(folder, {"web.default_voice": "heart"}, engines=(), env=stand_in_model(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    pause = np.zeros(RATE, np.float32)
    return {
        "good": write(folder / "good", speechlike(6)),
        "long": write(folder / "long", np.concatenate([speechlike(9), pause, speechlike(9, seed=3), pause])),
        "silent": write(folder / "silent", np.zeros(4 * RATE)),
    }


def send(rig: Rig, path: str, file: Path | None, fields: dict[str, str] | None = None, **headers: str) -> Any:
    files = None if file is None else {"audio": ("../../x.wav", file.read_bytes())}
    headers = {"Origin": rig.url} | {name.replace("_", "-"): value for name, value in headers.items()}
    if files is None:  # still multipart
        files = {"nothing": ("", b"")}
    return rig.http.post(path, data=fields or {}, files=files, headers=headers, timeout=300)


def left(rig: Rig) -> list[str]:
    """Every file that an upload could have left."""
    found = []
    for folder in (rig.paths.voices, rig.paths.uploads, rig.paths.tmp):
        found += [str(file.relative_to(rig.paths.root)) for file in folder.rglob("*") if file.is_file()]
    return sorted(found)


def test_a_recording_is_looked_at_and_each_check_has_a_verdict(rig: Rig, files: dict[str, Path]) -> None:
    answer = send(rig, "/api/voices/check", files["good"], {"transcript": "No."}, Accept_Language="zh-CN")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["usable"] and not found["good"] and found["suggestions"] == []
    assert {c["check"]: c["verdict"] for c in found["checks"]} == {
        "length": "good", "speech": "good", "clipping": "good", "noise": "good", "level": "good",
        "rate": "good", "whole": "good", "words": "fair",
    }  # fmt: skip
    assert [c["label"] for c in found["checks"] if c["message"]] == ["文字"]
    refused = send(rig, "/api/voices/check", files["silent"]).json()
    assert not refused["usable"] and refused["upload"] is None
    assert [(c["check"], c["verdict"]) for c in refused["checks"]] == [("speech", "bad")]
    assert "Nothing can be heard" in refused["checks"][0]["message"]


def test_a_part_of_an_upload_becomes_a_voice_and_the_upload_goes_after_a_day(
    rig: Rig, files: dict[str, Path]
) -> None:
    found = send(rig, "/api/voices/check", files["long"]).json()
    upload, parts = found["upload"], found["suggestions"]
    assert found["shortened"] and len(parts) == 2 and all(3 <= part["seconds"] <= 10 for part in parts)
    heard = rig.http.get(f"/api/uploads/{upload}/audio")
    assert heard.headers["content-type"] == "audio/flac" and heard.content[:4] == b"fLaC"
    chosen = {"start": str(parts[1]["start"]), "end": str(parts[1]["end"])}
    made = send(rig, "/api/voices", None, FORM | {"upload": upload, "transcript": "These words."} | chosen)
    assert made.status_code == 201, made.text
    voice = made.json()
    assert voice["verdict"]["clip"]["start"] == pytest.approx(parts[1]["start"], abs=0.2)
    kept, rate = soundfile.read(rig.paths.voices / voice["id"] / "reference.flac")
    assert len(kept) / rate == pytest.approx(parts[1]["seconds"], abs=0.3)
    for wrong in ({"start": "x"}, {"start": "nan", "end": "3"}, {"start": "5"}):
        answer = send(rig, "/api/voices", None, FORM | {"upload": upload} | wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_value")
    run_task("retention", rig.paths, Config(), time.time() + 3600)
    assert rig.http.get(f"/api/uploads/{upload}/audio").status_code == 200
    run_task("retention", rig.paths, Config(), time.time() + 86_500)
    assert rig.http.get(f"/api/uploads/{upload}/audio").status_code == 404
    assert send(rig, "/api/voices", None, FORM | {"upload": upload}).status_code == 404
    assert left(rig) == [f"voices/{voice['id']}/reference.flac"]
    assert rig.http.delete(f"/api/voices/{voice['id']}", headers={"Origin": rig.url}).status_code == 200


def test_an_upload_can_be_taken_back_at_once(rig: Rig, files: dict[str, Path]) -> None:
    upload = send(rig, "/api/voices/check", files["good"]).json()["upload"]
    for status in (200, 404):
        assert rig.http.delete(f"/api/uploads/{upload}", headers={"Origin": rig.url}).status_code == status
    for strange in ("..%2F..%2Fcosyd.db", "u-1", "%00"):
        assert rig.http.get(f"/api/uploads/{strange}/audio").status_code in (400, 404)
    assert left(rig) == []


@pytest.mark.parametrize("data", [b"", b"RIFF\xff\xff\xff\x7fWAVE", b"#EXTM3U\n/etc/hostname\n"])
@pytest.mark.parametrize("path", ["/api/voices", "/api/voices/check"])
def test_u25_u35_what_is_no_recording_is_refused_and_leaves_nothing(
    rig: Rig, tmp_path: Path, path: str, data: bytes
) -> None:
    (tmp_path / "x").write_bytes(data)
    answer = send(rig, path, tmp_path / "x", FORM)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "bad_audio"
    assert len(answer.json()["error"]["message"]) > 20
    assert left(rig) == [] and rig.rows("SELECT * FROM voices WHERE deleted_at IS NULL") == []


def test_u42_an_upload_that_is_cut_half_way_leaves_nothing(rig: Rig, files: dict[str, Path]) -> None:
    body = httpx.Request(
        "POST", rig.url, data=FORM, files={"audio": ("a.wav", files["long"].read_bytes() * 3)}
    )
    sent = body.read()
    head = (
        f"POST /api/voices HTTP/1.1\r\nHost: 127.0.0.1:{rig.port}\r\nOrigin: {rig.url}\r\n"
        f"Content-Type: {body.headers['content-type']}\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    for share in (0.0, 0.3, 0.99):
        with socket.create_connection(("127.0.0.1", rig.port)) as half:
            half.sendall(head.encode() + sent[: int(len(sent) * share)])
    assert rig.http.get("/healthz").status_code == 200
    wait_for(lambda: left(rig) == [], 60, "nothing left")
    assert rig.rows("SELECT * FROM voices WHERE deleted_at IS NULL") == []
    assert send(rig, "/api/voices/check", files["good"]).status_code == 200
