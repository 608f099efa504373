"""The supervisor's edges one by one: writer, connections, sockets, the lock, systemd, configuration."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.configuration import load, parse_options, read_settings, with_ports, write_effective
from daemon.connection import Answer, Connection, MethodUnknown
from daemon.instance import InstanceHeld, family, take_lock
from daemon.loop import Loop
from daemon.notifier import Notifier, watchdog_interval_s
from daemon.recorder import Recorder, message_id
from daemon.sockets import find_holder, lan_address, listen, listen_next_free
from daemon.startup import greeting, open_doors
from daemon.writer import MAX_EVENTS, MAX_SAMPLES, Writer
from pipeline.clock import FakeClock, SystemClock
from pipeline.codes import CosydError
from pipeline.events import EVENT_KINDS, Event, Sample
from pipeline.messages import problem_text
from pipeline.paths import StatePaths
from pipeline.profile import Config, from_json
from pipeline.rpc import MAX_BACKLOG_BYTES, Link
from pipeline.store.migrate import migrate

# -- writer ------------------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    found = StatePaths.at(tmp_path / "state", {})
    migrate(found, now=0.0)
    return found


def rows(paths: StatePaths, sql: str) -> list[Any]:
    conn = sqlite3.connect(paths.database)
    try:
        return conn.execute(sql).fetchall()
    finally:
        conn.close()


def test_what_was_handed_in_is_written_before_the_writer_ends(paths: StatePaths) -> None:
    writer = Writer(paths.database, lambda callback: callback())
    results: list[int] = []
    writer.start()
    for n in range(100):
        writer.event(Event(at=float(n), kind="ready"))
    writer.sample(Sample(at=1.0))
    writer.do("sum", lambda conn: conn.execute("SELECT 1 + 1").fetchone()[0], results.append)
    assert writer.stop(10)
    assert rows(paths, "SELECT count(*) FROM events") == [(100,)]
    assert rows(paths, "SELECT count(*) FROM samples") == [(1,)]
    assert results == [2]


def test_a_locked_database_delays_and_loses_nothing_and_the_caller_never_waits(paths: StatePaths) -> None:
    lock = sqlite3.connect(paths.database, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    writer = Writer(paths.database, lambda callback: callback())
    writer.start()
    for n in range(50):
        writer.event(Event(at=float(n), kind="ready"))
    assert lock.in_transaction  # all fifty calls came back while nothing could be written
    lock.execute("ROLLBACK")
    lock.close()
    assert writer.stop(20)
    assert rows(paths, "SELECT count(*) FROM events") == [(50,)]


def test_with_no_room_samples_go_first_and_the_loss_is_on_record(paths: StatePaths) -> None:
    writer = Writer(paths.database, lambda callback: callback())
    for n in range(MAX_SAMPLES + 7):
        writer.sample(Sample(at=float(n)))
    for n in range(MAX_EVENTS + 3):
        writer.event(Event(at=float(n), kind="ready"))
    writer.start()
    assert writer.stop(20)
    assert rows(paths, "SELECT count(*) FROM events") == [(MAX_EVENTS,)]
    params = json.loads(rows(paths, "SELECT params FROM events ORDER BY id LIMIT 1")[0][0])
    assert params == {"lost_events": 3, "lost_samples": 7}
    assert rows(paths, "SELECT min(at) > '1970-01-01T00:00:06' FROM samples") == [(1,)], "the oldest went"


def test_of_two_waiting_operations_of_a_key_the_newer_counts(paths: StatePaths) -> None:
    writer, done = Writer(paths.database, lambda callback: callback()), list[str]()
    writer.do("reason", lambda conn: "old", done.append)
    writer.do("reason", lambda conn: "new", done.append)
    writer.start()
    assert writer.stop(10)
    assert done == ["new"]


def test_a_faulty_operation_does_not_stop_the_writer(
    paths: StatePaths, caplog: pytest.LogCaptureFixture
) -> None:
    writer, done = Writer(paths.database, lambda callback: callback()), list[object]()

    def faulty(conn: sqlite3.Connection) -> None:
        raise KeyError("a bug")

    writer.do("a", faulty, done.append)
    writer.do("b", lambda conn: 5, done.append)
    writer.start()
    assert writer.stop(10)
    assert done == [5] and "the operation a failed" in caplog.text


# -- loop and connection -------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop(SystemClock())
    yield found
    found.close()


def until(loop: Loop, check: Callable[[], object], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end
        loop.once(0.02)


def connection(
    loop: Loop, on_call: Callable[..., None] | None = None
) -> tuple[Connection, socket.socket, list[str]]:
    ours, theirs = socket.socketpair()
    closed: list[str] = []

    def nothing(conn: Connection, method: str, params: dict[str, Any], reply: Answer | None) -> None:
        if reply is not None:
            reply(MethodUnknown(method))

    return Connection(loop, ours, on_call or nothing, lambda conn: closed.append("closed")), theirs, closed


def test_calls_go_both_ways_with_a_real_link(loop: Loop) -> None:
    def answer(conn: Connection, method: str, params: dict[str, Any], reply: Answer | None) -> None:
        assert reply is not None
        if method == "fail":
            raise CosydError("waiting_memory", short_bytes=5)
        reply({"method": method, **params})

    conn, theirs, _ = connection(loop, answer)
    link = Link(theirs, {"trim": lambda params: {"rss_after": 1}}).start()
    found: list[Any] = []
    conn.call("trim", {}, 5, found.append)
    until(loop, lambda: found)
    assert found == [{"rss_after": 1}]
    results: list[Any] = []

    def ask() -> None:
        results.append(link.call("status", timeout_s=5, a=1))
        try:
            link.call("fail", timeout_s=5)
        except CosydError as error:
            results.append((error.code, error.params))

    thread = threading.Thread(target=ask)
    thread.start()
    until(loop, lambda: len(results) == 2)
    thread.join()
    assert results == [{"method": "status", "a": 1}, ("waiting_memory", {"short_bytes": 5})]
    link.close()
    conn.close()


def test_a_silent_peer_is_a_deadline_and_a_gone_one_shutting_down(loop: Loop) -> None:
    conn, theirs, closed = connection(loop)
    found: list[Any] = []
    conn.call("trim", {}, 0.05, found.append)
    until(loop, lambda: found)
    assert found[0].code == "deadline"
    conn.call("trim", {}, 60, found.append)
    theirs.close()
    until(loop, lambda: closed)
    assert found[1].code == "shutting_down"


def test_a_peer_that_does_not_read_is_dropped(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    conn, theirs, closed = connection(loop)
    sent = 0
    while not closed:
        conn.notify("state", {"x": "y" * 50_000})
        sent += 50_000
        assert sent < 4 * MAX_BACKLOG_BYTES
    assert conn.closed and "1 MiB behind" in caplog.text
    theirs.close()


def test_a_failing_callback_is_counted_and_the_loop_goes_on(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    loop.later(0, lambda: heard[5])  # type: ignore[arg-type,return-value]
    loop.later(0, lambda: heard.append(1))
    until(loop, lambda: heard)
    assert loop.failures == 1 and "callback" in caplog.text


def test_posts_from_other_threads_wake_the_loop(loop: Loop) -> None:
    heard: list[int] = []
    thread = threading.Thread(target=lambda: [loop.post(lambda: heard.append(1)) for _ in range(1000)])
    thread.start()
    until(loop, lambda: len(heard) == 1000)
    thread.join()


# -- sockets, lock ---------------------------------------------------------------------------------------


def test_a_taken_port_names_its_holder_and_wyoming_moves_on() -> None:
    with listen("127.0.0.1", 0, "web.port") as taken:
        port = taken.getsockname()[1]
        holder = find_holder(port)
        assert holder is not None and holder[1] == os.getpid()
        with pytest.raises(CosydError) as caught:
            listen("127.0.0.1", port, "web.port")
        assert caught.value.code == "config_error"
        assert str(os.getpid()) in problem_text(caught.value.params["problems"][0], "en")
        with listen_next_free("127.0.0.1", port, "wyoming.port") as other:
            assert other.getsockname()[1] > port


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "::g"])
def test_an_address_that_is_not_ours_is_a_readable_error(host: str) -> None:
    with pytest.raises(CosydError) as caught:
        listen(host, 0, "web.host")
    assert host in problem_text(caught.value.params["problems"][0], "en")


def test_the_lan_address_is_none_of_the_loopback() -> None:
    assert not lan_address().startswith("127.")


def test_beyond_loopback_without_authentication_nothing_is_bound() -> None:
    options = parse_options(["--set", "web.auth=false", "--port", "0", "--set", "wyoming.port=0"], {})
    config = load(options, {}, {}, Path("/nonexistent")).config
    for sock in open_doors(config, lan=False).sockets.values():
        sock.close()
    with pytest.raises(CosydError) as caught:
        open_doors(config, lan=True)
    assert caught.value.code == "unsafe_bind"


def test_one_holder_of_the_lock_whose_children_do_not_hold_it(tmp_path: Path) -> None:
    lock = tmp_path / "instance.lock"
    lock.write_text("1\n")  # a stale pid of somebody else's is only text
    fd = take_lock(lock)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        code = (
            "import sys; from pathlib import Path; from daemon.instance import *\n"
            "try: take_lock(Path(sys.argv[1]))\n"
            "except InstanceHeld as e: print(e.params['pid'])"
        )
        run = [sys.executable, "-c", code, str(lock)]
        held = subprocess.run(run, capture_output=True, text=True, check=True)
        assert held.stdout.strip() == str(os.getpid())
        os.close(fd)
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == ""
    finally:
        child.kill()
        child.communicate()
    assert issubclass(InstanceHeld, CosydError)


def test_a_family_is_told_by_folder_and_instance(tmp_path: Path) -> None:
    for pid, text in {
        "10": "COSYD_STATE_DIR=/s\0COSYD_INSTANCE=a\0",
        "11": "COSYD_STATE_DIR=/s\0COSYD_INSTANCE=b\0",
        "12": "COSYD_STATE_DIR=/s\0",
        "13": "COSYD_STATE_DIR=/other\0COSYD_INSTANCE=a\0",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(text.encode())
    assert sorted(family(tmp_path, state="/s")) == [10, 11]
    assert list(family(tmp_path, state="/s", instance="b")) == [11]


# -- systemd ---------------------------------------------------------------------------------------------


def test_the_watchdog_is_fed_at_half_its_time_and_only_by_whole_rounds() -> None:
    sent: list[str] = []
    now = [0.0]
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environ, sent.append, lambda: now[0])
    for tenth in range(100):
        now[0] = tenth / 10
        notifier.round_done()
    assert 5 <= sent.count("WATCHDOG=1") <= 7
    now[0] = 1000.0
    assert sent.count("WATCHDOG=1") <= 7, "a loop that stands still feeds nobody"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2000000"}, 1.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 1.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
)
def test_whose_watchdog_it_is(environ: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval_s(environ, 7) == seconds


def test_a_reload_is_told_with_its_time_and_ended_by_ready() -> None:
    sent: list[str] = []
    notifier = Notifier({"NOTIFY_SOCKET": "/x"}, sent.append)
    notifier.reloading()
    notifier.ready("well")
    notifier.status("well")
    notifier.status("well")
    notifier.stopping()
    assert sent[0].startswith("RELOADING=1\nMONOTONIC_USEC=") and sent[0].rpartition("=")[2].isdigit()
    assert sent[1:] == ["READY=1\nSTATUS=well", "STATUS=well", "STOPPING=1"]


def test_the_last_word_is_not_talked_over() -> None:
    sent: list[str] = []
    notifier = Notifier({"NOTIFY_SOCKET": "/x"}, sent.append)
    notifier.failed("The disk is full.\nMake room.")
    notifier.status("page stopping")
    assert sent == ["STATUS=The disk is full. Make room."]


def test_without_systemd_nothing_is_sent() -> None:
    sent: list[str] = []
    notifier = Notifier({"WATCHDOG_USEC": "1"}, sent.append)
    notifier.ready("x")
    notifier.round_done()
    notifier.stopping()
    assert sent == [] and not notifier.active


def test_a_real_notify_socket_gets_ready(tmp_path: Path) -> None:
    pytest.importorskip(
        "systemd.daemon", reason="systemd-python is not installed: pip install 'cosyd[systemd]'"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        code = "import os; from daemon.notifier import Notifier; Notifier(os.environ).ready('up')"
        env = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        assert sock.recv(1000) == b"READY=1\nSTATUS=up"


# -- record, configuration, greeting -----------------------------------------------------------------------


def test_an_event_goes_to_table_and_log_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    class Sink:
        events: list[Event] = []

        def event(self, event: Event) -> None:
            self.events.append(event)

    sink = Sink()
    recorder = Recorder(sink, FakeClock())
    with caplog.at_level("INFO"):
        recorder.event("worker_killed", None, {"child": "worker:x", "reason": "memory_critical"})
    assert sink.events[0].kind == "worker_killed"
    record = caplog.records[-1]
    assert record.levelname == "WARNING" and "memory_critical" in record.getMessage()
    assert getattr(record, "MESSAGE_ID", None) == message_id("worker_killed")


def test_message_ids_are_128_bits_and_different() -> None:
    found = {message_id(kind) for kind in EVENT_KINDS}
    assert len(found) == len(EVENT_KINDS) and all(len(one) == 32 for one in found)


def test_flags_are_over_environment_over_settings_over_file(tmp_path: Path) -> None:
    file = tmp_path / "cosyd.toml"
    file.write_text("keep_alive = 1\nlease_s = 11\n[web]\nport = 1\n")
    options = parse_options(["--config", str(file), "--port", "4", "--state", str(tmp_path)], {})
    environ = {"COSYD_WEB__PORT": "3", "COSYD_LEASE_S": "12"}
    found = load(options, environ, {"keep_alive": "2"}).config
    assert (found.web.port, found.lease_s, found.keep_alive) == (4, 12.0, 2.0)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cosyd.toml"
    file.write_text("[web]\nprot = 1\n")
    options = parse_options(["--config", str(file), "--set", "keep_alive=soon"], {})
    with pytest.raises(CosydError) as caught:
        load(options, {}, {"web.port": "5"})
    assert len(caught.value.params["problems"]) == 3


def test_a_set_without_a_value_is_an_error() -> None:
    with pytest.raises(CosydError):
        parse_options(["--set", "keep_alive"], {})


def test_settings_that_are_no_configuration_are_left_alone(paths: StatePaths) -> None:
    conn = sqlite3.connect(paths.database)
    conn.executemany(
        "INSERT INTO settings VALUES (?, ?)",
        [("access:login:x", "{}"), ("keep_alive", "5"), ("page.theme", "x")],
    )
    assert read_settings(conn) == {"keep_alive": "5"}
    conn.close()


def test_the_effective_configuration_is_private_and_says_what_was_bound(paths: StatePaths) -> None:
    write_effective(paths, with_ports(Config(), "0.0.0.0", 1234, 5678))
    assert paths.effective_config.stat().st_mode & 0o777 == 0o600
    found = from_json(paths.effective_config.read_text())
    assert (found.web.host, found.web.port, found.wyoming.port) == ("0.0.0.0", 1234, 5678)


def test_the_greeting_has_the_address_and_over_ssh_the_ready_tunnel() -> None:
    url, ssh = "http://127.0.0.1:7860", {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.2 22", "LANG": "C"}
    assert greeting(url, 7860, {"LANG": "C"}, "me", None) == [f"cosyd is ready: {url}"]
    assert greeting(url, 7860, ssh, "me", None)[1].endswith("ssh -L 7860:127.0.0.1:7860 me@10.0.0.2")
    lan = greeting("http://10.0.0.2:7860", 7860, ssh, "me", "TOKEN")
    assert lan[1].endswith("http://10.0.0.2:7860/login?token=TOKEN") and len(lan) == 2
