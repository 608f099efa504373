"""The first start hashes and converts gigabytes: it shows that it is at work, and leaves no halves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.cosyvoice3 import cache
from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine
from pipeline.profile import Config


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the official files that were read through for their hash."""
    names: list[str] = []
    real = cache.hash_file

    def counting(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(cache, "hash_file", counting)
    monkeypatch.setattr(cache, "_hashes", {})
    return names


def load(folder: Path) -> int:
    """Load the kit with its cache in `folder`; how often it showed progress."""
    engine, told = CosyVoice3Engine(KIT / "model", folder), []
    engine.on_progress = lambda: told.append(1)
    engine.load(Config(), threading.Event())
    engine.close()
    return len(told)


def test_converting_shows_progress_and_reads_each_official_file_once(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_BLOCK", 100_000)
    weights = [(KIT / "model" / name).stat().st_size for name in ("llm.pt", "flow.pt", "hift.pt")]
    assert load(tmp_path) >= sum(weights) // 100_000
    assert len(hashed) == len(set(hashed)) == 5
    hashed.clear()
    assert 12 < load(tmp_path) < 100  # the second start maps what is there: tokens and steps of its test
    assert hashed == []


def test_nobody_is_told_outside(tmp_path: Path) -> None:
    told: list[int] = []
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with cache.progress_to(lambda: told.append(1)):
        cache.hash_file(path)
    assert cache.hash_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert told == [1]


def test_what_a_killed_conversion_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = tmp_path / f"llm-int8-1-abc.safetensors.{int(gone.stdout)}.part"
    mine = tmp_path / f"flow-bf16-1-abc.safetensors.{os.getppid()}.part"
    for path in (left, mine):
        path.touch()
    load(tmp_path)
    assert not left.exists() and mine.exists()
