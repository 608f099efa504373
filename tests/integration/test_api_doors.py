"""Coming in: beyond loopback one needs a link or a key; and the web can be exchanged under its visitors."""

from __future__ import annotations

import concurrent.futures
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pipeline.access import create_api_key, create_login_token, revoke_api_key
from pipeline.store.db import connect
from tests.engines.numbers import decode
from tests.integration.rig import Rig
from tests.integration.service import wait_for


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A web bound to every address, as on a LAN; its engine never runs."""
    rig = Rig(tmp_path_factory.mktemp("lan"), engines=(), bind="0.0.0.0")
    try:
        rig.start_web()
        yield rig
    finally:
        rig.close()


def token(rig: Rig) -> str:
    conn = connect(rig.paths.database, "accept")
    try:
        return create_login_token(conn, time.time())
    finally:
        conn.close()


def test_a_stranger_gets_nothing_but_the_probes(lan: Rig) -> None:
    for path in (
        "/",
        "/v1/models",
        "/api/history",
        "/api/state",
        "/config",
        "/gradio_api/info",
        "/theme.css",
    ):
        assert lan.http.get(path).status_code == 401, path
    assert lan.http.post("/v1/audio/speech", json={"input": "x"}).status_code == 401
    assert lan.http.post("/gradio_api/queue/join", json={}).status_code == 401
    assert lan.http.post("/gradio_api/upload", files={"files": b"x"}).status_code == 421
    assert lan.http.get("/healthz").status_code == 200
    assert lan.http.get("/readyz").status_code == 503
    page = lan.http.get("/", headers={"Accept": "text/html", "Accept-Language": "zh-CN"})
    assert page.status_code == 401 and "cosyd login-link" in page.text and "请用登录链接进入" in page.text
    assert "http://" not in page.text and "https://" not in page.text


def test_a_link_lets_one_visitor_in_once(lan: Rig) -> None:
    once = token(lan)
    with httpx.Client(base_url=lan.url, trust_env=False) as visitor:
        assert visitor.head(f"/login?token={once}").status_code == 401  # a link previewer uses nothing up
        welcome = visitor.get(f"/login?token={once}")
        assert welcome.status_code == 200
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=lax" in cookie.lower() and f"Max-Age={90 * 86400}" in cookie
        assert visitor.get("/", headers={"Accept": "text/html"}).status_code == 200
        assert visitor.get("/api/history").status_code == 200
        # A cookie alone does not let a foreign page act.
        foreign = visitor.post("/api/jobs", json={"text": "1"}, headers={"Origin": "http://evil.example"})
        assert foreign.status_code == 421 and foreign.json()["error"]["code"] == "misdirected"
    again = httpx.get(f"{lan.url}/login?token={once}", trust_env=False)
    assert again.status_code == 401 and "set-cookie" not in again.headers
    assert once not in lan.log.read_text("utf-8", "replace")


def test_a_key_works_until_it_is_revoked(lan: Rig) -> None:
    conn = connect(lan.paths.database, "accept")
    key_id, key = create_api_key(conn, "speaker", time.time())
    headers = {"Authorization": f"Bearer {key}"}
    assert lan.http.get("/v1/models", headers=headers).status_code == 200
    assert lan.http.get("/v1/models", headers={"Authorization": f"Bearer {key}x"}).status_code == 401
    wait_for(lambda: lan.rows("SELECT 1 FROM api_keys WHERE last_used_at IS NOT NULL"), 5, "last_used_at")
    revoke_api_key(conn, key_id, time.time())
    conn.close()
    wait_for(lambda: lan.http.get("/v1/models", headers=headers).status_code == 401, 10, "the revocation")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("doors"), env={"GRADIO_SHARE": "True"}) as made:
        yield made


def test_on_loopback_any_key_is_accepted(rig: Rig) -> None:
    assert rig.http.get("/v1/models", headers={"Authorization": "Bearer whatever"}).status_code == 200
    assert rig.http.get("/v1/models").status_code == 200


def test_a_rebound_name_is_refused_everywhere(rig: Rig) -> None:
    for path in ("/", "/healthz", "/v1/models", "/config", "/login"):
        assert rig.http.get(path, headers={"Host": "rebound.example"}).status_code == 421, path


@pytest.mark.parametrize(
    "path", ["/api/jobs", "/v1/audio/speech", "/gradio_api/queue/join", "/gradio_api/upload"]
)
def test_what_a_foreign_page_can_send_is_refused(rig: Rig, path: str) -> None:
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        assert (
            rig.http.post(path, content=b'{"input":"1"}', headers={"Content-Type": kind}).status_code == 421
        )
    evil = {"Origin": "https://evil.example", "Content-Type": "application/json"}
    assert rig.http.post(path, content=b"{}", headers=evil).status_code == 421
    preflight = rig.http.options(path, headers={"Origin": "https://evil.example"})
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


def test_the_page_is_in_the_visitors_language_and_names_no_other_host(rig: Rig) -> None:
    for language, word in (("zh-CN,zh;q=0.9", "清理缓存"), ("en-GB", "Free memory")):
        page = rig.http.get("/", headers={"Accept-Language": language})
        assert page.status_code == 200 and word in page.text
        hosts = set(re.findall(r"(?:https?:)?//([A-Za-z0-9.-]+\.[a-z]{2,}|[0-9.]+)", page.text))
        assert hosts <= {"127.0.0.1"}, hosts
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    theme = re.sub(r'url\("data:[^"]*"\)', "", rig.http.get("/theme.css").text)
    assert "http" not in theme and "@import" not in theme
    kept = rig.http.get("/?lang=zh", headers={"Accept-Language": "en"})
    assert "清理缓存" in kept.text and "cosyd_lang=zh" in kept.headers["set-cookie"]
    assert '"share_url"' not in page.text and "gradio.live" not in rig.log.read_text()


CLIENT = """
import sys, gradio_client
direct = {"trust_env": False}
client = gradio_client.Client(sys.argv[1], verbose=False, analytics_enabled=False, httpx_kwargs=direct)
print(client.predict(text="6 7", voice="numbers", speed=1.0, seed=1, format="pcm", api_name="/speak"))
try:
    client.predict(text="", voice="numbers", api_name="/speak")
