"""What a newcomer reads who types something slightly wrong; and results that can be read at a glance."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from daemon.cli import run
from daemon.cli.checkup import check_swap
from daemon.cli.player import PlayerSink
from daemon.instance import take_lock
from pipeline import queue
from pipeline.codes import CosydError
from pipeline.messages import error_text
from pipeline.paths import StatePaths
from tests.unit.storekit import NOW, new_state, opened, submit
from tests.unit.test_cli import cosyd


@pytest.mark.parametrize(
    ("args", "en", "zh"),
    [
        (["sya", "hi"], "no command sya. Did you mean say?", "没有 sya 这个命令。是不是想写 say？"),
        (["say", "hi", "--sped", "2"], "no option --sped. Did you mean --speed?", "没有 --sped 这个选项"),
        (["say"], "TEXT is missing.", "缺少 TEXT。"),
        (["restart"], "Use one of: engine, web, all.", "可以用：engine，web，all。"),
        (["restart", "moon"], "cannot be “moon”", "不能是“moon”"),
        (["history", "--limit", "0"], "--limit cannot be “0”. A whole number from 1", "请填 1 到 1000"),
        (["say", "hi", "--speed", "fast"], "--speed cannot be “fast”. A number", "请填数字"),
        (["history", "two", "words"], "Too many words: words. Put", "多出了这些词：words。"),
        (["voices", "add", "a.wav", "--consent", "own"], "--name is missing.", "缺少 --name。"),
    ],
)
def test_a_slip_is_told_with_what_would_be_right(args: list[str], en: str, zh: str) -> None:
    for language, said in (("en", en), ("zh", zh)):
        result = cosyd(*args, lang=language)
        assert result.exit_code == 2
        assert said in result.stderr
        assert f"`cosyd{' ' + args[0] if args[0] != 'sya' else ''}" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("path", [(), ("say",), ("key",), ("voices",)])
def test_the_frame_of_the_help_is_chinese_too(path: tuple[str, ...]) -> None:
    shown = cosyd(*path, "--help", lang="zh").stdout
    for word in ("Usage", "Options", "OPTIONS", "Commands", "Show ", "exit"):
        assert word not in shown
    assert shown.startswith("用法：")


def test_the_history_keeps_ids_and_times_whole_on_a_narrow_terminal(state: StatePaths) -> None:
    conn = opened(state)
    job = submit(conn, "A sentence that is a little longer than the column for it, surely.")
    queue.end_job(conn, job, queue.Outcome("cancelled"), NOW)
    conn.close()
    shown = cosyd("history", paths=state, COLUMNS="80").stdout
    assert job in shown
    assert len(shown.splitlines()) <= 5


def test_a_running_cosyd_is_named_and_not_called_a_mistake_of_configuration(tmp_path: Path) -> None:
    held = take_lock(tmp_path / "instance.lock")
    try:
        with pytest.raises(CosydError) as refused:
            take_lock(tmp_path / "instance.lock")
    finally:
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)
    for language, said in (("en", "runs already"), ("zh", "已经在用")):
        text = error_text(refused.value.code, language, refused.value.params)  # type: ignore[arg-type]
        assert said in text
        assert str(tmp_path) in text and str(os.getpid()) in text and "?" not in text


def test_run_beside_a_running_one_ends_before_anything_starts(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "status", lambda paths: {"pid": 4711})
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started"))
    result = cosyd("run", paths=state)
    assert result.exit_code == 78
    assert "4711" in result.stderr and "--port" in result.stderr


def test_a_login_link_that_nobody_needs_says_so(state: StatePaths) -> None:
    assert "cosyd run --lan" in cosyd("login-link", paths=state).stderr
    state.effective_config.write_text('{"web": {"host": "192.0.2.1"}}')
    result = cosyd("login-link", paths=state)
    assert "192.0.2.1" in result.stdout
    assert "--lan" not in result.stderr


def test_no_swap_is_not_called_nothing_of_nothing() -> None:
    assert check_swap(0, 0, 1 << 35, 1 << 33, 1 << 34).text == "swap_none"
    assert check_swap(0, 0, 1 << 33, 1 << 33, 1 << 34).text == "swap_none"
    assert check_swap(1 << 33, 0, 1 << 33, 1 << 33, 1 << 34).text == "used_of"


@pytest.mark.parametrize(
    ("script", "heard"),
    [
        ("cat >/dev/null; echo 'audio open failed' >&2", False),
        ("cat >/dev/null; echo 'underrun' >&2", True),
        ("cat >/dev/null; exit 1", False),
    ],
)
def test_a_player_without_a_loudspeaker_is_a_failure_and_is_not_heard_on_the_terminal(
    script: str, heard: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    sink = PlayerSink(("sh", "-c", script))
    sink.write(bytes(100))
    assert sink.finish() is heard
    sink.close()
    assert capfd.readouterr().err == ""


@pytest.fixture
def state(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")
