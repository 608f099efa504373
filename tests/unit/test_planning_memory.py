"""The memory plan: what is counted, how it grows, what is chosen for each card. No torch."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from daemon.cli import explaining
from daemon.cli.hardware import Card, Seen
from daemon.cli.main import main
from daemon.sample import RamReading
from pipeline.messages import render
from pipeline.planning.free import ram_free
from pipeline.planning.memory import (
    Choice,
    ModelSizes,
    budget,
    flow_bytes,
    leaner,
    llm_bytes,
    make_plan,
    needs,
    wished,
)
from pipeline.planning.processor import fast_bf16, int8_units
from pipeline.profile import PROFILES, Config
from pipeline.profile.load import Layer, resolve

GIB = 1024**3
FULL = ModelSizes()
CARDS = {"gpu-4g": 4 * GIB, "gpu-6g": 6 * GIB, "gpu-12g": 12 * GIB}


def profile(name: str) -> Config:
    return resolve([Layer("flags", {"profile": name})]).config


# Sizes of the converted files of a full-size checkpoint, headers included.
@pytest.mark.parametrize(
    ("counted", "file_bytes"),
    [
        (llm_bytes(FULL, "int8"), 377_498_724),
        (llm_bytes(FULL, "fp32"), 1_480_070_976),
        (flow_bytes(FULL, "bf16"), 389_153_344 + 15_000 * 80 * 4),
        (flow_bytes(FULL, "fp32"), 766_697_920 + 15_000 * 80 * 4),
        (4 * FULL.vocoder_parameters + 8 * FULL.f0_parameters, 96_337_144),
    ],
)
def test_weights_are_those_of_the_files(counted: int, file_bytes: int) -> None:
    assert counted == pytest.approx(file_bytes, rel=0.003)


def test_every_profile_fits_its_card_as_asked_and_meets_its_target() -> None:
    for name, size in CARDS.items():
        config = profile(name)
        plan = make_plan(FULL, wished(config, "cuda", False), budget(config, "cuda", size, size))
        assert plan.fits and not plan.reduced, name
        limit = {"gpu-4g": 1.5, "gpu-6g": 2.1, "gpu-12g": 3.5}[name]
        assert plan.needs.peak_without_context <= limit * GIB
    cpu = profile("cpu")
    plan = make_plan(FULL, wished(cpu, "cpu", True), budget(cpu, "cpu", 3 * GIB, 4 * GIB))
    assert plan.fits and not plan.reduced


def test_the_dtypes_of_a_profile() -> None:
    choice = {n: wished(profile(n), "cpu" if n == "cpu" else "cuda", True) for n in PROFILES}
    assert {n: (c.llm, c.flow) for n, c in choice.items()} == {
        "cpu": ("int8", "bf16"), "gpu-4g": ("int8", "bf16"), "gpu-6g": ("bf16", "bf16"),
        "gpu-12g": ("bf16", "bf16"),
    }  # fmt: skip
    assert choice["cpu"].vocoder_bf16 and not choice["gpu-6g"].vocoder_bf16
    slow = wished(profile("cpu"), "cpu", False)
    assert (slow.llm, slow.flow, slow.vocoder_bf16) == ("int8", "fp32", False)
    exact = wished(dataclasses.replace(Config(), weights="fp32"), "cuda", True)
    assert (exact.llm, exact.flow) == ("fp32", "fp32")
    cpu16 = wished(dataclasses.replace(Config(), weights="bf16"), "cpu", False)
    assert cpu16.llm == "int8", "a processor without bf16 units is given the smaller weights"


def test_less_is_chosen_in_order_batch_weights_length() -> None:
    wish = Choice("cuda", "bf16", "bf16", 8, 40.0, 30.0)
    chosen = [(c.llm, c.batch, c.longest_s) for c in leaner(wish)]
    assert chosen == [
        ("bf16", 8, 40.0), ("bf16", 4, 40.0), ("bf16", 2, 40.0), ("bf16", 1, 40.0),
        ("int8", 8, 40.0), ("int8", 4, 40.0), ("int8", 2, 40.0), ("int8", 1, 40.0),
        ("int8", 1, 24.0), ("int8", 1, 14.4), ("int8", 1, 8.6),
    ]  # fmt: skip
    for choice in leaner(wish):
        room = needs(FULL, choice).peak
        plan = make_plan(FULL, wish, room)
        first = next(c for c in leaner(wish) if needs(FULL, c).peak <= room)
        assert plan.fits and plan.choice == first and plan.reduced == (first != wish)
    smallest = min(needs(FULL, c).peak for c in leaner(wish))
    nothing = make_plan(FULL, wish, smallest - 1)
    assert not nothing.fits and nothing.choice.longest_s == 8.6


@given(
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from(["int8", "bf16", "fp32"]),
    st.integers(1, 16),
    st.floats(8, 60),
    st.floats(1, 30),
    st.integers(0, 8 * GIB),
)
def test_a_plan_keeps_its_promise(
    device: str, llm: str, batch: int, longest: float, reference: float, room: int
) -> None:
    wish = Choice(device, llm, "bf16", batch, longest, reference)  # type: ignore[arg-type]
    plan = make_plan(FULL, wish, room)
    found = plan.needs
    assert min(found.to_params().values()) >= 0 and found.weights < found.steady < found.peak
    assert plan.fits == (found.peak <= room)
    assert plan.choice.batch <= batch and plan.choice.longest_s <= longest
    more = dataclasses.replace(plan.choice, batch=batch + 1, longest_s=longest + 1)
    assert needs(FULL, more).peak > found.peak
    known = needs(FULL, plan.choice, context=0)
    assert known.peak == found.peak_without_context
    unknown = make_plan(FULL, wish, None)
    assert unknown.fits and not unknown.reduced


def test_what_is_kept_back_is_the_guards_low_threshold() -> None:
    config = Config()
    assert budget(config, "cuda", 4 * GIB, 4 * GIB) == 4 * GIB - round(0.08 * 4 * GIB)
    assert budget(config, "cpu", GIB, 16 * GIB) == 0
    assert budget(config, "cpu", None, None) is None


# -- what is free --


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n"}
V2 = {
    "proc/self/cgroup": "0::/lxc/cosyd\n",
    "sys/fs/cgroup/lxc/cosyd/memory.max": "max\n",
    "sys/fs/cgroup/lxc/cosyd/memory.current": "1\n",
    "sys/fs/cgroup/lxc/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/lxc/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/lxc/memory.stat": f"anon 5\nactive_file {GIB}\ninactive_file {GIB}\n",
}
V1 = {
    "proc/self/cgroup": "3:cpu:/\n9:hugetlb,memory:/box\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB // 2}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        (MEMINFO, (6 * GIB, 8 * GIB)),
        (MEMINFO | V2, (3 * GIB, 4 * GIB)),
        (MEMINFO | V1, (GIB // 2, GIB)),
        (MEMINFO | {"proc/self/cgroup": "0::/\n"}, (6 * GIB, 8 * GIB)),
    ],
)
def test_ram_that_may_be_taken(tmp_path: Path, files: dict[str, str], wanted: tuple[int, int] | None) -> None:
    assert ram_free(tree(tmp_path, files)) == wanted


def test_ram_of_this_machine() -> None:
    found = ram_free()
    assert found is not None and 0 < found[0] <= found[1]


@pytest.mark.parametrize(
    ("text", "bf16", "int8"),
    [
        ("flags\t\t: fpu avx512_bf16 amx_int8\n", True, True),
        ("flags : avx2 amx_bf16\nbugs : amx_int8\n", True, False),
        ("model name : amx_int8\n", False, False),
    ],
)
def test_what_the_processor_multiplies(tmp_path: Path, text: str, bf16: bool, int8: bool) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": text})
    assert (fast_bf16(root), int8_units(root)) == (bf16, int8)
    assert not fast_bf16(tmp_path / "none") and not int8_units(tmp_path / "none")


# -- what people read --

RAM = RamReading(20 * GIB, 24 * GIB)
NO_CARD = Seen()


@pytest.mark.parametrize("name", PROFILES)
def test_explained_for_each_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for language in ("en", "zh"):
        monkeypatch.setenv("COSYD_LANG", language)
        told = explaining.explain(profile(name), NO_CARD, RAM, None, True)
        rows = list(explaining.rows(told))
        assert len(rows) == 9 and all(all(cell for cell in row) for row in rows)
        assert name in explaining.title(told)
        assert explaining.verdict(told) == render("cli.plan_fits", language, {})


def test_a_small_or_full_machine_is_told_what_is_missing() -> None:
    large = profile("gpu-12g")
    card = Seen(cards=(Card("a card", 12 * GIB),))
    assert explaining.explain(large, card, RAM, None, False).plan.budget_bytes == 12 * GIB - round(0.96 * GIB)
    less = explaining.explain(large, card, RAM, 2 * GIB, False)
    assert "bf16 -> int8, 8 x -> 1 x" in explaining.verdict(less)
    nothing = explaining.explain(large, card, RAM, GIB, False)
    missing = nothing.plan.needs.peak - (nothing.plan.budget_bytes or 0)
    assert explaining.verdict(nothing) == render("cli.plan_too_large", "en", {"short": missing})
    blind = explaining.explain(profile("cpu"), NO_CARD, None, None, False)
    assert explaining.verdict(blind) == render("cli.plan_unknown", "en", {})


def test_the_command(tmp_path: Path) -> None:
    command = ["admin", "profile", "explain", "--state", str(tmp_path), "--profile", "gpu-6g", "--vram"]
    told = json.loads(CliRunner().invoke(main, [*command, "6 GiB", "--json"]).stdout)
    assert told["device"] == "cuda" and told["fits"] and told["chosen"] == told["wished"]
    found = told["needs"]
    assert found["steady"] == sum(found[part] for part in ("llm", "flow", "vocoder", "context"))
    text = CliRunner().invoke(main, [*command, "2 GiB"]).stdout
    assert "->" in text
    refused = CliRunner().invoke(main, [*command, "much"])
    assert refused.exit_code == 2


def test_leaner_is_smaller_each_time_until_the_weights_change() -> None:
    wish = Choice("cuda", "int8", "bf16", 8, 40.0, 30.0)
    sizes = [needs(FULL, choice).peak for choice in leaner(wish)]
    assert all(a >= b for a, b in itertools.pairwise(sizes)) and sizes[0] > sizes[-1]
