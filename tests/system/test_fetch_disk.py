"""A real disk that fills up while the model comes (a small tmpfs, as root)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.codes import CosydError
from pipeline.fetching.model import fetch_model
from pipeline.fetching.sources import Source
from pipeline.model_files import NEEDED, missing_files
from tests.conftest import NOT_ASKED
from tests.fakes.hub import serving

pytestmark = pytest.mark.root


def test_a_disk_that_fills_up_on_the_way_is_told_and_what_came_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip(NOT_ASKED + "this container may not mount")
    try:
        monkeypatch.setattr("pipeline.fetching.model.check_room", lambda folder, needed: None)
        with serving({name: name.encode() * 30_000 for name in NEEDED}) as hub:
            sources = [Source("huggingface", "huggingface", hub.api_url, "main")]
            with pytest.raises(CosydError) as caught:
                fetch_model(small / "m", sources, lambda event: None, now=0.0, prepared=0)
            assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "no_room")
            assert caught.value.params["free"] < caught.value.params["needed"]
            assert any((small / "m").rglob("*.part"))
            subprocess.run(["mount", "-o", "remount,size=32m", str(small)], check=True)
            fetch_model(small / "m", sources, lambda event: None, now=0.0, prepared=0)
            assert missing_files(small / "m") == ()
            assert any(s.range for s in hub.seen)
    finally:
        subprocess.run(["umount", str(small)], check=True)
