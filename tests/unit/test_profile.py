"""Configuration: values people write, layers, every error at once, and the shipped profiles."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codes import CosydError
from pipeline.messages import catalogue, problem_text
from pipeline.profile import PROFILES, Config, Layer, from_json, resolve, to_json
from pipeline.profile.config import GIB, MIB
from pipeline.profile.load import environment_layer, file_layer, flatten, known_keys
from pipeline.profile.problems import BadValue, unreadable
from pipeline.profile.values import (
    Threshold,
    parse_duration,
    parse_hours,
    parse_size,
    parse_threshold,
    within_hours,
)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0), (268435456, 268435456), ("256 MiB", 256 * MIB), ("256mib", 256 * MIB), ("10 GB", 10**10),
        (" 1.5 GiB ", 3 * GIB // 2), ("7", 7), ("0", 0), ("1 tib", 1024**4), ("5 B", 5),
    ],
)  # fmt: skip
def test_sizes(value: object, count: int) -> None:
    assert parse_size(value) == count


@pytest.mark.parametrize(
    "value", ["", "x", "-1", -1, "1 PB", "1e3", "1,5 GB", "10 % ", None, True, [], 1.5, "١ GB", "1 GB GB",
    "inf", math.nan]
)  # fmt: skip
def test_what_is_no_size_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(BadValue) as caught:
        parse_size(value)
    assert (caught.value.what, caught.value.params) == ("not_size", {"value": repr(value)})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0), (15, 15), (2.5, 2.5), ("15 min", 900), ("15m", 900), ("2 h", 7200), ("500 ms", 0.5), ("0",
        0),
        ("1.5 d", 129600), ("always", math.inf), ("Always", math.inf), (-1, math.inf), ("-1", math.inf),
        (math.inf, math.inf), ("90", 90),
    ],
)  # fmt: skip
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value", ["", "soon", "-5", -5, -0.5, "1 week", None, True, [], math.nan, "5 min 3 s", "nan"]
)
def test_what_is_no_duration_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(BadValue) as caught:
        parse_duration(value)
    assert (caught.value.what, caught.value.params) == ("not_duration", {"value": repr(value)})


@pytest.mark.parametrize(
    ("value", "threshold"),
    [
        ("max(10 %, 384 MiB)", Threshold(0.10, 384 * MIB)), ("max(4%,160MiB)", Threshold(0.04,
        160 * MIB)),
        ("96 MiB", Threshold(0.0, 96 * MIB)), (1000, Threshold(0.0, 1000)), (Threshold(0.5, 1),
        Threshold(0.5, 1)),
    ],
)  # fmt: skip
def test_thresholds(value: object, threshold: Threshold) -> None:
    assert parse_threshold(value) == threshold


@pytest.mark.parametrize(
    "value", ["max(100 %, 1 MiB)", "max(10 %)", "10 %", "max(-1 %, 5)", "max(10 %, x)",
    "max(1.2.3 %, 1 MiB)", None, True, -1]
)  # fmt: skip
def test_what_is_no_threshold_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        parse_threshold(value)


def test_a_threshold_scales_with_the_machine_but_not_below_its_floor() -> None:
    low = Config().guard.ram.low_enter
    assert low.bytes_of(32 * GIB) == round(3.2 * GIB)
    assert low.bytes_of(1 * GIB) == 384 * MIB


@settings(deadline=None)
@given(percent=st.integers(0, 99), floor=st.integers(0, 2**50))
def test_a_threshold_reads_back_what_it_prints(percent: int, floor: int) -> None:
    threshold = Threshold(percent / 100, floor)
    again = parse_threshold(str(threshold))
    assert again.floor_bytes == floor
    assert again.ratio == pytest.approx(threshold.ratio)


@pytest.mark.parametrize("name", PROFILES)
def test_each_shipped_profile_loads_and_names_itself(name: str) -> None:
    resolved = resolve([Layer("flags", {"profile": name})])
    assert resolved.config.profile == name
    text = resources.files("pipeline.profile").joinpath(f"{name}.toml").read_text("utf-8")
    for key in flatten(tomllib.loads(text)):
        assert resolved.origin[key] == f"profile {name}"


@pytest.mark.parametrize(
    ("name", "segment_s", "reference_s", "together", "queue_s", "keep_alive_s"),
    [("cpu", 25, 10, 2, 300, 900), ("gpu-4g", 25, 10, 1, 300, 900), ("gpu-6g", 35, 15, 2, 600, 900),
    ("gpu-12g", 40, 30, 8, 1800, 1800)],
)  # fmt: skip
def test_the_profiles_say_what_the_design_says(
    name: str, segment_s: float, reference_s: float, together: int, queue_s: float, keep_alive_s: float
) -> None:
    config = resolve([Layer("flags", {"profile": name})]).config
    assert (config.longest_segment_s, config.reference_audio_max_s, config.batch_segments) == (
        segment_s,
        reference_s,
        together,
    )
    assert (config.queue_max_s, config.keep_alive) == (queue_s, keep_alive_s)
    assert (config.swap_below_ram_bytes, config.swap_bytes) == (16 * GIB, 8 * GIB)


def test_the_defaults_are_those_of_the_contract() -> None:
    config = Config()
    guard = config.guard
    assert (guard.cadence_s, guard.cadence_low_s, guard.trim_min_gain, guard.own_share_min) == (
        1.0,
        0.25,
        0.05,
        0.25,
    )
    assert guard.ram.critical_enter == Threshold(0.04, 160 * MIB)
    assert guard.vram.low_enter == Threshold(0.08, 256 * MIB)
    assert guard.vram.critical_enter == Threshold(0.0, 96 * MIB)
    assert (guard.ram.exit_factor, guard.ram.low_hold_s, guard.ram.critical_hold_s) == (1.5, 5, 0)
    assert dataclasses.astuple(guard.settle) == (3, 5, 10, 2)
    assert dataclasses.astuple(config.restart) == (5, 600, 1, 60)
    assert (config.lease_s, config.heartbeat_s) == (15, 1)
    deadlines = config.deadlines
    assert (deadlines.queue_s, deadlines.first_audio_s, deadlines.segment_base_s) == (600, 60, 30)
    assert config.outputs.max_bytes == 10**10
    limits = config.limits
    assert (limits.text_chars, limits.long_text_chars, limits.min_free_bytes) == (16_384, 200_000, 256 * MIB)
    assert (config.patience.wyoming_s, config.patience.openai_s) == (2, 60)
    assert (config.web.port, config.wyoming.port) == (7860, 10200)


def test_a_later_layer_wins_and_the_origin_says_which() -> None:
    layers = [
        file_layer("/etc/cosyd/cosyd.toml", "keep_alive = '5 min'\n[web]\nport = 8000\n"),
        Layer("settings", {"keep_alive": "10 min"}, runtime_only=True),
        environment_layer(
            {"COSYD_WEB__PORT": "9000", "PATH": "/bin", "COSYD_LANG": "zh", "COSYD_STATE_DIR": "/x"}
        ),
        Layer("flags", {"web.host": "127.0.0.2"}),
    ]
    resolved = resolve(layers)
    assert (resolved.config.keep_alive, resolved.config.web.port) == (600.0, 9000)
    assert resolved.origin["keep_alive"] == "settings"
    assert resolved.origin["web.port"] == "environment"
    assert resolved.origin["web.host"] == "flags"
    assert resolved.origin["weights"] == "profile cpu"
    assert resolved.origin["lease_s"] == "default"
    assert set(resolved.origin) == set(known_keys())


def problems(*layers: Layer) -> list[str]:
    with pytest.raises(CosydError) as caught:
        resolve(layers)
    assert caught.value.code == "config_error"
    assert json.loads(json.dumps(caught.value.params)) == caught.value.params  # it travels as JSON
    for language in ("en", "zh"):
        for problem in caught.value.params["problems"]:
            told = problem_text(problem, language)
            assert "config." not in told and "{" not in told.replace(str(problem["params"].get("value")), "")
    return [problem_text(problem, "en") for problem in caught.value.params["problems"]]


def test_all_problems_are_told_at_once_each_with_its_layer_and_path() -> None:
    found = problems(
        file_layer("cosyd.toml", "kep_alive = 1\n[web]\nport = 'x'\n[limits]\ntext_chars = 0\n"),
        Layer("flags", {"gpu": 7, "profile": "gpu-99g"}),
    )
    assert len(found) == 5
    joined = "\n".join(found)
    assert "cosyd.toml: kep_alive: unknown key; did you mean keep_alive?" in joined
    assert "cosyd.toml: web.port: 'x' is not a whole number" in joined
    assert "cosyd.toml: limits.text_chars: 0 is too small; the least is 1" in joined
    assert "flags: gpu: 7 is not a text" in joined
    assert "'gpu-99g' is none of cpu, gpu-4g, gpu-6g, gpu-12g" in joined


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("web.port", 70_000), ("web.port", -1), ("web.port", True), ("web.port", 80.5), ("web.port",
        "80a"),
        ("web.port", None), ("web.port", []), ("web.port", math.nan), ("web.port", math.inf),
        ("weights", "int4"), ("weights", 8), ("timeout_factor", 0), ("timeout_factor", "nan"),
        ("timeout_factor", []),
        ("timeout_factor", math.inf), ("lease_s", 0), ("lease_s", "x"), ("keep_alive", "for ever"),
        ("keep_alive", None),
        ("guard.ram.exit_factor", 0.5), ("guard.ram.low_enter", "max(200 %, 1 MiB)"),
        ("outputs.max_bytes", "-1 GB"),
        ("web.hosts", 7), ("engines.extra", 7), ("engines.extra", {"a": 1}), ("engines.extra", "a"),
        ("web", 7), ("guard.ram", "x"), ("", 1), ("web.", 1), ("web.port.x", 1), ("__class__", 1),
        ("profile", 7),
        ("profile", "../cpu"), ("profile", ""), ("profile", []),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_problem_that_names_the_key(key: str, value: object) -> None:
    found = problems(Layer("flags", {key: value}))
    assert len(found) == 1
    assert key in found[0]


def test_only_runtime_keys_may_come_from_the_settings_table() -> None:
    [found] = problems(Layer("settings", {"web.port": 80}, runtime_only=True))
    assert "web.port" in found
    assert (
        resolve(
            [Layer("settings", {"web.default_voice": "espeak"}, runtime_only=True)]
        ).config.web.default_voice
        == "espeak"
    )


@pytest.mark.parametrize("text", ["keep_alive = ", "[web", "a = 1\na = 2\n", "\x00"])
def test_a_file_that_is_no_toml_is_a_config_error_with_its_name(text: str) -> None:
    with pytest.raises(CosydError) as caught:
        file_layer("/etc/cosyd/cosyd.toml", text)
    assert caught.value.code == "config_error"
    [problem] = caught.value.params["problems"]
    assert problem_text(problem, "en").startswith("/etc/cosyd/cosyd.toml: this is no TOML")
    assert problem_text(problem, "zh").startswith("/etc/cosyd/cosyd.toml：")
    assert "TOML：" in problem_text(problem, "zh")


def test_lists_and_tables_may_be_written_as_text_in_the_environment() -> None:
    config = resolve(
        [
            environment_layer(
                {"COSYD_WEB__HOSTS": "tts.example, box", "COSYD_ENGINES__EXTRA": "probe=tests.engines.p:P"}
            )
        ]
    ).config
    assert config.web.hosts == ("tts.example", "box")
    assert dict(config.engines.extra) == {"probe": "tests.engines.p:P"}


def test_a_misspelt_environment_variable_is_told() -> None:
    [found] = problems(environment_layer({"COSYD_WEB_PORT": "1"}))
    assert "environment: web_port" in found


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lease_s = 1  # type: ignore[misc]


def _value(key: str) -> st.SearchStrategy[object]:
    """Raw values that are right for `key`."""
    field = known_keys()[key]
    meta = field.metadata
    if key == "profile":
        return st.sampled_from(PROFILES)
    if meta.get("mapping"):
        return st.dictionaries(st.text("abc", min_size=1, max_size=3), st.just("a.b:C"), max_size=2)
    if meta.get("choices"):
        return st.sampled_from(meta["choices"])
    low, high = meta.get("low") or 0, meta.get("high")
    if meta.get("parse") is parse_threshold:
        return st.builds(lambda p, f: f"max({p} %, {f} MiB)", st.integers(0, 99), st.integers(0, 10_000))
    if meta.get("parse") is parse_size:
        return st.integers(0, 2**45)
    if meta.get("parse") is parse_duration:
        return st.floats(max(low, 0), 1e6) | st.just("always")
    if meta.get("parse") is parse_hours:
        return st.lists(st.sampled_from(["06:30-23:00", "22:00 - 6:00", "always"]), max_size=3)
    if isinstance(field.default, bool):
        return st.booleans() | st.sampled_from(["true", "no", "0"])
    if isinstance(field.default, int):
        return st.integers(math.ceil(low), int(high) if high is not None else 10**9)
    if isinstance(field.default, float):
        return st.floats(low, high if high is not None else 1e6)
    if isinstance(field.default, tuple):
        return st.lists(st.text("abc.-", min_size=1, max_size=5), max_size=3)
    return st.text("abc:/0中 ", max_size=6)


@st.composite
def _settings(draw: st.DrawFn) -> dict[str, object]:
    keys = draw(st.lists(st.sampled_from(sorted(known_keys())), unique=True, max_size=8))
    return {key: draw(_value(key)) for key in keys}


@settings(deadline=None)
@given(_settings())
def test_a_resolved_configuration_survives_the_way_to_the_children(values: dict[str, Any]) -> None:
    config = resolve([Layer("flags", values)]).config
    again = from_json(to_json(config))
    assert again == config
    json.loads(to_json(config), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(known_keys())) | st.text("ab.", max_size=4),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text("1a%-. G(max",
        max_size=8) | st.lists(st.integers(), max_size=2),
        max_size=5,
    )
)  # fmt: skip
def test_whatever_is_written_is_taken_or_told_as_config_error(values: dict[str, Any]) -> None:
    try:
        config = resolve([Layer("flags", values)]).config
    except CosydError as error:
        assert error.code == "config_error"
        assert error.params["problems"]
    else:
        assert from_json(to_json(config)) == config


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null"])
def test_an_effective_file_that_nobody_wrote_is_a_config_error(text: str) -> None:
    with pytest.raises(CosydError) as caught:
        from_json(text)
    assert caught.value.code == "config_error"


@pytest.mark.parametrize(
    ("hours", "minute", "inside"),
    [
        ("06:30-23:00", 6 * 60 + 29.9, False),
        ("06:30-23:00", 6 * 60 + 30, True),
        ("6:30 - 23:00", 23 * 60, False),
        ("22:00-06:00", 23 * 60, True),
        ("22:00-06:00", 5 * 60, True),
        ("22:00-06:00", 12 * 60, False),
        ("always", 0, True),
        ("07:00-08:00,18:00-19:00", 18.5 * 60, True),
        ("", 60, False),
    ],
)
def test_hours_to_be_kept_warm(hours: str, minute: float, inside: bool) -> None:
    assert within_hours(parse_hours(hours), minute) is inside


@pytest.mark.parametrize("value", ["25:00-26:00", "24:30-25:00", "morning", "06:30", 7, "06:60-07:00"])
def test_what_is_no_time_of_day_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(BadValue) as caught:
        parse_hours(value)
    assert caught.value.what == "not_hours"
    assert "06:30-23:00" in problem_text(caught.value.at("keep_warm"), "zh")


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")]
)
def test_a_file_that_cannot_be_read_is_a_problem_in_words(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    path = tmp_path / "cosyd.toml"
    make(path)
    with pytest.raises((OSError, UnicodeDecodeError)) as caught:
        path.read_text("utf-8")
    found = unreadable(str(path), caught.value)
    for language, colon in (("en", ": "), ("zh", "：")):
        told = problem_text(found, language).removeprefix(f"{path}{colon}")
        assert told and "config." not in told and "Errno" not in told and str(path) not in told


def test_every_problem_that_the_code_names_has_its_text_and_every_text_its_problem() -> None:
    root = Path(__file__).parents[2]
    files = [
        path.read_text("utf-8") for name in ("daemon", "pipeline") for path in (root / name).rglob("*.py")
    ]
    sources = "".join(
        text for text in files if "pipeline.profile.problems" in text or "class BadValue" in text
    )
    named = set(re.findall(r"""BadValue\(\s*"(\w+)\"""", sources))
    named |= set(re.findall(r"""\bproblem\([^,()]*(?:\([^()]*\))?[^,()]*,\s*"(\w+)\"""", sources))
    named |= set(re.findall(r""": "(file_\w+)\"""", sources))
    keys = {key.removeprefix("config.") for key in catalogue("en") if key.startswith("config.")}
    assert named == keys
