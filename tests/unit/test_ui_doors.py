"""The door rules (CONTRACTS 9): as pure functions, and as the middleware around an application."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from ui.auth import bearer, change_allowed, cookie, host_allowed, same_origin
from ui.doors import Doors

HOSTS = ("tts.example.org",)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:7860", True),
        ("192.168.1.5", True),
        ("[::1]:7860", True),
        ("[fe80::1]", True),
        ("localhost", True),
        ("LocalHost:80", True),
        ("nas.local:7860", True),
        ("nas.lan", True),
        ("NAS.LAN.:7860", True),
        ("tts.example.org", True),
        ("TTS.example.org:443", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example#.lan", False),
        ("evil.example/.local", False),
        ("local", False),
        ("notlocalhost", False),
        ("2130706433", False),
        ("0x7f.1", False),
        ("user@127.0.0.1", False),
        ("127.0.0.1:99:1", False),
        ("127.0.0.1:", False),
        ("127.0.0.1:abc", False),
        ("[::1", False),
        ("", False),
        (None, False),
    ],
)
def test_only_our_names_are_answered(host: str | None, allowed: bool) -> None:
    assert host_allowed(host, HOSTS) is allowed


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:7860", "127.0.0.1:7860", True),
        ("https://nas.lan", "nas.lan", True),
        ("https://nas.lan", "nas.lan:443", True),
        ("http://NAS.lan", "nas.lan:80", True),
        ("http://[::1]:7860", "[::1]:7860", True),
        ("http://127.0.0.1:7861", "127.0.0.1:7860", False),
        ("http://evil.example", "127.0.0.1:7860", False),
        ("null", "127.0.0.1:7860", False),
        ("", "127.0.0.1:7860", False),
        ("127.0.0.1:7860", "127.0.0.1:7860", False),
    ],
)
def test_an_origin_is_ours_when_host_and_port_are(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same


def headers(**more: str) -> dict[str, str]:
    return {"host": "127.0.0.1:7860"} | {k.replace("_", "-"): v for k, v in more.items()}


@pytest.mark.parametrize(
    ("method", "sent", "allowed"),
    [
        ("GET", headers(origin="http://evil.example"), True),
        ("POST", headers(origin="http://127.0.0.1:7860", content_type="multipart/form-data"), True),
        ("POST", headers(content_type="application/json"), True),
        ("POST", headers(content_type="Application/JSON; charset=utf-8"), True),
        ("POST", headers(content_type="application/vnd.api+json"), True),
        ("POST", headers(content_type="multipart/form-data; boundary=x", authorization="Bearer k"), True),
        ("DELETE", headers(), True),
        ("POST", headers(origin="http://evil.example", content_type="application/json"), False),
        ("POST", headers(origin="null", content_type="application/json"), False),
        ("DELETE", headers(origin="http://evil.example"), False),
        ("POST", headers(), False),
        ("POST", headers(content_type="text/plain"), False),
        ("POST", headers(content_type="text/plain; application/json"), False),
        ("POST", headers(content_type="multipart/form-data; boundary=x"), False),
        ("POST", headers(content_type="application/x-www-form-urlencoded"), False),
        ("POST", headers(origin="http://evil.example", authorization="Bearer k"), False),
    ],
)
def test_a_foreign_page_changes_nothing(method: str, sent: dict[str, str], allowed: bool) -> None:
    assert change_allowed(method, sent) is allowed


def test_credentials_are_read_from_where_they_belong() -> None:
    assert bearer({"authorization": "bearer  abc "}) == "abc"
    assert bearer({"authorization": "Basic abc"}) is None
    assert bearer({"authorization": "Bearer "}) is None
    assert cookie({"cookie": "a=1; cosyd_session=tok-en_1; b"}, "cosyd_session") in ("tok-en_1", None)
    assert cookie({"cookie": "a=1; cosyd_session=tok-en_1"}, "cosyd_session") == "tok-en_1"
    assert cookie({}, "cosyd_session") is None


class Answer:
    """What the doors let out for one request."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.status = int(messages[0]["status"])
        self.headers = {k.decode().lower(): v.decode() for k, v in messages[0]["headers"]}
        self.body = b"".join(m.get("body", b"") for m in messages[1:])


def ask(doors: Doors, method: str = "GET", path: str = "/", **sent: str) -> Answer:
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(k.encode(), v.encode()) for k, v in headers(**sent).items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw}
    asyncio.run(doors(scope, receive, send))
    return Answer(messages)


def inside(*, login: bool) -> Doors:
    async def good(session: str | None, key: str | None) -> bool:
        return session == "s" or key == "k"

    app = PlainTextResponse("in", headers={"Access-Control-Allow-Origin": "http://localhost"})
    return Doors(app, hosts=(), authenticate=good if login else None)


def test_a_rebound_name_gets_421_and_a_foreign_post_too() -> None:
    doors = inside(login=False)
    rebound = ask(doors, host="evil.example")
    assert rebound.status == 421 and b'"misdirected"' in rebound.body and b"evil.example" in rebound.body
    foreign = ask(doors, "POST", origin="http://evil.example", content_type="application/json")
    assert foreign.status == 421 and b'"misdirected"' in foreign.body
    assert ask(doors).status == 200


def test_without_a_key_programs_get_json_and_people_a_page() -> None:
    doors = inside(login=True)
    program = ask(doors, "POST", "/v1/audio/speech", content_type="application/json")
    assert program.status == 401 and b'"unauthorized"' in program.body
    assert program.headers["www-authenticate"] == "Bearer"
    person = ask(doors, accept="text/html,*/*", accept_language="zh-CN,zh;q=0.9")
    assert person.status == 401 and person.headers["content-type"].startswith("text/html")
    assert "cosyd login-link" in person.body.decode() and "局域网" in person.body.decode()


@pytest.mark.parametrize("sent", [{"authorization": "Bearer k"}, {"cookie": "cosyd_session=s"}])
def test_a_key_or_a_cookie_opens(sent: dict[str, str]) -> None:
    assert ask(inside(login=True), path="/gradio_api/info", **sent).status == 200
    wrong = {name: f"{value}x" for name, value in sent.items()}
    assert ask(inside(login=True), path="/gradio_api/info", **wrong).status == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login"])
def test_probes_and_the_login_itself_are_open(path: str) -> None:
    assert ask(inside(login=True), path=path).status == 200


def test_no_answer_invites_other_origins() -> None:
    answer = ask(inside(login=False), origin="http://localhost:3000")
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_websockets_are_refused() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("not read")

    asyncio.run(inside(login=False)({"type": "websocket", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
