"""The supervisor's hand on swap: asks the helper over a real socket, acts once, and says what it did."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.levels import Level
from daemon.loop import Loop
from daemon.recorder import Recorder
from daemon.sample import RamReading
from daemon.swap import client, keeper
from pipeline.clock import FakeClock
from pipeline.codes import CosydError
from pipeline.events import Event
from pipeline.profile import Config

GIB = 1024**3
STATE: dict[str, Any] = {
    "own_bytes": 0, "own_used_bytes": 0, "inactive_bytes": 0, "others": [], "max_bytes": 10 * GIB,
    "keep_free_bytes": GIB, "disk_free_bytes": 100 * GIB, "filesystem": "ext4", "ram_total_bytes": 8 * GIB,
    "ram_available_bytes": 4 * GIB, "obstacle": None,
}  # fmt: skip


class FakeHelper:
    """Answers as the real one does, on a real socket; `refusal` is what it says to a change."""

    def __init__(self, path: Path) -> None:
        self.state, self.requests = dict(STATE), list[dict[str, Any]]()
        self.refusal: str | None = None
        self.garbage = False
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(4)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            conn, _ = self._door.accept()
            with conn:
                line = conn.makefile("rb").readline()
                if not line:
                    return
                request = json.loads(line)
                self.requests.append(request)
                answer: dict[str, Any] = {"v": 1, "ok": True}
                if request["op"] == "set":
                    if self.refusal is not None:
                        answer = {"v": 1, "ok": False, "reason": self.refusal, "params": {}}
                    else:
                        self.state["own_bytes"] = request["own_bytes"]
                conn.sendall(b"?" if self.garbage else json.dumps({**self.state, **answer}).encode() + b"\n")

    def close(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
        self._thread.join()
        self._door.close()


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


class Bench:
    def __init__(self, path: Path, *, automatic: bool = True) -> None:
        self.clock = FakeClock()
        self.loop = Loop(self.clock)
        self.sink = Sink()
        recorder = Recorder(self.sink, self.clock)
        self.keeper = keeper.SwapKeeper(
            self.loop, client.SwapClient(self.loop, path), recorder, Config, automatic=automatic
        )

    def ask(self, method: Callable[..., None], **params: Any) -> Any:
        """What a method answers."""
        found: list[Any] = []
        method(params, found.append)
        self.until(lambda: bool(found))
        return found[0]

    def until(self, check: Callable[[], bool]) -> None:
        for _ in range(200):
            if check():
                return
            self.loop.once(0.05)
        raise AssertionError("waited in vain")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.sink.events]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "swap.sock"


@pytest.fixture
def helper(path: Path) -> Iterator[FakeHelper]:
    made = FakeHelper(path)
    yield made
    made.close(path)


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    made = Bench(path)
    yield made
    made.loop.close()


TIGHT = RamReading(available_bytes=GIB // 10, total_bytes=8 * GIB, swap_used_bytes=0, swap_total_bytes=0)


def test_after_the_start_the_profiles_swap_is_made_once(helper: FakeHelper, bench: Bench) -> None:
    bench.keeper.start()
    bench.loop.once(0)
    assert helper.requests == []
    bench.clock.advance(keeper.AFTER_START_S + 1)
    bench.until(lambda: bench.kinds() == ["swap_grown"])
    assert helper.requests == [{"v": 1, "op": "status"}, {"v": 1, "op": "set", "own_bytes": 8 * GIB}]
    assert bench.sink.events[0].params == {
        "total_bytes": 8 * GIB, "own_bytes": 8 * GIB, "bytes": 8 * GIB, "reason": "profile"
    }  # fmt: skip


def test_a_guest_on_a_machine_makes_no_swap_by_itself(helper: FakeHelper, path: Path) -> None:
    bench = Bench(path, automatic=False)
    bench.keeper.start()
    bench.clock.advance(keeper.AFTER_START_S + 1)
    bench.keeper.tick(Level.CRITICAL, TIGHT)
    bench.loop.once(0)
    assert helper.requests == []
    assert bench.ask(bench.keeper.apply, total_bytes=GIB)["action"] == "grow"
    bench.loop.close()


def test_without_a_helper_nothing_happens_and_nobody_is_told(bench: Bench) -> None:
    bench.keeper.start()
    bench.clock.advance(keeper.AFTER_START_S + 1)
    bench.loop.once(0)
    assert bench.kinds() == []
    answer = bench.ask(bench.keeper.status)
    assert answer == {"helper": False, "reason": "no_helper", "params": {}}
    assert bench.ask(bench.keeper.plan)["reason"] == "no_helper"
    assert bench.ask(bench.keeper.apply)["reason"] == "no_helper"
    assert bench.kinds() == ["swap_refused"]  # somebody asked


@pytest.fixture
def late_helper(bench: Bench, path: Path) -> Iterator[FakeHelper]:
    """Installed after the keeper looked for one in vain."""
    bench.keeper.start()
    bench.clock.advance(keeper.AFTER_START_S + 1)
    bench.loop.once(0)
    made = FakeHelper(path)
    yield made
    made.close(path)


def test_a_helper_that_is_installed_later_is_found_and_only_once(
    late_helper: FakeHelper, bench: Bench
) -> None:
    bench.clock.advance(keeper.LOOK_AGAIN_S + 1)
    bench.until(lambda: bench.kinds() == ["swap_grown"])
    for _ in range(3):
        bench.clock.advance(keeper.REFUSED_AGAIN_S + 1)
        bench.loop.once(0)
    assert [r["op"] for r in late_helper.requests] == ["status", "set"]


def test_what_a_person_set_is_not_overruled_by_a_later_look(late_helper: FakeHelper, bench: Bench) -> None:
    assert bench.ask(bench.keeper.apply, total_bytes=GIB)["action"] == "grow"
    asked = len(late_helper.requests)
    bench.clock.advance(keeper.LOOK_AGAIN_S + 1)
    bench.loop.once(0)
    assert len(late_helper.requests) == asked


def test_swap_that_was_refused_is_tried_again_an_hour_later(helper: FakeHelper, bench: Bench) -> None:
    helper.refusal = "disk_short"
    bench.keeper.start()
    bench.clock.advance(keeper.AFTER_START_S + 1)
    bench.until(lambda: bench.kinds() == ["swap_refused"] and not bench.keeper.busy)
    helper.refusal = None
    bench.clock.advance(keeper.LOOK_AGAIN_S + 1)
    bench.loop.once(0)
    assert len(helper.requests) == 2, "not each minute"
    bench.clock.advance(keeper.REFUSED_AGAIN_S)
    bench.until(lambda: bench.kinds() == ["swap_refused", "swap_grown"])


def test_in_an_emergency_swap_grows_by_one_step(helper: FakeHelper, bench: Bench) -> None:
    bench.keeper.tick(Level.LOW, TIGHT)
    bench.keeper.tick(Level.CRITICAL, None)
    assert helper.requests == []
    helper.state["own_bytes"] = 8 * GIB
    bench.keeper.tick(Level.CRITICAL, TIGHT)
    bench.keeper.tick(Level.CRITICAL, TIGHT)  # one at a time
    bench.until(lambda: bench.kinds() == ["swap_grown"])
    assert [r.get("own_bytes") for r in helper.requests] == [None, 10 * GIB]
    bench.clock.advance(keeper.TRY_AGAIN_S + 1)
    bench.keeper.tick(Level.CRITICAL, TIGHT)
    bench.until(lambda: not bench.keeper.busy)
    assert len(helper.requests) == 3
    assert bench.kinds() == ["swap_grown"]


@pytest.mark.parametrize(
    ("total", "used", "needed"),
    [(0, 0, True), (GIB, GIB // 2, False), (GIB, GIB - 1, True), (None, None, False)],
)
def test_swap_with_room_is_no_emergency(total: int | None, used: int | None, needed: bool) -> None:
    ram = RamReading(available_bytes=1, total_bytes=8 * GIB, swap_used_bytes=used, swap_total_bytes=total)
    assert keeper.in_need(Level.CRITICAL, ram) is needed


def test_a_refusal_is_told_once_until_something_changes(helper: FakeHelper, bench: Bench) -> None:
    helper.refusal = "denied"
    for _ in range(3):
        bench.keeper.tick(Level.CRITICAL, TIGHT)
        bench.until(lambda: not bench.keeper.busy)
        bench.clock.advance(keeper.TRY_AGAIN_S + 1)
    assert bench.kinds() == ["swap_refused"]
    assert bench.sink.events[0].params["reason"] == "swap_denied"


def test_a_person_sees_plans_and_does(helper: FakeHelper, bench: Bench) -> None:
    shown = bench.ask(bench.keeper.status)
    assert shown["helper"] is True
    assert (shown["total_bytes"], shown["wanted_bytes"]) == (0, 8 * GIB)
    plan = bench.ask(bench.keeper.plan, total_bytes=2 * GIB)
    assert (plan["action"], plan["target_bytes"]) == ("grow", 2 * GIB)
    done = bench.ask(bench.keeper.apply, total_bytes=2 * GIB)
    assert (done["action"], done["total_bytes"]) == ("grow", 2 * GIB)
    smaller = bench.ask(bench.keeper.apply, total_bytes=0)
    assert (smaller["action"], smaller["own_bytes"]) == ("shrink", 0)
    assert bench.kinds() == ["swap_grown", "swap_shrunk"]
    for wrong in (-1, True, "1", 1 << 60, 1.5):
        with pytest.raises(CosydError):
            bench.keeper.apply({"total_bytes": wrong}, lambda value: None)


def test_a_helper_that_talks_nonsense_is_no_answer(helper: FakeHelper, bench: Bench, path: Path) -> None:
    helper.garbage = True
    assert bench.ask(bench.keeper.status)["reason"] == "helper_failed"
    assert client.ask_now(client.STATUS, path, 5.0)["reason"] == "helper_failed"
    helper.garbage = False
    assert client.ask_now(client.STATUS, path, 5.0)["own_bytes"] == 0
    assert client.ask_now(client.STATUS, path.with_name("none"), 5.0)["reason"] == "no_helper"


def test_a_helper_that_is_silent_is_given_up(path: Path, bench: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(1)
        found: list[Any] = []
        bench.keeper.status({}, found.append)
        bench.clock.advance(client.ANSWER_S + 1)
        bench.until(lambda: bool(found))
    assert found[0]["reason"] == "helper_failed"


def test_every_reason_has_its_words_in_both_catalogues() -> None:
    import re

    from pipeline.messages import catalogue

    root = Path(__file__).parents[2] / "daemon/swap"
    text = "".join(path.read_text("utf-8") for path in root.glob("*.py"))
    words = set(re.findall(r'Refused\(\s*"(\w+)"', text)) | set(
        re.findall(r'"refuse", [\w.]+, "(\w+)"', text)
    )
    words |= set(re.findall(r'refusal\("(\w+)"\)', text)) | {"no_helper", "container", "filesystem"}
    words |= {"hibernation"}
    assert len(words) > 15
    for language in ("en", "zh"):
        known = catalogue(language)
        for word in sorted(words):
            assert f"swap.refused_{word}" in known, word
            assert f"state.reason.swap_{word}" in known, word
