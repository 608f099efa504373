"""A cloned voice over the whole path: real processes, the tiny checkpoint, clip in by the API, sound out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH
from tests.integration.service import Service, wait_for

pytest.importorskip("torch", reason=NO_TORCH)

CLIP = (KIT / "golden" / "prompt_24k.wav").read_bytes()
START = {"deadlines.start_s": "120", "timeout_factor": "4"}


def add(service: Service, **fields: str) -> dict[str, Any]:
    """POST /api/voices with the kit's clip."""
    form = {"name": "安娜 Anna", "consent": "own"} | fields
    answer = service.http.post(
        "/api/voices", data=form, files={"audio": ("memo.m4a", CLIP)}, headers={"Origin": service.url}
    )
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    state = tmp_path_factory.mktemp("cloning") / "state"
    env = {"COSYD_MODEL_DIR": str(KIT / "model"), "OMP_NUM_THREADS": "1"}
    with Service(state, START, env=env) as running:
        yield running


def features(service: Service, voice: str) -> Path:
    return service.state / "voices" / voice / "features-cosyvoice3.safetensors"


def test_a_cloned_voice_speaks_in_each_mode_and_is_encoded_once(service: Service) -> None:
    voice = add(service, transcript="The words of the clip.")
    assert voice["notice"] is None
    assert {v["id"] for v in service.http.get("/v1/audio/voices").json()["voices"]} >= {voice["id"], "heart"}
    assert service.http.get(f"/api/voices/{voice['id']}/preview").content[:4] == b"fLaC"
    assert not features(service, voice["id"]).exists()

    first = service.speech("Hello there.", voice=voice["id"], seed=1)
    assert first.status_code == 200 and len(first.content) > 4800, first.text[:300]
    made = features(service, voice["id"]).stat()
    again = service.speech("Hello there.", voice=voice["id"], seed=1)
    assert again.content == first.content
    styled = service.speech("Hello there.", voice=voice["id"], seed=1, instructions="Speak happily.")
    assert styled.status_code == 200 and styled.content != first.content
    job = service.submit("Hello there.", voice=voice["id"], mode="cross_lingual")
    assert service.wait_job(job, 120)["state"] == "done"
    rows = service.generations(4)
    assert [row["mode"] for row in rows] == ["zero_shot", "zero_shot", "instruct", "cross_lingual"]
    assert [row["instruct"] for row in rows] == [None, None, "Speak happily.", None]
    assert features(service, voice["id"]).stat().st_mtime_ns == made.st_mtime_ns


def test_without_a_transcript_it_is_cross_lingual_and_says_so(service: Service) -> None:
    voice = add(service)
    assert "transcript" in voice["notice"]
    job = service.submit("Good evening.", voice=voice["id"])
    assert service.wait_job(job, 120)["state"] == "done"
    row = service.rows("SELECT mode, voice FROM generations WHERE job_id = ?", job)[0]
    assert row == {"mode": "cross_lingual", "voice": voice["id"]}


def test_a_killed_worker_goes_on_with_the_voice_it_had(service: Service) -> None:
    voice = add(service, transcript="The words of the clip.")
    text = " ".join(f"This is sentence number {n}, and it is followed by more." for n in range(12))
    job = service.submit(text, voice=voice["id"])
    done = "SELECT count(*) AS n FROM segments WHERE job_id = ? AND state = 'done'"
    wait_for(lambda: service.rows(done, job)[0]["n"] >= 1, 120, "the first segment")
    made = features(service, voice["id"]).stat().st_mtime_ns
    service.child("cosyvoice3").kill()
    row = service.wait_job(job, 240)
    assert (row["state"], row["attempt"]) == ("done", 2)  # a new job is attempt 1
    assert features(service, voice["id"]).stat().st_mtime_ns == made


def test_a_deleted_voice_leaves_no_clip_and_is_refused(service: Service) -> None:
    voice = add(service, consent="agreed", person="Anna")["id"]
    assert service.http.delete(f"/api/voices/{voice}").json() == {"deleted": True}
    assert not (service.state / "voices" / voice).exists()
    assert service.speech("Hello.", voice=voice).status_code == 400
    assert service.http.delete(f"/api/voices/{voice}").status_code == 404
    left = service.rows("SELECT name, transcript, consent FROM voices WHERE id = ?", voice)
    assert left == [{"name": "", "transcript": None, "consent": None}]


def test_an_idle_worker_is_unloaded(tmp_path: Path) -> None:
    env = {"COSYD_MODEL_DIR": str(KIT / "model"), "OMP_NUM_THREADS": "1"}
    with Service(tmp_path / "state", START | {"keep_alive": "1"}, env=env) as service:
        voice = add(service, transcript="The words of the clip.")["id"]
        assert service.speech("Hello.", voice=voice).status_code == 200
        wait_for(lambda: "unloaded" in service.event_kinds(), 60, "the unloading", 0.1)
        Service.gone([p for p in service.family() if "cosyvoice3" in p.cmdline()], 30)


def test_the_doors_of_adding_a_voice(service: Service) -> None:
    own = {"Origin": service.url}
    form = {"name": "Anna", "consent": "own"}
    clip = {"audio": ("a.wav", CLIP)}

    def code(data: dict[str, str], files: Any, headers: dict[str, str]) -> tuple[int, str]:
        answer = service.http.post("/api/voices", data=data, files=files, headers=headers)
        return answer.status_code, answer.json()["error"]["code"]

    assert code(form, clip, {"Origin": "http://elsewhere.example"}) == (421, "misdirected")
    assert code({"name": "Anna"}, clip, own) == (400, "bad_value")
    assert code(form, {"audio": ("a.wav", b"no sound")}, own) == (400, "bad_audio")
    assert code(form, None, own) == (400, "bad_audio")
    assert code(form, {"audio": ("a.wav", bytes(51_000_000))}, own) == (400, "bad_audio")
    assert service.http.delete("/api/voices/heart").status_code == 404
    assert not list((service.state / "tmp").glob("upload-*"))
