"""Voices as files and as a person's belongings, over HTTP and on the command line, against one database."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline.store.db import connect
from pipeline.voices.registry import add_voice, parse_new_voice
from tests.integration.rig import Rig
from tests.integration.test_cli import cosyd


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("files"), {}, engines=("numbers",)) as made:
        yield made


def new_voice(rig: Rig, name: str = "Anna", person: str = "Anna B.") -> str:
    sound = (0.3 * np.sin(np.arange(3 * 24_000) / 20)).astype(np.float32)
    fields = {"name": name, "consent": "agreed", "person": person, "transcript": "Hi.", "tags": ["calm"]}
    conn = connect(rig.paths.database, "accept")
    try:
        new = parse_new_voice(fields, time.time())
        return add_voice(conn, rig.paths, new, sound, 24_000, time.time()).id
    finally:
        conn.close()


def send(rig: Rig, file: bytes, **fields: str) -> Any:
    files = {"archive": ("voice.zip", file, "application/zip")}
    return rig.http.post("/api/voices/import", data=fields, files=files, headers={"Origin": rig.url})


def cli(rig: Rig, *words: str) -> Any:
    return cosyd("voices", *words, "--state", str(rig.paths.root))


def test_a_voice_leaves_and_comes_back_over_http(rig: Rig) -> None:
    voice = new_voice(rig, "外婆")
    assert rig.http.patch(f"/api/voices/{voice}", json={"tags": "家人，calm,CALM"}).status_code == 200
    answer = rig.http.get(f"/api/voices/{voice}/export")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/zip"
    assert "%E5%A4%96%E5%A9%86.cosyd-voice.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as made:
        assert made.namelist() == ["manifest.json", "reference.flac"]
    made = send(rig, answer.content, consent="own")
    view = made.json()
    assert made.status_code == 201 and view["tags"] == ["家人", "calm"] and view["name"] == "外婆"
    assert view["said"]["choice"] == "agreed" and view["said"]["person"] == "Anna B."
    facts = {v["id"]: v for v in rig.http.get("/api/voices").json()["voices"]}[view["id"]]
    assert (facts["consent"]["choice"], facts["source"]) == ("own", "import")
    assert not [f for f in rig.paths.tmp.rglob("*") if f.name.startswith(("export-", "import-"))]


@pytest.mark.parametrize(
    ("file", "fields", "field"),
    [
        (b"", {"consent": "own"}, "archive"),
        (b"PK" * 99, {"consent": "own"}, "archive"),
        (None, {}, "consent"),
        (None, {"consent": "agreed"}, "person"),
    ],
)
def test_what_is_no_voice_or_has_no_consent_is_refused(
    rig: Rig, file: bytes | None, fields: dict[str, str], field: str
) -> None:
    voice = new_voice(rig)
    before = len(rig.rows("SELECT 1 FROM voices"))
    answer = send(
        rig, rig.http.get(f"/api/voices/{voice}/export").content if file is None else file, **fields
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "bad_value") and error["message"]
    assert field in error["message"] or field == "archive"
    assert len(rig.rows("SELECT 1 FROM voices")) == before


def test_a_file_that_is_too_large_is_not_read_to_its_end(rig: Rig) -> None:
    answer = send(rig, b"\0" * 30_000_000, consent="own")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "bad_audio"


def test_a_person_is_forgotten_over_http(rig: Rig) -> None:
    voice, other = new_voice(rig, "Carla", "Carla"), new_voice(rig, "Carla sings", "CARLA")
    there = rig.http.get(f"/api/voices/{voice}/belongings").json()
    assert {name for _, name in there["voices"]} == {"Carla", "Carla sings"} and there["clips"] == 2
    for body in ({"recordings": "yes"}, {"all": True}):
        assert rig.http.post(f"/api/voices/{voice}/forget", json=body).status_code == 400
    gone = rig.http.post(f"/api/voices/{voice}/forget", json={"recordings": True}).json()
    assert gone["clips"] == 2 and gone["backups_kept"] == rig.config.schedule.backups_kept
    assert not any((rig.paths.voices / v).exists() for v in (voice, other))
    for address in (
        f"/api/voices/{voice}/belongings",
        "/api/voices/heart/belongings",
        "/api/voices/%2e/belongings",
    ):
        assert rig.http.get(address).status_code == 404
    assert rig.http.post(f"/api/voices/{voice}/forget", json={}).status_code == 404


def test_the_same_on_the_command_line(rig: Rig, tmp_path: Path) -> None:
    voice = new_voice(rig, "Dora", "Dora")
    assert b"calm, home" in cli(rig, "tag", voice, "calm", "home").stderr
    assert cli(rig, "preview", voice, "-o", str(tmp_path / "clip.flac")).returncode == 0
    assert soundfile.info(str(tmp_path / "clip.flac")).duration == pytest.approx(3)
    file = tmp_path / "dora.zip"
    assert cli(rig, "export", voice, "-o", str(file)).returncode == 0 and zipfile.is_zipfile(file)
    refused = cli(rig, "import", str(file), "--consent", "agreed")
    assert refused.returncode == 2 and b"person" in refused.stderr
    made = cli(rig, "import", str(file), "--consent", "own", "--name", "Dora again")
    assert made.returncode == 0 and b"Dora agreed" in made.stderr
    listed = {v["id"]: v for v in json.loads(cli(rig, "--json").stdout)}
    again = made.stdout.decode().strip()
    assert listed[again]["name"] == "Dora again" and listed[again]["tags"] == ["calm", "home"]
    no = cosyd("voices", "forget", voice, "--state", str(rig.paths.root), stdin=b"n\n")
    assert no.returncode == 0 and b"Dora" in no.stderr and (rig.paths.voices / voice).exists()
    gone = json.loads(cli(rig, "forget", voice, "--recordings", "--yes", "--json").stdout)
    assert gone["voices"] == [[voice, "Dora"]] and gone["clips"] == 1
    for words in (("export", "heart"), ("forget", "heart", "--yes"), ("preview", "heart"), ("tag", "nobody")):
        assert cli(rig, *words).returncode == 2
