"""The GPU bench is ready: its dry run goes through every stage with nothing installed beyond what it
names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.gpu import TARGETS, judge, reach
from tests.cosyvoice3.conftest import NO_TORCH

pytest.importorskip("torch", reason=NO_TORCH)

ROOT = Path(__file__).parents[2]

# What a GPU machine has is torch, onnxruntime, safetensors, tokenizers and what those bring.
REFUSE = """
import sys
class Refuse:
    names = {"yaml", "soxr", "soundfile", "wetext", "psutil", "click", "rich", "gradio", "pypinyin",
    "wyoming",
             "lameenc", "hibari", "sqlite_utils", "apscheduler", "pynvml", "torchaudio", "pytest"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ImportError(f"{name} is not on a bare GPU machine")
sys.meta_path.insert(0, Refuse())
"""


def dry_run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(REFUSE)
    env = {k: v for k, v in os.environ.items() if not k.startswith("COSYD_")}
    env |= {"PYTHON": sys.executable, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", str(ROOT / "tests/bench/gpu.sh"), "--dry-run", *more],
        env=env, cwd=folder, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def test_the_dry_run_measures_everything_but_the_device(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = dry_run(tmp_path, "--json", str(out))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["dry_run"] and [t["met"] for t in found["targets"]] == [None] * len(TARGETS)
    small, large = found["gpu-4g"], found["gpu-12g"]
    assert small["options"]["llm"] == "int8" and large["options"]["llm"] == "bf16"
    assert small["generations"]["done"] == 4 and not small["generations"]["failed"]
    assert small["memory"]["free_at_start_bytes"] == 4 << 30 and small["memory"]["neighbour_bytes"] > 0
    assert large["llm"]["many"]["rows"] == 8 and large["whole"]["many"]["together"] == 8
    assert large["llm"]["one"]["step_ms"] > 0 and large["llm"]["one_plain"]["step_ms"] > 0
    assert large["first_audio"]["tenth_ms"] > 0 and not small["graph_trouble"]
    for dtype, most in (("fp32", 1e-3), ("bf16", 0.25), ("int8", 0.5)):
        assert found["parity"][dtype]["logprob_max"] < most
        assert found["parity"][dtype]["graph_trouble"] == ""
    # what only a device can say is the only thing that is missing
    unmeasured = {t["name"] for t in found["targets"] if t["measured"] is None}
    assert unmeasured == {name for name, path, _ in TARGETS if ".memory." in path}


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("not asked for: there is a card")
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "--dry-run" in done.stderr


def test_targets_are_judged_by_what_was_measured() -> None:
    results = {
        "gpu-4g": {"memory": {"peak_without_context_bytes": 10**9}, "generations": {"failed": 1}},
        "gpu-6g": {"llm": {"one": {"step_ms": 2.0}}},
        "gpu-12g": {"error": "exit 1"},
    }
    met = {t["name"]: t["met"] for t in judge(results)}
    assert met["4 GB: peak without context, bytes"] is True
    assert met["4 GB: generations that failed"] is False
    assert met["6 GB: LLM step, ms"] is True and met["12 GB: RTF, 8 segments together"] is None
    assert reach(results, "gpu-4g.memory.nothing.deeper") is None
