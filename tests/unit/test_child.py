"""Children: what `adopt` takes from the environment, the heartbeat, log lines for the journal."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pipeline import child, logs, rpc
from pipeline.codes import CosydError


@pytest.fixture
def link() -> Iterator[tuple[rpc.Link, Iterator[dict[str, object]]]]:
    """A child's Link and the messages that arrive at the supervisor's end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    child_end = rpc.Link(theirs).start()

    def messages() -> Iterator[dict[str, object]]:
        reader = rpc.LineReader()
        while data := ours.recv(65536):
            yield from reader.feed(data)

    yield child_end, messages()
    child_end.close()
    ours.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("http=5", {"http": 5}),
        ("http=5,wyoming=6", {"http": 5, "wyoming": 6}),
        ("http=5,", {"http": 5}),
    ],
)
def test_listening_sockets_are_named(text: str, expected: dict[str, int]) -> None:
    assert child.parse_listen_fds(text) == expected


@pytest.mark.parametrize("text", ["http", "http=", "=5", "http=x", "http=-1", "http=²"])
def test_a_malformed_list_of_sockets_is_a_config_error(text: str) -> None:
    with pytest.raises(CosydError, match="config_error"):
        child.parse_listen_fds(text)


def test_a_child_offers_itself_to_the_oom_killer_before_its_supervisor(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    for before, after in (("-300", "500"), ("0", "500"), ("700", "700"), ("?", "?")):
        score.write_text(before)
        child.offer_to_oom_killer(score)
        assert score.read_text() == after
    child.offer_to_oom_killer(tmp_path / "none")


def test_a_heartbeat_is_sent_at_once_and_again(link: tuple[rpc.Link, Iterator[dict[str, object]]]) -> None:
    child_end, messages = link
    state = child.HeartbeatState(vram_bytes=lambda: 7)
    state.working_on("a" * 16, 3)
    thread = child.start_heartbeat(child_end, state, 0.01)
    for message in (next(messages), next(messages)):
        params = message["params"]
        assert message["method"] == "heartbeat" and isinstance(params, dict)
        assert set(params) == {"rss_bytes", "vram_bytes", "job", "segment", "progress_at"}
        assert params["rss_bytes"] > 1_000_000 and params["vram_bytes"] == 7
        assert (params["job"], params["segment"]) == ("a" * 16, 3)
        assert params["progress_at"] == state.progress_at
    child_end.close()
    thread.join(5)
    assert not thread.is_alive()


def test_an_imported_module_is_progress_and_time_alone_is_not(tmp_path: Path) -> None:
    state = child.HeartbeatState()
    before = state.sample()["progress_at"]
    assert state.sample()["progress_at"] == before
    sys.modules["cosyd_test_module"] = ModuleType("cosyd_test_module")
    try:
        assert state.sample()["progress_at"] > before
    finally:
        del sys.modules["cosyd_test_module"]


def test_peaks_keep_the_largest_known_value() -> None:
    readings = iter([5, None, 9, 2, 4])
    state = child.HeartbeatState(vram_bytes=lambda: next(readings))
    for _ in range(4):
        state.sample()
    assert state.peak_vram_bytes == 9
    state.reset_peaks()
    assert state.peak_vram_bytes == 4


def test_a_signal_calls_back_while_the_main_thread_is_busy() -> None:
    import signal

    called = threading.Event()
    before = signal.getsignal(signal.SIGUSR1)
    end = child.watch_signals({signal.SIGUSR1: called.set})
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert called.wait(5)
    finally:
        end()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_an_answer_may_come_later(link: tuple[rpc.Link, Iterator[dict[str, object]]]) -> None:
    from concurrent.futures import Future

    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    later: Future[int] = Future()
    child_end = rpc.Link(theirs, {"slow": lambda params: later, "quick": lambda params: 1}).start()
    ours.sendall(rpc.request(1, "slow") + rpc.request(2, "quick"))
    reader = rpc.LineReader()
    assert [m["id"] for m in reader.feed(ours.recv(65536))] == [2]
    later.set_result(5)
    assert list(reader.feed(ours.recv(65536))) == [{"jsonrpc": "2.0", "id": 1, "result": 5}]
    child_end.close()
    ours.close()


def test_an_answer_that_comes_later_may_be_an_error() -> None:
    from concurrent.futures import Future

    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    later: Future[int] = Future()
    child_end = rpc.Link(theirs, {"slow": lambda params: later}).start()
    ours.sendall(rpc.request(1, "slow"))
    later.set_exception(CosydError("out_of_memory", resource="vram"))
    (answer,) = rpc.LineReader().feed(ours.recv(65536))
    assert answer["error"]["data"] == {"code": "out_of_memory", "params": {"resource": "vram"}}
    child_end.close()
    ours.close()


@pytest.mark.parametrize(
    ("level", "mark"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (50, 2)],
)
def test_each_line_for_the_journal_has_its_priority(level: int, mark: int) -> None:
    record = logging.LogRecord("x", level, "", 0, "one\ntwo", None, None)
    assert logs.LineFormatter("worker", journal=True).format(record) == f"<{mark}>worker: one\n<{mark}>two"


def test_a_terminal_gets_no_priorities() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "one", None, None)
    assert logs.LineFormatter("web", journal=False).format(record).endswith(" web: one")


def test_a_traceback_names_the_kind_and_never_quotes_what_was_to_be_spoken() -> None:
    try:
        raise ValueError("cannot say 'my secret diary'")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broken", None, sys.exc_info())
    line = logs.LineFormatter("web", journal=False).format(record)
    assert "ValueError" in line and "test_child.py" in line
    assert "my secret diary" not in line.replace("raise ValueError(\"cannot say 'my secret diary'\")", "")


def test_only_the_stream_that_is_the_journal_is_the_journal(tmp_path: object) -> None:
    with open(os.devnull) as stream:
        status = os.fstat(stream.fileno())
        mine = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert logs.is_journal(stream, mine)
        assert not logs.is_journal(stream, {"JOURNAL_STREAM": "8:1"})
        assert not logs.is_journal(stream, {})
    assert not logs.is_journal(io.StringIO(), mine)
