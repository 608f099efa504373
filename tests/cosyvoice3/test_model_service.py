"""From `cosyd model fetch` to sound: the starter voice by OpenAI's names, voices of spk2info.pt, a kill while
a voice is learned. Real processes, the tiny checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH
from tests.integration.service import ROOT, Service, wait_for

torch = pytest.importorskip("torch", reason=NO_TORCH)
load_file = pytest.importorskip("safetensors.numpy", reason=NO_TORCH).load_file

START = {"deadlines.start_s": "120", "timeout_factor": "4", "take_check": "signal"}


def saved_entry() -> dict[str, Any]:
    """A voice as upstream saves it, without the words of its prompt."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 6561, (1, 30), generator=draw, dtype=torch.int32)
    return {
        "flow_prompt_speech_token": tokens,
        "prompt_speech_feat": torch.randn(1, 60, 80, generator=draw),
        "flow_embedding": torch.randn(1, 192, generator=draw),
    }


def cosyd(state: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"COSYD_STATE_DIR": str(state), "PYTHONPATH": str(ROOT), "COSYD_LANG": "en"}
    return subprocess.run(
        [sys.executable, "-m", "daemon.cli.main", *args], env=env, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("fetched")
    origin, state = folder / "origin", folder / "state"
    shutil.copytree(KIT / "model", origin)
    torch.save({"old friend": saved_entry()}, origin / "spk2info.pt")
    fetched = cosyd(state, "model", "fetch", "--from", str(origin))
    assert fetched.returncode == 0, fetched.stderr
    shutil.rmtree(origin)  # what is here now is enough
    with Service(state, START, env={"OMP_NUM_THREADS": "1"}) as running:
        yield running


def starter_of(service: Service) -> str:
    return str(service.rows("SELECT id FROM voices WHERE source = 'starter'")[0]["id"])


def spoken(service: Service, seed: int) -> tuple[str, str, str]:
    """(voice, engine, mode) of the recording with this seed."""
    sql = "SELECT voice, engine, mode FROM generations WHERE seed = ?"
    wait_for(lambda: service.rows(sql, seed), 60, "the recording's row")
    (row,) = service.rows(sql, seed)
    return row["voice"], row["engine"], row["mode"]


def test_a_worker_killed_while_it_learns_a_voice_leaves_no_half_one(service: Service) -> None:
    voice = starter_of(service)
    job = service.submit("Good evening.", voice=voice)
    state = "SELECT state FROM jobs WHERE id = ?"
    wait_for(lambda: service.rows(state, job)[0]["state"] == "running", 120, "the voice being learned")
    service.child("cosyvoice3").kill()
    assert service.wait_job(job, 240)["state"] == "done"
    folder = service.state / "voices" / voice
    assert {path.name for path in folder.iterdir()} == {"reference.flac", "features-cosyvoice3.safetensors"}
    arrays = load_file(folder / "features-cosyvoice3.safetensors")
    assert np.isfinite(arrays["prompt_mel"]).all() and len(arrays["prompt_mel"]) == 2 * len(
        arrays["speech_tokens"]
    )


def test_openais_names_speak_with_the_starter_voice_and_unknown_ones_are_refused(service: Service) -> None:
    answer = service.speech("Hello there.", voice="alloy", seed=11)
    assert answer.status_code == 200 and len(answer.content) > 4800, answer.text[:300]
    assert spoken(service, 11) == (starter_of(service), "cosyvoice3", "zero_shot")
    answer = service.speech("Hello there.", voice="nobody")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unknown_voice"


def test_a_voice_of_spk2info_is_listed_once_the_model_was_loaded_and_speaks(service: Service) -> None:
    voices = {v["name"]: v["id"] for v in service.http.get("/v1/audio/voices").json()["voices"]}
    saved = voices["old friend"]
    assert service.speech("Hello there.", voice=saved, seed=12).status_code == 200
    assert spoken(service, 12) == (saved, "cosyvoice3", "cross_lingual")
    assert saved in cosyd(service.state, "voices").stdout
    refused = cosyd(service.state, "voices", "remove", saved)
    assert refused.returncode == 2 and "ready-made" in refused.stderr
