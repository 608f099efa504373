"""Without PyTorch and what comes with it cosyd is whole but for cloned voices, and says so in one sentence.

The suite runs where torch is installed, so a `sitecustomize` of ours hides it from every process here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service import ROOT, Service

HIDDEN = """
import importlib.machinery as machinery

HIDDEN = {"torch", "torchgen", "functorch", "tokenizers", "safetensors", "modelscope"}
real = machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else real(name, path, target)


machinery.PathFinder.find_spec = find_spec
"""
CLIP = ROOT / "tests" / "data" / "cosyvoice3" / "golden" / "prompt_24k.wav"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDDEN)
    return str(folder)


@pytest.fixture(scope="module")
def service(hidden: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    env = {"PYTHONPATH": hidden, "COSYD_MODEL_DIR": str(ROOT / "tests/data/cosyvoice3/model")}
    with Service(tmp_path_factory.mktemp("bare") / "state", env=env) as running:
        yield running


def test_torch_is_really_hidden(hidden: str) -> None:
    asked = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('safetensors'))"
    env = os.environ | {"PYTHONPATH": hidden}
    done = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None"]


def test_built_in_voices_speak(service: Service) -> None:
    answer = service.speech("Good morning.", voice="heart")
    assert answer.status_code == 200 and len(answer.content) > 24_000, answer.text[:300]


def test_adding_a_voice_says_what_is_missing(service: Service) -> None:
    answer = service.http.post(
        "/api/voices",
        data={"name": "Anna", "consent": "own", "transcript": "The words of the clip."},
        files={"audio": ("a.wav", CLIP.read_bytes())},
        headers={"Origin": service.url},
    )
    assert answer.status_code == 503, answer.text
    said = answer.json()["error"]
    assert said["code"] == "model_missing" and "PyTorch is not installed" in said["message"], said
    assert service.speech("Good morning.", voice="heart").status_code == 200


def test_the_command_line_says_it_too(hidden: str, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("COSYD_")}
    env |= {"PYTHONPATH": os.pathsep.join((hidden, str(ROOT))), "LANG": "C.UTF-8"}
    checked = [sys.executable, "-m", "daemon.cli.main", "model", "check", "--state", str(tmp_path / "state")]
    done = subprocess.run(checked, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "PyTorch is not installed" in done.stderr
