"""The message catalogues: the same in both languages, complete, and written as WORDS.md asks."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import messages
from pipeline.codes import CODES
from pipeline.profile.problems import problem

ROOT = Path(__file__).resolve().parents[2]
EVENT_KINDS = """started ready stopped worker_started worker_ready worker_exited worker_killed web_recycled
level_changed trim_done trim_failed unloaded drain_started drained oom_caught degraded restored
admission_refused foreign_pressure backoff_started failed recovered swap_grown swap_shrunk swap_refused
gpu_state_changed creep_predicted job_requeued clock_jumped maintenance_done config_reloaded""".split()

ZH = messages.catalogue("zh")
EN = messages.catalogue("en")
HAN = r"[\u4e00-\u9fff]"


def placeholders(template: str) -> list[tuple[str, str]]:
    return sorted(
        (name, spec or "") for _, name, spec, _ in string.Formatter().parse(template) if name is not None
    )


def test_both_catalogues_have_the_same_keys() -> None:
    assert sorted(ZH) == sorted(EN)


def test_each_text_has_the_same_placeholders_in_both_languages() -> None:
    assert {k: placeholders(ZH[k]) for k in ZH} == {k: placeholders(EN[k]) for k in ZH if k in EN}


def test_placeholders_are_plain_names_with_a_known_form() -> None:
    for key, text in EN.items():
        for name, spec in placeholders(text):
            assert name.isidentifier(), key
            assert spec in ("", "size", "time", "percent") or re.fullmatch(r"\.?\d*[dfs%]?", spec), key


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_says_what_happened_and_what_to_do(code: str) -> None:
    for catalogue in (ZH, EN):
        text = catalogue[f"error.{code}"]
        assert len(re.findall(r"[.。:：!]", text)) >= 2, text


def test_every_reason_given_in_the_code_has_its_own_text() -> None:
    reasons: set[tuple[str, str]] = set()
    for path in [*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("ui/**/*.py"), *ROOT.glob("daemon/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            arguments = [a.value for a in node.args if isinstance(a, ast.Constant)]
            keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            if node.func.id == "CosydError" and arguments[:1] == ["bad_value"] and "reason" in keywords:
                reasons.add(("bad_value", str(keywords["reason"])))
            elif node.func.id == "_bad" and path.name == "jobs.py":
                reasons.add(("bad_value", str(arguments[-1])))
    assert len(reasons) >= 7
    missing = sorted(
        f"error.{code}_{reason}" for code, reason in reasons if f"error.{code}_{reason}" not in EN
    )
    assert missing == []


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_every_event_kind_has_a_sentence(kind: str) -> None:
    assert EN[f"event.{kind}"].endswith(".")
    assert ZH[f"event.{kind}"].endswith("。")


def test_every_engine_state_level_and_job_state_has_a_word() -> None:
    for state in "absent starting ready draining stopping backoff waiting_memory failed".split():
        assert f"state.engine.{state}" in EN
    for level in "ok low critical".split():
        assert f"state.level.{level}" in EN
    for state in "queued running done failed cancelled".split():
        assert f"state.job.{state}" in EN


def bare(text: str) -> str:
    """The text without what may be Latin in a Chinese sentence: placeholders and commands."""
    text = re.sub(r"`[^`]*`|\bcosyd(?: [a-z-]+)+(?: [A-Z]+)?", "", text)
    return re.sub(r"\{[^}]*\}", "", text)


def test_zh_has_no_english_sentence() -> None:
    for key, text in ZH.items():
        # Three Latin words in a row are a sentence; a command or a list of formats is not.
        assert not re.search(r"\b[A-Za-z']{2,}(?:\s+[A-Za-z']{2,}){2,}", bare(text)), (key, text)
        # A message that only fills in values ("{a} / {b}") or names a thing needs no Han.
        if re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", bare(text)):
            assert re.search(HAN, text), (key, text)


def test_zh_has_a_blank_between_han_and_latin_letters_or_digits() -> None:
    for key, text in ZH.items():
        assert not re.search(rf"{HAN}[A-Za-z0-9`{{]|[A-Za-z0-9`}}]{HAN}", text), (key, text)


def test_zh_uses_full_width_punctuation() -> None:
    for key, text in ZH.items():
        assert not re.search(rf"{HAN}\s?[,.;:!?()\"]|[,;!?(\"]\s?{HAN}", text), (key, text)


def test_zh_says_ni_and_avoids_the_words_it_should() -> None:
    avoided = "您 修剪 降级 蠕变 准入 外部压力 保活 声纹 回收 排空 守护进程".split()
    for key, text in ZH.items():
        assert not [w for w in avoided if w in text], (key, text)


def test_en_avoids_the_words_people_do_not_know() -> None:
    avoided = r"\b(trim(med)?|drain(ed)?|recycled?|foreign|admission|degraded|enrol|generation|supervisor)\b"
    for key, text in EN.items():
        assert not re.search(avoided, re.sub(r"`[^`]*`", "", text), re.IGNORECASE), (key, text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1024, "1 KB"), (312 * 1024**2, "312 MB"), (4 * 1024**3, "4 GB"),
        (7.8 * 1024**3, "7.8 GB"), (1000 * 1024**2, "1 GB"), (-(2**20), "-1 MB"), (3 * 1024**5,
        "3072 TB"),
    ],
)  # fmt: skip
def test_sizes_read_as_memory_is_sold(count: float, text: str) -> None:
    assert messages.size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "en", "zh"),
    [
        (0.31, "0.3 s", "0.3 秒"), (3, "3 s", "3 秒"), (12.4, "12 s", "12 秒"), (180, "3 min", "3 分钟"),
        (3 * 3600, "3 h", "3 小时"), (3 * 86400, "3 days", "3 天"),
    ],
)  # fmt: skip
def test_durations_are_rounded_for_people(seconds: float, en: str, zh: str) -> None:
    assert messages.time_text(seconds, "en") == en
    assert messages.time_text(seconds, "zh") == zh


def test_a_han_value_takes_no_blank_and_a_latin_one_does() -> None:
    low = messages.event_text("level_changed", "zh", {"resource": "ram", "old": "OK", "new": "LOW"})
    assert low == "内存从正常变为偏低。"
    assert (
        messages.event_text("worker_exited", "zh", {"child": "web", "reason": "idle"})
        == "页面已退出（已空闲）。"
    )
    gone = messages.event_text("worker_exited", "zh", {"child": "worker:builtin", "reason": "9"})
    assert gone == "语音引擎 builtin 已退出（9）。"


def test_an_event_reads_as_a_sentence_with_its_numbers() -> None:
    text = messages.event_text("foreign_pressure", "en", {"name": "ollama", "bytes": 7.8 * 1024**3})
    assert "ollama, 7.8 GB" in text
    assert (
        messages.event_text("trim_done", "zh", {"freed_bytes": 312 * 1024**2}) == "已清理缓存，释放 312 MB。"
    )


def test_all_problems_of_a_configuration_are_listed() -> None:
    found = [
        problem("web.port", "too_large", value="70000", most="65535"),
        problem("kep_alive", "unknown_key_near", near="keep_alive"),
    ]
    text = messages.error_text("config_error", "en", {"problems": found})
    assert text.splitlines()[1:] == [
        "  - web.port: 70000 is too large; the most is 65535",
        "  - kep_alive: unknown key; did you mean keep_alive?",
    ]
    text = messages.error_text("config_error", "zh", {"problems": found})
    assert text.splitlines()[1:] == [
        "  - web.port：70000 太大，最大为 65535",
        "  - kep_alive：没有这个设置项，是不是 keep_alive？",
    ]


def test_an_unknown_reason_falls_back_to_the_text_of_the_code() -> None:
    assert messages.error_text(
        "bad_value", "en", {"field": "x", "reason": "nonsense"}
    ) == messages.error_text("bad_value", "en", {"field": "x"})


_JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text("a中{}: \\ud800", max_size=4),
    st.lists(st.integers(), max_size=2),
)


@settings(deadline=None)
@given(
    key=st.sampled_from(sorted(EN)),
    language=st.sampled_from(["zh", "en"]),
    params=st.dictionaries(
        st.sampled_from(sorted({n for t in EN.values() for n, _ in placeholders(t)})), _JUNK, max_size=6
    ),
)
def test_rendering_never_fails_whatever_the_params(key: str, language: Any, params: dict[str, Any]) -> None:
    assert isinstance(messages.render(key, language, params), str)
    section, _, name = key.partition(".")
    if section == "event":
        assert isinstance(messages.event_text(name, language, params), str)


def test_missing_params_show_as_a_question_mark() -> None:
    assert "? short)" in messages.error_text("waiting_memory", "en")
    vram = {"resource": "vram", "short_bytes": 2**30}
    assert messages.error_text("waiting_memory", "zh", vram).startswith("等待显存（还差 1 GB）。")


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (None, "en"), ("", "en"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-US,en;q=0.9,zh;q=0.5", "en"),
        ("zh-TW", "zh"), ("de-DE,zh;q=0.3", "zh"), ("fr", "en"), ("zh;q=abc,en", "en"), ("zh;q=0", "en"),
    ],
)  # fmt: skip
def test_the_browser_language_decides(header: str | None, language: str) -> None:
    assert messages.negotiate(header) == language


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"), ({"LANG": "zh_CN.UTF-8"}, "zh"), ({"LANG": "C"}, "en"), ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "COSYD_LANG": "en"}, "en"), ({"LANG": "de_DE", "COSYD_LANG": "zh"},
        "zh"),
        ({"LANG": "en_US", "LC_ALL": "zh_CN"}, "zh"), ({"LANG": "zh_CN", "LC_MESSAGES": ""}, "zh"),
    ],
)  # fmt: skip
def test_the_terminal_language_decides(environ: dict[str, str], language: str) -> None:
    assert messages.terminal_language(environ) == language
