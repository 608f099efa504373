"""JSON-RPC lines: framing, limits, and a Link over a real socketpair."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import rpc
from pipeline.codes import CosydError
from pipeline.rpc import MAX_LINE_BYTES, LineReader, Link, ProtocolError

WAIT_S = 10.0


def read_all(*chunks: bytes) -> list[dict[str, Any]]:
    reader = LineReader()
    return [message for chunk in chunks for message in reader.feed(chunk)]


@settings(deadline=None)
@given(
    messages=st.lists(st.dictionaries(st.text("ab\n中\"", max_size=3), st.text("x\n\r中", max_size=5),
    max_size=3), max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)  # fmt: skip
def test_messages_survive_any_cutting_of_the_stream(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    stream = b"".join(rpc.notification("m", m) for m in messages)
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    got = read_all(*(stream[a:b] for a, b in itertools.pairwise(edges)))
    assert [m["params"] for m in got] == messages
    assert all(m["jsonrpc"] == "2.0" for m in got)


def test_blank_lines_are_skipped() -> None:
    assert read_all(b"\n \n{}\n\n") == [{}]


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[]\n", b"1\n", b'"x"\n', b"null\n", b"{\n", b"\xff\xfe\n", b"[" * 20_000 + b"\n"],
)
def test_what_is_no_json_object_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_all(line)


def test_good_messages_before_a_bad_line_are_delivered() -> None:
    reader = LineReader()
    feed = reader.feed(b'{"a":1}\nbad\n')
    assert next(feed) == {"a": 1}
    with pytest.raises(ProtocolError):
        next(feed)


def test_a_line_without_end_is_refused_at_the_limit_and_not_kept_for_ever() -> None:
    reader = LineReader()
    assert list(reader.feed(b"x" * (MAX_LINE_BYTES - 1))) == []
    with pytest.raises(ProtocolError):
        list(reader.feed(b"x"))


def test_a_message_of_exactly_the_limit_passes_both_ends() -> None:
    overhead = len(rpc.notification("m", {"t": ""}))
    line = rpc.notification("m", {"t": "x" * (MAX_LINE_BYTES - overhead)})
    assert len(line) == MAX_LINE_BYTES
    assert len(read_all(line)) == 1
    with pytest.raises(ProtocolError):
        rpc.notification("m", {"t": "x" * (MAX_LINE_BYTES - overhead + 1)})


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(ProtocolError):
        rpc.notification("m", {"t": "中" * (MAX_LINE_BYTES // 3)})


def test_a_code_comes_back_as_the_error_it_was() -> None:
    line = rpc.failure(7, CosydError("waiting_memory", retry_after_s=3.0, short_bytes=5))
    [message] = read_all(line)
    assert message["error"]["code"] == rpc.ERROR_CODE
    with pytest.raises(CosydError) as caught:
        rpc.raise_failure(message["error"])
    assert (caught.value.code, caught.value.params) == ("waiting_memory", {"short_bytes": 5})
    assert caught.value.retry_after_s == 3.0


@pytest.mark.parametrize(
    "error",
    [
        {}, {"message": "x"}, {"data": None}, {"data": {"code": 7}}, {"data": {"code": "no_such_code"}},
        {"data": {"code": "deadline", "params": {"code": "x"}}}, {"data": {"code": "deadline",
        "params": [1]}},
        {"data": {"code": "deadline", "params": None}},
    ],
)  # fmt: skip
def test_a_strange_error_answer_becomes_internal(error: dict[str, Any]) -> None:
    with pytest.raises(CosydError) as caught:
        rpc.raise_failure(error)
    assert caught.value.code == "internal"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT_S)
    yield ours, theirs
    ours.close()
    theirs.close()


class Peer:
    """The other end, driven by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = LineReader()
        self.waiting: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        while not self.waiting:
            data = self.sock.recv(65536)
            assert data, "the link closed"
            self.waiting += self.reader.feed(data)
        return self.waiting.pop(0)

    def ask(self, method: str, params: Any = None, call_id: Any = 1) -> dict[str, Any]:
        self.sock.sendall(json.dumps({"id": call_id, "method": method, "params": params}).encode() + b"\n")
        return self.read()