except gradio_client.exceptions.AppError as error:
    print(error)
"""


def test_gradio_client_speaks_by_name(rig: Rig) -> None:
    # In a process of its own: the library leaves event loops open.
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, rig.url], capture_output=True, text=True, timeout=60, check=True
    )
    path, error = done.stdout.strip().splitlines()
    assert decode(Path(path).read_bytes()) == [6, 7]
    assert "nothing to say" in error and "Traceback" not in error


def test_a_web_that_is_recycled_ends_its_streams_and_refuses_nobody(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        old = rig.web
        assert old is not None
        text = "Sentence 1. Sentence 2. [gate go] Sentence 3."
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            listening = pool.submit(rig.speech, text)
            wait_for(lambda: rig.rows("SELECT 1 FROM jobs WHERE state = 'running'"), 10, "its start")
            new = rig.start_web()  # on the same socket, as RECYCLE_WEB does
            old.link.notify("drain", deadline_s=20, reason="recycle_web")
            assert not listening.done()
            for _ in range(20):
                assert httpx.get(f"{rig.url}/healthz", trust_env=False).status_code == 200
            (rig.paths.root / "go").touch()
            assert decode(listening.result(30).content) == [1, 2, 3]
        old.wait("drained", 25)
        assert old.process.wait(10) == 0
        assert new.process.poll() is None and rig.speech("4").status_code == 200


def test_who_connected_just_before_a_recycle_is_still_answered(tmp_path: Path) -> None:
    with Rig(tmp_path, engines=()) as rig:
        web = rig.web
        assert web is not None
        with socket.create_connection(("127.0.0.1", rig.port), timeout=20) as client:
            wait_for(
                lambda: len(psutil.Process(web.process.pid).net_connections("tcp")) > 1, 10, "its accept"
            )
            web.link.notify("drain", deadline_s=20, reason="recycle_web")
            wait_for(lambda: not listens(web.process.pid), 10, "the end of listening")
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with client.makefile("rb") as answer:
                head = answer.read()  # to the end: the connection is closed after it
        assert head.startswith(b"HTTP/1.1 200")
        assert web.process.wait(10) == 0


def listens(pid: int) -> bool:
    """Whether it still takes new connections."""
    return any(c.status == psutil.CONN_LISTEN for c in psutil.Process(pid).net_connections("tcp"))


@pytest.mark.alone
def test_a_web_without_visitors_stops_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=())
    try:
        web = rig.start_web()
        with httpx.stream("GET", f"{rig.url}/api/state/events", trust_env=False) as endless:
            next(endless.iter_raw())
            begun = time.monotonic()
            web.link.notify("shutdown", grace_s=10)
            assert web.process.wait(10) == 0
            assert time.monotonic() - begun < 5
    finally:
        rig.close()


def test_a_killed_web_loses_no_job(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        assert rig.web is not None
        job = rig.http.post("/api/jobs", json={"text": "1 [gate on] 2", "voice": "numbers"}).json()["id"]
        rig.web.process.kill()
        rig.web.process.wait(10)
        (rig.paths.root / "on").touch()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # Asked while no web is there: it waits in the socket's backlog.
            waiting = pool.submit(
                httpx.get, f"{rig.url}/api/jobs/{job}/audio?format=pcm", timeout=60, trust_env=False
            )
            rig.start_web()
            assert decode(waiting.result(60).content) == [1, 2]
