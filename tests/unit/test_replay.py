"""Traces: what goes in comes out, a run is told with its reasons, and what is no trace is refused by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon import trace
from daemon.replay import replay
from daemon.sample import OwnProcess, RamReading, Sample, VramReading
from pipeline.codes import CosydError
from pipeline.profile import Config
from pipeline.profile.config import Deadlines
from tests.unit.test_cli import cosyd

MIB, GIB = 1024**2, 1024**3
TOTAL = 4 * GIB
CONFIG = Config()

sizes = st.integers(0, 2**40)
maybe = st.none() | sizes
processes = st.builds(
    OwnProcess, st.sampled_from(["web", "worker:builtin"]), st.integers(1, 9999), maybe, maybe, st.booleans(),
    st.booleans(), maybe, st.floats(0, 10**6), st.booleans(),
)  # fmt: skip
samples = st.builds(
    Sample,
    st.none() | st.builds(RamReading, sizes, sizes, maybe, maybe, st.none() | st.floats(0, 1)),
    st.none()
    | st.builds(
        VramReading, sizes, sizes, utilisation_ratio=st.none() | st.floats(0, 1),
        temperature_c=st.none() | st.floats(0, 100), power_w=st.none() | st.floats(0, 500),
        throttle_reasons=maybe,
    ),
    st.lists(processes, max_size=3).map(tuple),
    st.none() | st.integers(0, 100),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(samples, st.floats(0, 10**9))
def test_a_look_survives_the_way_through_a_file(sample: Sample, at: float) -> None:
    assert trace.decode(trace.encode(sample, at)) == (at, sample)


def story() -> list[str]:
    """A quiet minute, then a worker that fills the machine, then its end."""
    worker = OwnProcess("worker:cosyvoice3", 30, 3000 * MIB, idle=False)
    web = OwnProcess("web", 10, 160 * MIB, base_rss_bytes=150 * MIB)
    looks: list[Sample] = [Sample(RamReading(2 * GIB, TOTAL), None, (web, worker), 1)] * 60
    looks += [Sample(RamReading(380 * MIB, TOTAL), None, (web, worker), 1)] * 20
    looks += [Sample(None, None, (web, worker), 1)] * 5
    looks += [Sample(RamReading(100 * MIB, TOTAL), None, (web, worker), 1)] * 3
    looks += [Sample(RamReading(3 * GIB, TOTAL), None, (web,), 0)] * 30
    return [trace.header(CONFIG), *(trace.encode(look, 500.0 + i) for i, look in enumerate(looks))]


def test_each_decision_is_told_with_its_numbers() -> None:
    config, looks = trace.read_trace(story())
    lines = list(replay(config, looks))
    keys = [line.key for line in lines]
    assert keys[:3] == ["level", "act_trim", "judged_failed"]
    assert "unknown" in keys and "act_drain" in keys and "act_kill" in keys and keys[-1] == "sum"
    low = lines[0]
    assert (low.at, low.params["new"], low.params["free"]) == (65.0, "low", 380 * MIB)
    assert low.params["low"] == CONFIG.guard.ram.low_enter.bytes_of(TOTAL)
    assert lines[-1].params == {"looks": 118, "seconds": 117.0, "acts": keys_of_acts(keys)}


def keys_of_acts(keys: list[str]) -> int:
    return sum(key.startswith(("act_", "renew_", "soothe")) for key in keys)


def test_the_rules_in_the_trace_are_used_not_those_of_this_machine() -> None:
    lines = story()
    header = json.loads(lines[0])
    header["rules"]["guard"]["ram"]["low_enter"] = "max(1 %, 10 MiB)"
    config, looks = trace.read_trace([json.dumps(header), *lines[1:81]])
    assert [line.key for line in replay(config, looks)] == ["sum"]
    assert config.deadlines == Deadlines()


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([], 1),
        (["hello"], 1),
        (['{"trace": 2, "rules": {}}'], 1),
        (['{"trace": 1, "rules": {"guard": {"nonsense": 1}}}'], 1),
        ([trace.header(CONFIG), "{}"], 2),
        ([trace.header(CONFIG), trace.encode(Sample(), 1.0), '{"t": "x"}'], 3),
        ([trace.header(CONFIG), '{"t":1,"ram":["x",1,1,1,null],"vram":null,"own":[],"work":0}'], 2),
    ],
)
def test_what_is_no_trace_is_refused_by_its_line(lines: list[str], number: int) -> None:
    with pytest.raises(CosydError) as caught:
        config, looks = trace.read_trace(lines)
        list(replay(config, looks))
    assert (caught.value.code, caught.value.params["line"]) == ("bad_value", number)


def test_the_command_prints_sentences_in_both_languages(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(story()))
    en = cosyd("admin", "policy", "replay", str(file)).stdout.splitlines()
    assert en[0].split(" s  ")[1].startswith("RAM went from OK to getting tight: 380 MB free of 4 GB")
    assert any(
        "End the voice engine cosyvoice3 by force: RAM is very tight, 100 MB free" in line for line in en
    )
    zh = cosyd("admin", "policy", "replay", str(file), lang="zh").stdout
    assert "强制结束语音引擎 cosyvoice3：内存告急，剩余 100 MB" in zh
    assert "?" not in zh + "".join(en)
    told = json.loads(cosyd("admin", "policy", "replay", "--json", str(file)).stdout)
    assert told[-1]["key"] == "sum"


def test_the_command_names_the_line_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(trace.header(CONFIG) + "\nnonsense\n")
    result = cosyd("admin", "policy", "replay", str(file))
    assert result.exit_code == 2 and "Line 2" in result.stderr


def test_without_a_running_cosyd_there_is_no_trace(tmp_path: Path) -> None:
    result = cosyd("admin", "policy", "trace", "--state", str(tmp_path))
    assert result.exit_code == 75 and "does not run" in result.stderr
