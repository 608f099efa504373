"""The environment of each kind of child, and that a real child gets it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from daemon.spawn import Surroundings, own_cores, spawn
from pipeline.planning.environment import (
    ALLOCATOR,
    HEAP,
    SHORT,
    WEB,
    Role,
    child_environment,
    visible_cards,
    worker,
)
from pipeline.profile import Config

CPU = Config(gpu="none")
CARD = Config(profile="gpu-4g", gpu="auto", weights="mixed")
COSYVOICE = worker("cosyvoice3")


@pytest.mark.parametrize("role", [WEB, SHORT, worker("builtin"), worker("numbers")])
@pytest.mark.parametrize("config", [CPU, CARD])
def test_children_of_short_requests_have_one_heap_with_fixed_thresholds(role: Role, config: Config) -> None:
    made = child_environment(role, config, 8, {})
    assert made.items() >= HEAP.items()
    assert not [name for name in made if name.startswith(("OMP", "MKL", "PYTORCH"))]


def test_the_engine_of_tensors_keeps_its_own_thresholds_and_takes_the_cores() -> None:
    made = child_environment(COSYVOICE, CPU, 8, {})
    assert made["MALLOC_ARENA_MAX"] == "1" and "MALLOC_MMAP_THRESHOLD_" not in made
    assert made["OMP_NUM_THREADS"] == made["MKL_NUM_THREADS"] == "8"
    assert made["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "128"
    assert made["GOMP_SPINCOUNT"] == "10000"
    assert "PYTORCH_ALLOC_CONF" not in made and made["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("config", "cores", "threads"), [(CPU, 64, "16"), (CPU, 0, "1"), (CARD, 64, "4")])
def test_threads_are_bounded(config: Config, cores: int, threads: str) -> None:
    assert child_environment(COSYVOICE, config, cores, {})["OMP_NUM_THREADS"] == threads


def test_with_a_card_segments_of_its_memory_grow() -> None:
    made = child_environment(COSYVOICE, CARD, 8, {})
    assert made["PYTORCH_ALLOC_CONF"] == made["PYTORCH_CUDA_ALLOC_CONF"] == ALLOCATOR
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and "CUDA_VISIBLE_DEVICES" not in made


def test_what_the_person_set_wins_under_either_name() -> None:
    own = {"OMP_NUM_THREADS": "3", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "HOME": "/h"}
    made = child_environment(COSYVOICE, CARD, 8, own)
    assert made["OMP_NUM_THREADS"] == made["MKL_NUM_THREADS"] == "3"
    assert made["PYTORCH_ALLOC_CONF"] == made["PYTORCH_CUDA_ALLOC_CONF"] == "backend:cudaMallocAsync"
    assert made["HOME"] == "/h"
    assert child_environment(WEB, CPU, 8, {"MALLOC_ARENA_MAX": "4"})["MALLOC_ARENA_MAX"] == "4"


def test_the_card_of_the_profile_wins_over_the_environment() -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_cards("auto") == order
    assert visible_cards("none") == order | {"CUDA_VISIBLE_DEVICES": ""}
    chosen = dataclasses.replace(CARD, gpu="GPU-1234")
    assert (
        child_environment(WEB, chosen, 1, {"CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == "GPU-1234"
    )


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-127\n")
    assert own_cores(tmp_path) == 1
    assert own_cores(tmp_path / "nothing") == len(os.sched_getaffinity(0))


def test_a_real_child_gets_the_environment_of_its_role(tmp_path: Path) -> None:
    (tmp_path / "show_environment.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "NOTIFY_SOCKET": "/run/x"}
    around = Surroundings("id", tmp_path, tmp_path / "c.json", CARD, own)
    process = spawn(("show_environment",), around, role=COSYVOICE, link=False, stdout=subprocess.PIPE)
    assert process.popen.stdout is not None
    with process.popen.stdout as pipe:
        seen = json.loads(pipe.read())
    assert process.reap() == "exit 0"
    assert seen["PYTORCH_ALLOC_CONF"] == ALLOCATOR and seen["COSYD_INSTANCE"] == "id"
    assert seen["OMP_NUM_THREADS"] == str(min(own_cores(), 4))
    assert "NOTIFY_SOCKET" not in seen