def test_a_notification_arrives_as_one(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Link(pair[0]).start()
    assert link.notify("heartbeat", rss_bytes=5)
    assert Peer(pair[1]).read() == {"jsonrpc": "2.0", "method": "heartbeat", "params": {"rss_bytes": 5}}
    link.close()


def test_a_handler_answers_under_the_same_id(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Link(pair[0], {"double": lambda p: p["x"] * 2}).start()
    answer = Peer(pair[1]).ask("double", {"x": 21}, call_id="abc")
    assert answer == {"jsonrpc": "2.0", "id": "abc", "result": 42}
    link.close()


def test_handler_errors_are_answered_and_the_link_lives_on(pair: tuple[socket.socket, socket.socket]) -> None:
    def refuse(_: dict[str, Any]) -> None:
        raise CosydError("storage_full", free_bytes=1)

    link = Link(pair[0], {"refuse": refuse, "bug": lambda _: 1 / 0, "ok": lambda _: "fine"}).start()
    peer = Peer(pair[1])
    assert peer.ask("refuse")["error"]["data"] == {"code": "storage_full", "params": {"free_bytes": 1}}
    bug = peer.ask("bug")["error"]["data"]
    assert bug["code"] == "internal"
    assert "ZeroDivisionError" in bug["params"]["detail"]
    assert peer.ask("nobody")["error"]["code"] == rpc.METHOD_NOT_FOUND
    assert peer.ask("ok", "params of a wrong type")["result"] == "fine"
    link.close()


def test_an_answer_too_long_for_a_line_is_an_error_answer_not_the_end_of_the_link(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    link = Link(
        pair[0], {"long": lambda _: "x" * MAX_LINE_BYTES, "set": lambda _: {1}, "ok": lambda _: 1}
    ).start()
    peer = Peer(pair[1])
    assert peer.ask("long")["error"]["data"]["code"] == "internal"
    assert peer.ask("set")["error"]["data"]["code"] == "internal"
    assert peer.ask("ok")["result"] == 1
    link.close()


def test_a_bug_in_a_notification_handler_is_not_answered(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Link(pair[0], {"bug": lambda _: 1 / 0, "ok": lambda _: 1}).start()
    pair[1].sendall(rpc.notification("bug"))
    pair[1].sendall(rpc.notification("unknown"))
    assert Peer(pair[1]).ask("ok")["result"] == 1
    link.close()


def test_calls_from_many_threads_each_get_their_own_answer() -> None:
    left, right = socket.socketpair()
    server = Link(right, {"echo": lambda p: p["x"]}).start()
    client = Link(left).start()
    got: dict[int, Any] = {}

    def work(x: int) -> None:
        got[x] = client.call("echo", timeout_s=WAIT_S, x=x)

    threads = [threading.Thread(target=work, args=(x,)) for x in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert got == {x: x for x in range(20)}
    client.close()
    server.close()


def test_a_peers_error_is_raised_as_its_code() -> None:
    left, right = socket.socketpair()

    def refuse(_: dict[str, Any]) -> None:
        raise CosydError("queue_full", retry_after_s=4.0)

    server = Link(right, {"refuse": refuse}).start()
    client = Link(left).start()
    with pytest.raises(CosydError) as caught:
        client.call("refuse", timeout_s=WAIT_S)
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 4.0)
    client.close()
    server.close()


def test_a_silent_peer_is_shutting_down_after_the_timeout(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Link(pair[0]).start()
    with pytest.raises(CosydError) as caught:
        link.call("status", timeout_s=0.05)
    assert caught.value.code == "shutting_down"
    link.close()


def test_a_peer_that_goes_ends_waiting_calls_and_is_reported_once() -> None:
    left, right = socket.socketpair()
    gone = threading.Event()
    times: list[int] = []
    link = Link(left, on_eof=lambda: (times.append(1), gone.set())[0]).start()
    caught: list[str] = []

    def wait_for_answer() -> None:
        try:
            link.call("status", timeout_s=60)
        except CosydError as error:
            caught.append(error.code)

    thread = threading.Thread(target=wait_for_answer)
    thread.start()
    Peer(right).read()  # the call is out, so it is being waited for
    right.close()
    assert gone.wait(WAIT_S)
    thread.join(WAIT_S)
    assert caught == ["shutting_down"]
    assert times == [1]
    assert not link.notify("heartbeat")
    with pytest.raises(CosydError, match="shutting_down"):
        link.call("status", timeout_s=WAIT_S)
    link.close()


@pytest.mark.parametrize("junk", [b"nonsense\n", b"x" * (MAX_LINE_BYTES + 1)])
def test_a_peer_that_talks_nonsense_counts_as_gone(
    junk: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    gone = threading.Event()
    link = Link(pair[0], on_eof=gone.set).start()
    pair[1].sendall(junk)
    assert gone.wait(WAIT_S)
    link.close()


@pytest.mark.parametrize("answer", [{"id": 99, "result": 1}, {"id": None}, {"id": [1]}, {}, {"method": 7}])
def test_answers_nobody_asked_for_are_ignored(
    answer: dict[str, Any], pair: tuple[socket.socket, socket.socket]
) -> None:
    link = Link(pair[0], {"ok": lambda _: 1}).start()
    pair[1].sendall(json.dumps(answer).encode() + b"\n")
    assert Peer(pair[1]).ask("ok")["result"] == 1
    link.close()


def test_the_links_socket_is_not_inherited_by_children(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].set_inheritable(True)
    link = Link(pair[0])
    assert not pair[0].get_inheritable()
    link.close()


def test_closing_twice_is_fine(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Link(pair[0]).start()
    link.close()
    link.close()
