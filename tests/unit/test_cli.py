"""The command line: help in two languages, parsing, and what each command shows, by click's runner."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from daemon.cli import player, run, status, why
from daemon.cli.main import main
from daemon.cli.outlet import choose_format
from daemon.configuration import parse_options
from pipeline.access import check_api_key, redeem_login_token
from pipeline.codes import CosydError
from pipeline.events import Event, insert_events
from pipeline.paths import StatePaths
from tests.unit.storekit import NOW, new_state, opened

GIB = 1024**3


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


ALL = dict(commands(main))


@pytest.fixture
def state(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


def cosyd(*args: str, paths: StatePaths | None = None, lang: str = "en", **env: str) -> Result:
    """Run a command as a person would, without a traceback hidden by the runner."""
    environ = {"COSYD_LANG": lang, **({"COSYD_STATE_DIR": str(paths.root)} if paths else {}), **env}
    result = CliRunner().invoke(main, list(args), env=environ, prog_name="cosyd")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("path", ALL, ids=" ".join)
@pytest.mark.parametrize(("lang", "heading"), [("en", "Example"), ("zh", "示例")])
def test_every_help_says_what_it_does_and_has_an_example(
    path: tuple[str, ...], lang: str, heading: str
) -> None:
    result = cosyd(*path, "--help", lang=lang)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"{heading}:" in lines
    example = lines[lines.index(f"{heading}:") + 1].strip()
    assert example.startswith("cosyd ")
    first = next(line for line in lines[1:] if line.strip())
    assert bool(re.search(r"[\u4e00-\u9fff]", first)) == (lang == "zh")
    assert "cli." not in result.stdout
    assert "opt_" not in result.stdout


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_example_is_a_command_line_that_parses(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: Any = ALL[path]
    words = shlex.split(command.example)[1:]
    monkeypatch.chdir(tmp_path)
    for name in (word for word in words if Path(word).suffix and "/" not in word):
        Path(name).touch()  # some options want a file that is there
    current: click.Command = main
    while isinstance(current, click.Group) and (words or not current.invoke_without_command):
        found = current.get_command(click.Context(current), words.pop(0))
        assert found is not None
        current = found
    with current.make_context(current.name or "", words) as context:
        assert context.command is current


@pytest.mark.parametrize(
    "name", ["status", "why", "history", "voices", "doctor", "key list", "admin profile show"]
)
def test_commands_for_programs_take_json(name: str) -> None:
    assert any(param.name == "as_json" for param in ALL[tuple(name.split())].params)


def test_state_is_taken_by_every_command_that_has_an_instance() -> None:
    leaves = {path: c for path, c in ALL.items() if not isinstance(c, click.Group)}
    without = {path for path, c in leaves.items() if "paths" not in {p.name for p in c.params}}
    assert without == {
        ("admin", "profile", "check"),
        ("admin", "policy", "replay"),
        ("voices", "styles"),
    }


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nonsense"], 2, "nonsense"), (["say"], 2, "TEXT"), (["say", "..."], 2, "nothing to say"),
        (["say", ""], 2, "nothing to say"), (["say", "hi", "--voice", "nobody"], 2, "heart"),
        (["say", "hi", "--voice", "../x"], 2, "no voice"),
        (["say", "hi", "--speed", "9"], 2, "between 0.25 and 4"),
        (["say", "hi", "--speed", "nan"], 2, "speed"), (["say", "hi", "--speed", "fast"], 2, "--speed"),
        (["say", "hi", "--seed", "-1"], 2, "seed"),
        (["say", "hi", "--language", "english!"], 2, "not a language"),
        (["say", "hi", "--format", "doc"], 2, "doc"), (["say", "hi", "-o", "x.doc"], 2, "mp3"),
        (["say", "hi", "-o", "/no/such/folder/x.wav"], 2, "/no/such/folder"),
        (["say", "hi", "--json"], 2, "-o FILE"),
        (["history", "--limit", "0"], 2, "--limit"), (["restart"], 2, "engine"),
        (["restart", "moon"], 2, "moon"),
        (["run", "--set", "x"], 78, "key=value"), (["run", "--set", "web.prt=1"], 78, "web.port"),
        (["run", "--lan", "--host", "10.0.0.1"], 2, "--host"), (["run", "--port", "70000"], 2, "--port"),
        (["run", "--config", "/no/such/file"], 78, "/no/such/file"),
        (["run", "--profile", "gpu-99g"], 2, "gpu-99g"),
        (["key", "revoke", "nope"], 2, "cosyd key list"), (["key", "add", " "], 2, "name"),
        (["admin", "profile", "check", "/no/such/file"], 78, "/no/such/file"),
        (["status"], 75, "cosyd run"), (["restart", "engine"], 75, "cosyd run"),
    ],
)  # fmt: skip
def test_errors_go_to_stderr_with_a_cure_and_an_exit_status_by_cause(
    state: StatePaths, args: list[str], code: int, said: str
) -> None:
    for lang in ("en", "zh"):
        result = cosyd(*args, paths=state, lang=lang)
        assert result.exit_code == code, result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        if lang == "en":
            assert said in result.stderr
        elif code == 78:
            assert all(re.search("[一-鿿]", line) for line in result.stderr.splitlines()), result.stderr


def test_a_fault_of_ours_is_told_without_a_traceback(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the reason")

    monkeypatch.setattr(why, "read_story", broken)
    result = cosyd("why", paths=state)
    assert result.exit_code == 70
    assert "the reason" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_ends_clean(state: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(why, "read_story", interrupted)
    result = cosyd("why", paths=state)
    assert (result.exit_code, result.stderr.strip()) == (130, "Stopped.")


def test_a_newer_database_is_refused_and_left_alone(state: StatePaths) -> None:
    conn = opened(state)
    conn.execute("PRAGMA user_version=999")
    conn.close()
    before = state.database.read_bytes()
    for args in (["why"], ["history"], ["key", "list"], ["login-link"]):
        result = cosyd(*args, paths=state)
        assert result.exit_code == 75, result.stderr
        assert "999" in result.stderr
    assert state.database.read_bytes() == before


# -- run ---------------


def test_run_becomes_the_supervisor_with_every_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(run.os, "execv", lambda program, argv: started.append(argv))
    config = tmp_path / "my.toml"
    config.write_text("keep_alive = '5 min'\n")
    result = cosyd(
        "run", "--state", str(tmp_path), "--config", str(config), "--port", "0", "--lan",
        "--profile", "gpu-4g",
        "--set", "lease_s=20", "--set", "web.default_voice=heart",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    # A start that comes back gives Ctrl+C back, or every process from here on would be deaf to it.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    [argv] = started
    assert argv[1:3] == ["-m", "daemon.supervisor"]
    options = parse_options(argv[3:])  # the supervisor's own parser
    assert (options.state, options.config, options.lan) == (tmp_path, config, True)
    assert dict(options.flags.values) == {
        "profile": "gpu-4g", "web.port": 0, "lease_s": "20", "web.default_voice": "heart",
    }  # fmt: skip


# -- say ---------------


@pytest.mark.parametrize(
    ("chosen", "name", "format"),
    [
        (None, None, "wav"), (None, "a.mp3", "mp3"), (None, "a.WAV", "wav"), (None, "a.m4a", "aac"),
        (None, "a.ogg", "opus"), (None, "a.raw", "pcm"), (None, "noending", "wav"), ("flac", "a.mp3", "flac"),
        (None, "a.b.opus", "opus"),
    ],
)  # fmt: skip
def test_the_format_follows_the_flag_then_the_ending(
    chosen: str | None, name: str | None, format: str
) -> None:
    assert choose_format(chosen, Path(name) if name else None) == format


def test_an_ending_that_is_no_format_names_those_there_are() -> None:
    with pytest.raises(CosydError) as caught:
        choose_format(None, Path("a.txt"))
    assert caught.value.code == "unknown_format"


def test_text_from_stdin_that_is_not_utf8_is_told(state: StatePaths) -> None:
    result = CliRunner().invoke(
        main, ["say", "-"], input=b"\xff\xfe", env={"COSYD_LANG": "en", "COSYD_STATE_DIR": str(state.root)}
    )
    assert result.exit_code == 2
    assert "UTF-8" in result.stderr


@pytest.mark.parametrize("only", [command[0] for command in player.PLAYERS])
def test_whichever_player_is_there_is_used(only: str) -> None:
    command = player.find_player(lambda name: f"/usr/bin/{name}" if name == only else None)
    assert command is not None
    assert command[0] == only


def test_without_a_player_it_says_what_to_install(state: StatePaths) -> None:
    result = cosyd("say", "hi", "--play", paths=state, PATH="/nonexistent")
    assert result.exit_code == 2
    assert "alsa-utils" in result.stderr


# -- status ---------------

STATE: dict[str, Any] = {
    "pid": 7, "level": "LOW",
    "ram": {"available_bytes": 2 * GIB, "total_bytes": 16 * GIB, "level": "LOW"},
    "vram": {"free_bytes": None, "total_bytes": 4 * GIB, "level": "OK", "name": "RTX 3050"},
    "swap": {"used_bytes": 0, "total_bytes": 8 * GIB},
    "engines": {
        "builtin": {"state": "ready", "rss_bytes": 200 * 1024**2, "queued": 2, "running": 1},
        "cosyvoice3": {"state": "waiting_memory", "code": "waiting_memory", "params": {"short_bytes": GIB},
                       "wait_reason": "waiting_memory"},
    },
    "web": {"state": "ready", "rss_bytes": 150 * 1024**2},
    "pressure": {"foreign": [{"name": "ollama", "bytes": int(7.8 * GIB)}]},
}  # fmt: skip


def test_status_shows_levels_memory_engines_and_queue(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status.control, "status", lambda paths: STATE)
    result = cosyd("status", paths=state, COLUMNS="200")
    assert result.exit_code == 0
    out = result.stdout
    for expected in ("getting tight", "2 GB of 16 GB free", "RTX 3050", "unknown", "2 waiting, 1 speaking",
                     "(RAM or VRAM, 1 GB short)", "ollama, 7.8 GB", "200 MB",
                     "0 B of 8 GB used"):  # fmt: skip
        assert expected in out, expected
    zh = cosyd("status", paths=state, lang="zh", COLUMNS="200").stdout
    for expected in (
        "偏低",
        "语音引擎 builtin",
        "就绪",
        "还差 1 GB",
        "ollama 占用内存或显存 7.8 GB",
        "2 个排队",
    ):
        assert expected in zh, expected


@pytest.mark.parametrize(
    ("engines", "web", "able"),
    [
        ({}, "ready", True), ({"a": "absent"}, "ready", True), ({"a": "failed", "b": "ready"}, "ready", True),
        ({"a": "failed"}, "ready", False), ({"a": "backoff", "b": "waiting_memory"}, "ready", False),
        ({"a": "ready"}, "failed", False), ({"a": "starting"}, "starting", True),
    ],
)  # fmt: skip
def test_status_succeeds_only_when_cosyd_can_speak(
    engines: dict[str, str], web: str, able: bool, state: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"engines": {name: {"state": s} for name, s in engines.items()}, "web": {"state": web}}
    monkeypatch.setattr(status.control, "status", lambda paths: found)
    assert status.can_speak(found) is able
    result = cosyd("status", "--json", paths=state)
    assert result.exit_code == (0 if able else 75)
    assert json.loads(result.stdout)["can_speak"] is able


def test_status_json_of_nothing_running(state: StatePaths) -> None:
    assert json.loads(cosyd("status", "--json", paths=state).stdout) == {"running": False, "can_speak": False}


# -- why ---------------


def tell(paths: StatePaths, *events: Event) -> None:
    conn = opened(paths)
    insert_events(conn, events)
    conn.close()


def test_why_tells_the_last_act_with_its_numbers_and_what_led_to_it(state: StatePaths) -> None:
    tell(
        state,
        Event(NOW - 4000, "trim_failed", freed_bytes=0),
        Event(NOW - 5, "level_changed", params={"resource": "ram", "old": "OK", "new": "CRITICAL"}),
        Event(NOW, "worker_killed", code="waiting_memory",
              params={"child": "worker:builtin", "reason": "RAM 92 MB"},
              ram_available_bytes=92 * 1024**2, vram_free_bytes=3 * GIB),
        Event(NOW + 1, "worker_started", params={"engine": "builtin"}),
        Event(NOW + 2, "worker_ready", params={"engine": "builtin"}),
    )  # fmt: skip
    en = cosyd("why", paths=state).stdout
    assert "The voice engine builtin was ended by force (RAM 92 MB)." in en
    assert "RAM 92 MB, VRAM 3 GB" in en
    assert "RAM went from OK to very tight." in en
    assert "Freeing memory did not help" not in en  # an hour earlier is another story
    zh = cosyd("why", paths=state, lang="zh").stdout
    assert "语音引擎 builtin 被强制结束（RAM 92 MB）。" in zh
    assert "内存从正常变为告急。" in zh
    told = json.loads(cosyd("why", "--json", paths=state).stdout)
    assert [event["kind"] for event in told] == ["level_changed", "worker_killed"]
    assert told[-1]["ram_available_bytes"] == 92 * 1024**2


def test_why_without_any_act_says_so(state: StatePaths, tmp_path: Path) -> None:
    tell(state, Event(NOW, "started"), Event(NOW + 1, "ready"))
    result = cosyd("why", paths=state)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing by itself" in result.stderr
    assert cosyd("why", "--state", str(tmp_path / "never")).exit_code == 0


def test_commands_that_only_look_make_no_state_folder(tmp_path: Path) -> None:
    folder = tmp_path / "never"
    for args in (["status"], ["why"], ["history"], ["voices"], ["doctor"], ["admin", "profile", "show"]):
        cosyd(*args, "--state", str(folder))
        assert not folder.exists(), args


# -- keys ---------------


def test_a_key_is_made_shown_once_listed_and_closed(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "fresh", {})  # keys may come before the first start
    made = cosyd("key", "add", "Open WebUI", paths=paths)
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    conn = opened(paths)
    found = check_api_key(conn, secret)
    assert found is not None
    listed = cosyd("key", "list", paths=paths)
    assert secret not in listed.stdout
    [entry] = json.loads(cosyd("key", "list", "--json", paths=paths).stdout)
    assert (entry["id"], entry["name"], entry["revoked_at"]) == (found.id, "Open WebUI", None)
    assert cosyd("key", "revoke", found.id, paths=paths).exit_code == 0
    assert check_api_key(conn, secret) is None
    assert cosyd("key", "revoke", found.id, paths=paths).exit_code == 2
    conn.close()


def test_a_login_link_works_once(state: StatePaths) -> None:
    result = cosyd("login-link", paths=state)
    link = result.stdout.strip()
    assert link.startswith("http://127.0.0.1:7860/login?token=")
    conn = opened(state)
    token = link.partition("token=")[2]
    assert redeem_login_token(conn, token, time.time())
    assert redeem_login_token(conn, token, time.time()) is None
    conn.close()


# -- admin ---------------


def test_profile_show_says_where_each_value_comes_from(state: StatePaths) -> None:
    conn = opened(state)
    conn.execute("INSERT INTO settings(key, value) VALUES ('keep_alive', '5 min'), ('access:login:x', '{}')")
    conn.close()
    shown = json.loads(
        cosyd("admin", "profile", "show", "--json", paths=state, COSYD_WEB__PORT="9000").stdout
    )
    assert shown["keep_alive"] == {"value": 300.0, "origin": "settings"}
    assert shown["web.port"] == {"value": 9000, "origin": "environment"}
    assert shown["lease_s"]["origin"] == "default"


def test_profile_check_tells_every_mistake_and_exits_78(tmp_path: Path) -> None:
    wrong = tmp_path / "cosyd.toml"
    wrong.write_text("kep_alive = 1\n[web]\nport = 'x'\n")
    result = cosyd("admin", "profile", "check", str(wrong))
    assert result.exit_code == 78
    assert "kep_alive" in result.stderr
    assert "web.port" in result.stderr
    wrong.write_text("keep_alive = '5 min'\n")
    assert cosyd("admin", "profile", "check", str(wrong)).exit_code == 0
