"""A cloned voice over the whole path: real processes, the tiny checkpoint, clip in by the API, sound out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.cosyvoice3.conftest import KIT, NO_TORCH
from tests.integration.service import ROOT, Service, wait_for

pytest.importorskip("torch", reason=NO_TORCH)

CLIP = (KIT / "golden" / "prompt_24k.wav").read_bytes()
START = {"deadlines.start_s": "120", "timeout_factor": "4", "take_check": "signal"}


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


def long_clip(seconds: float) -> bytes:
    """The kit's clip again and again, with half a second of silence between."""
    audio, rate = soundfile.read(io.BytesIO(CLIP), dtype="float32")
    once = np.concatenate([audio, np.zeros(rate // 2, np.float32)])
    out = io.BytesIO()
    soundfile.write(
        out, np.tile(once, 1 + int(seconds * rate / len(once)))[: int(seconds * rate)], rate, format="WAV"
    )
    return out.getvalue()


def convert(service: Service, voice: str, clip: bytes, **fields: str) -> httpx.Response:
    """POST /api/convert."""
    return service.http.post(
        "/api/convert",
        data={"voice": voice} | fields,
        files={"audio": ("旧录音 old.wav", clip)},
        headers={"Origin": service.url},
    )


def test_a_recording_is_said_again_in_another_voice(service: Service) -> None:
    voice = add(service, transcript="The words of the clip.")["id"]
    answer = convert(service, voice, long_clip(4), seed="3")
    assert answer.status_code == 202, answer.text
    assert answer.json()["seconds"] == pytest.approx(4.0, abs=0.01)
    job = answer.json()["id"]
    assert service.wait_job(job, 120)["state"] == "done"
    row = service.rows("SELECT mode, text, audio_seconds, seed FROM generations WHERE job_id = ?", job)[0]
    assert (row["mode"], row["text"], row["seed"]) == ("convert", "旧录音 old.wav", 3)
    assert row["audio_seconds"] == pytest.approx(4.0, abs=0.2)
    assert not list((service.state / "outputs").rglob("source.flac"))
    assert service.http.get(f"/api/jobs/{job}/audio?format=flac").content[:4] == b"fLaC"


def test_a_conversion_goes_on_after_its_worker_was_killed(service: Service) -> None:
    voice = add(service)["id"]
    job = convert(service, voice, long_clip(80)).json()["id"]
    done = "SELECT count(*) AS n FROM segments WHERE job_id = ? AND state = 'done'"
    wait_for(lambda: service.rows(done, job)[0]["n"] >= 1, 120, "the first piece")
    service.child("cosyvoice3").kill()
    row = service.wait_job(job, 240)
    assert (row["state"], row["attempt"]) == ("done", 2)
    made = service.rows("SELECT audio_seconds, segments FROM generations WHERE job_id = ?", job)[0]
    assert made["segments"] >= 4 and made["audio_seconds"] == pytest.approx(80, abs=0.5)


def test_a_conversion_is_stopped_when_asked(service: Service) -> None:
    voice = add(service)["id"]
    job = convert(service, voice, long_clip(100)).json()["id"]
    service.wait_job(job, 60, "running")
    service.http.delete(f"/api/jobs/{job}")
    assert service.wait_job(job, 60)["state"] == "cancelled"
    wait_for(lambda: not list((service.state / "outputs").rglob("source.flac")), 10, "its source to go")


def test_what_cannot_be_converted_is_refused(service: Service) -> None:
    voice = add(service)["id"]

    def code(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["error"]["code"]

    assert code(convert(service, "heart", CLIP)) == (400, "unsupported_mode")
    assert code(convert(service, voice, b"no sound")) == (400, "bad_audio")
    assert code(convert(service, voice, long_clip(181))) == (400, "bad_audio")
    assert code(convert(service, voice, CLIP, speed="fast")) == (400, "bad_value")
    assert code(convert(service, "v-none", CLIP)) == (400, "unknown_voice")
    bare = service.http.post("/api/jobs", json={"text": "x", "voice": voice, "mode": "convert"})
    assert code(bare) == (400, "bad_audio")
    assert not list((service.state / "outputs").rglob("source.flac"))


def test_voices_are_listed_with_what_they_can_do_renamed_and_judged(service: Service) -> None:
    voice = add(service, transcript="The words of the clip.", source="recording")
    assert voice["modes"] == ["zero_shot", "cross_lingual", "instruct", "convert"]
    assert {a["code"] for a in voice["verdict"]["advice"]} <= {"clipped", "noisy", "quiet", "short", "words"}
    listed = service.http.get("/api/voices").json()
    assert listed["cloning"] == {"available": True, "code": None, "message": None}
    found = {v["id"]: v for v in listed["voices"]}
    assert found["heart"]["modes"] == ["builtin"] and found[voice["id"]]["source"] == "recording"
    assert found[voice["id"]]["consent"]["choice"] == "own" and found[voice["id"]]["consent"]["at"]
    renamed = service.http.patch(f"/api/voices/{voice['id']}", json={"name": "外婆"})
    assert renamed.status_code == 200 and renamed.json()["name"] == "外婆"
    assert service.http.patch(f"/api/voices/{voice['id']}", json={"name": ""}).status_code == 400
    assert service.http.patch(f"/api/voices/{voice['id']}", json={"id": "x"}).status_code == 400
    assert service.http.patch("/api/voices/heart", json={"name": "x"}).status_code == 404
    styles = service.http.get("/api/styles", headers={"Accept-Language": "zh-CN"}).json()
    assert len(styles["dialects"]) == 18 and styles["dialects"][0]["name"] == "广东话"


def test_the_command_line_speaks_in_a_dialect_and_converts(service: Service, tmp_path: Path) -> None:
    voice = add(service)["id"]

    def cosyd(*args: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"COSYD_STATE_DIR": str(service.state), "COSYD_MODEL_DIR": str(KIT / "model")}
        command = [sys.executable, "-m", "daemon.cli.main", *args]
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)

    said = cosyd(
        "say",
        "Hello.",
        "--voice",
        voice,
        "--dialect",
        "sichuan",
        "--style",
        "happy",
        "-o",
        str(tmp_path / "a.flac"),
    )
    assert said.returncode == 0, said.stderr
    row = service.rows("SELECT mode, instruct FROM generations ORDER BY seq DESC LIMIT 1")[0]
    assert row == {"mode": "instruct", "instruct": "请用四川话表达。请非常开心地说一句话。"}
    (tmp_path / "clip.wav").write_bytes(CLIP)
    out = tmp_path / "b.wav"
    made = cosyd("convert", str(tmp_path / "clip.wav"), "--voice", voice, "-o", str(out), "--json")
    assert made.returncode == 0, made.stderr
    clip = soundfile.info(tmp_path / "clip.wav").duration
    assert soundfile.info(out).duration == pytest.approx(clip, abs=0.1)
    assert cosyd("convert", str(out), "--voice", "heart", "-o", str(tmp_path / "c.wav")).returncode == 2
    assert (
        cosyd("say", "x", "--voice", voice, "--dialect", "x", "-o", str(tmp_path / "c.wav")).returncode == 2
    )
    assert cosyd("voices", "rename", voice, "Ben").returncode == 0
    assert cosyd("voices", "rename", "heart", "Ben").returncode == 2
