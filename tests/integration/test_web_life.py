"""How a page process comes and goes: told to end at any moment, two at once, with listeners, after a kill."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.engines.numbers import decode
from tests.integration.rig import Child, Rig
from tests.integration.service import Service, wait_for
from tests.integration.test_survival import numbered, wait_segments


class Hasty(Rig):
    """Gives `order` to the web as soon as it says `moment`."""

    moment = order = ""

    def heard(self, child: Child, method: str, params: dict[str, Any]) -> Any:
        if method == self.moment and len(child.told(method)) == 1:
            child.link.notify(self.order, deadline_s=60.0, grace_s=60.0)
        return super().heard(child, method, params)


def folders(tmp: Path) -> list[str]:
    return sorted(p.name for p in tmp.iterdir())


@pytest.mark.parametrize(
    ("moment", "order"),
    [("born", "shutdown"), ("hello", "drain"), ("heartbeat", "shutdown"), ("ready", "drain")],
)
def test_an_order_to_end_is_heard_at_any_moment_of_the_start(tmp_path: Path, moment: str, order: str) -> None:
    rig = Hasty(tmp_path)
    rig.moment, rig.order = moment, order
    try:
        web = Child(rig, ["-m", "ui"], {"http": rig.listener.fileno()}, "web")
        if moment == "born":
            web.link.notify(order, deadline_s=60.0, grace_s=60.0)
        assert web.process.wait(30) == 0, rig.tail()
        assert folders(rig.paths.tmp) == []
        assert "Traceback" not in rig.tail()
    finally:
        rig.close()


def test_two_webs_do_not_touch_each_others_files_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        killed, old = rig.start_web(), rig.start_web()
        assert folders(rig.paths.tmp) == sorted(f"web-{c.process.pid}" for c in (killed, old))
        killed.end()
        new = rig.start_web()
        assert folders(rig.paths.tmp) == sorted(f"web-{c.process.pid}" for c in (old, new))
        kept = rig.paths.tmp / f"web-{new.process.pid}" / "gradio" / "upload"
        kept.write_text("of the new one")
        old.link.notify("drain", deadline_s=5.0)
        assert old.process.wait(20) == 0
        assert kept.read_text() == "of the new one"
        assert folders(rig.paths.tmp) == [f"web-{new.process.pid}"]
    finally:
        rig.close()


SLOW_DISK = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("gradio.components."):
            time.sleep(0.2)

sys.meta_path.insert(0, Slow())
"""


def test_a_page_that_starts_slowly_and_moves_on_is_left_to_start(tmp_path: Path) -> None:
    """A starved machine: imports alone take longer than a start may, and each try would be ended for it."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sitecustomize.py").write_text(SLOW_DISK)
    limit_s, began = 4.0, time.monotonic()
    settings = {"deadlines.start_s": str(limit_s)}
    with Service(tmp_path / "state", settings, env={"PYTHONPATH": str(tmp_path / "slow")}) as service:
        assert time.monotonic() - began > limit_s + 2, "the imports were not slow"
        assert service.rows("SELECT * FROM events WHERE kind IN ('worker_killed', 'worker_exited')") == []


def test_a_web_that_cannot_serve_says_why(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        web = Child(rig, ["-m", "ui"], {}, "web")
        assert web.wait("fatal")["code"] == "config_error"
        assert web.process.wait(20) == 78
    finally:
        rig.close()


@pytest.mark.alone
def test_a_stop_while_the_page_is_recycled_waits_for_nobody(tmp_path: Path) -> None:
    with Service(tmp_path / "state") as service:
        # It answers a moment before it is called ready, and what is starting is not started over.
        wait_for(lambda: service.control("status")["web"]["state"] == "ready", 20, "the first web")
        service.control("restart", target="web")

        def webs() -> list[psutil.Process]:
            return [p for p in service.family() if p.cmdline()[-2:] == ["-m", "ui"]]

        wait_for(lambda: len(webs()) == 2, 10, "the new web")
        assert service.stop() == 0
        assert "worker_killed" not in service.event_kinds()
        assert folders(service.state / "tmp") == []


@pytest.mark.alone
def test_a_stop_does_not_wait_for_a_text_that_nobody_goes_on_with(tmp_path: Path) -> None:
    """The worker finishes its piece and leaves; the listener's connection breaks then, not at the kill."""
    with Service(tmp_path / "state", {"deadlines.stop_grace_s": "30"}) as service:
        ended: list[Any] = []

        def listen() -> None:
            body = {
                "model": "tts-1",
                "input": numbered(20, 0.1),
                "voice": "numbers",
                "response_format": "pcm",
            }
            try:
                ended.append(
                    httpx.post(f"{service.url}/v1/audio/speech", json=body, timeout=90, trust_env=False)
                )
            except httpx.HTTPError as error:
                ended.append(error)

        listener = threading.Thread(target=listen)
        listener.start()
        wait_segments(service, 2)
        assert service.stop(timeout_s=20) == 0
        listener.join(10)
        assert isinstance(ended[0], httpx.RemoteProtocolError), ended
        assert "worker_killed" not in service.event_kinds()
        (job,) = service.rows("SELECT * FROM jobs")
        assert (job["state"], job["attempt"]) == ("queued", 1)
        service.start()
        assert service.wait_job(job["id"])["state"] == "done"
        audio = service.http.get(f"/api/jobs/{job['id']}/audio", params={"format": "pcm"})
        assert decode(audio.content) == list(range(1, 21))
