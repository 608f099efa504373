"""`./install.sh try` in fresh Debian 12 and 13 systems, as a person would: clone, try, hear, open it.

Needs root, debootstrap and the package registries. Each root is a copy that is deleted afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.speech import transcribe_file, word_error_rate
from tests.system.networks import SERVER_ADDRESS, cable
from tests.system.roots import SUITES, USER, Root, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(1500)]

PARAGRAPH = (
    "The old house at the edge of the village had been empty for many years. In the spring a young family "
    "moved in and opened all the windows. They painted the kitchen yellow, planted beans along the fence, "
    "and found a piano under a dusty cloth in the attic. Every evening somebody played a slow song, and the "
    "neighbours stopped at the gate to listen."
)
SSH = "192.0.2.10 50000 192.0.2.1 22"
APPLYING = """id job_id created_at finished_at status text language mode voice seed speed engine model device
    dtype profile source client audio_path audio_format audio_seconds queue_seconds first_audio_seconds
    synthesis_seconds rtf peak_rss_bytes segments retries stand_in degraded""".split()
"""Columns of `generations` that a finished recording of a built-in voice on a CPU has a value in."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module", params=list(SUITES))
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A fresh system of each suite. The tests below go on from each other's state, in this order."""
    made = Root.fresh(request.param, tmp_path_factory.mktemp("system") / request.param)
    try:
        yield made
    finally:
        made.remove()


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Ctrl+C: the signal goes to the whole foreground group, as a terminal sends it. Nothing may be left."""
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert "left running" not in log.read_text(encoding="utf-8")


def started(root: Root, log: Path, port: int) -> tuple[subprocess.Popen[bytes], float]:
    """`./install.sh try` on `port`, as over SSH, until the page answers: the process and the time."""
    began = time.monotonic()
    process = root.start(
        "./install.sh", "try", "--port", str(port), log=log, env={"SSH_CONNECTION": SSH, "USER": USER}
    )

    def answers() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        try:
            return httpx.get(f"http://127.0.0.1:{port}/", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_for(answers, 600, "the page")
    return process, time.monotonic() - began


def test_without_the_venv_module_the_line_it_prints_mends_it(root: Root) -> None:
    refused = root.run("./install.sh", "try")
    assert refused.returncode == 11, refused.stderr
    line = re.search(r"sudo apt-get install ([\w. -]+?)(?:  |$)", refused.stderr, flags=re.MULTILINE)
    assert line, refused.stderr
    mended = root.run(
        "bash", "-c", f"apt-get update && apt-get install -y --no-install-recommends {line[1]}", user="root"
    )
    assert mended.returncode == 0, mended.stderr


def test_without_a_network_it_says_so_and_what_to_do(root: Root) -> None:
    with cable() as pair:
        refused = root.run("./install.sh", "try", netns=pair.server)
    assert refused.returncode == 12, refused.stdout + refused.stderr
    assert "PIP_NO_INDEX=1" in refused.stderr


def test_a_set_up_that_was_killed_half_way_is_made_good_by_the_next(root: Root, tmp_path: Path) -> None:
    log = root.checkout / ".venv/pip.log"
    process = root.start("./install.sh", "try", "--no-start", log=tmp_path / "killed.log")

    def unpacking() -> bool:
        assert process.poll() is None, (tmp_path / "killed.log").read_text(encoding="utf-8")
        return log.exists() and "Installing collected packages" in log.read_text(encoding="utf-8")

    wait_for(unpacking, 300, "pip to unpack")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    again = root.run("./install.sh", "try", "--no-start")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "interrupted" in again.stdout
    checked = root.run(".venv/bin/python", "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout
    shutil.rmtree(root.checkout / ".venv")  # the next test times a first try


def test_try_as_a_plain_user_speaks_what_was_asked_and_keeps_a_row(root: Root, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "try.log"
    process, seconds = started(root, log, port)
    tunnel = rf"ssh .*-L {port}:(127\.0\.0\.1|localhost):{port} {USER}@192\.0\.2\.1"
    # The page answers a moment before the supervisor has heard that it does.
    wait_for(lambda: re.search(tunnel, log.read_text(encoding="utf-8")), 20, "the tunnel line")
    said = log.read_text(encoding="utf-8")
    assert "English only" in said
    assert "sudo apt-get install espeak-ng ffmpeg" in said
    assert f"http://127.0.0.1:{port}" in said

    reply = httpx.post(
        f"http://127.0.0.1:{port}/v1/audio/speech",
        json={"model": "tts-1", "voice": "alloy", "input": PARAGRAPH, "response_format": "wav"},
        timeout=120,
        trust_env=False,
    )
    assert reply.status_code == 200, reply.text
    error_rate = word_error_rate(PARAGRAPH, transcribe_file(reply.content))
    print(f"\n{SUITES[root.suite]}: first try {seconds:.1f} s to the page, word error rate {error_rate:.1%}")
    assert len(PARAGRAPH.split()) >= 60
    assert error_rate <= 0.03

    def row() -> sqlite3.Row | None:
        with sqlite3.connect(f"file:{root.checkout}/.cosyd/cosyd.db?mode=ro", uri=True) as conn:
            conn.row_factory = sqlite3.Row
            return conn.execute("SELECT * FROM generations").fetchone()

    found = wait_for(row, 10, "the row")
    assert [name for name in APPLYING if found[name] is None] == []
    assert found["status"] == "done"
    assert found["text"] == PARAGRAPH
    assert found["source"] == "openai"
    assert (root.checkout / ".cosyd" / found["audio_path"]).exists() or Path(found["audio_path"]).exists()
    stop(process, log)


def test_a_second_try_runs_no_pip_and_is_up_soon(root: Root, tmp_path: Path) -> None:
    before = (root.checkout / ".venv/pip.log").stat().st_mtime_ns
    log = tmp_path / "second.log"
    port = free_port()
    process, seconds = started(root, log, port)
    stop(process, log)
    with socket.create_server(("127.0.0.1", port)):  # the port is free again
        pass
    print(f"\n{SUITES[root.suite]}: second try {seconds:.1f} s to the page")
    assert (root.checkout / ".venv/pip.log").stat().st_mtime_ns == before
    assert "Already set up." in log.read_text(encoding="utf-8")


def test_the_lan_gets_in_with_the_token_and_not_without(root: Root, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "lan.log"
    with cable() as pair:
        process = root.start("./install.sh", "try", "--lan", "--port", str(port), log=log, netns=pair.server)
        url = f"http://{SERVER_ADDRESS}:{port}/"

        def status() -> int | None:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            return pair.get(url)[0] or None

        assert wait_for(status, 120, "an answer on the LAN") == 401
        assert pair.get(url + "v1/models")[0] == 401
        assert pair.get(url + "v1/models", headers={"Authorization": "Bearer any"})[0] == 401
        shown = rf"http://{re.escape(SERVER_ADDRESS)}:{port}/\S*login\S*"
        link = wait_for(
            lambda: re.search(shown, log.read_text(encoding="utf-8")), 20, "the login link in the log"
        )
        code, body, address = pair.get(link[0])
        assert code == 200, body
        assert SERVER_ADDRESS in address
        assert pair.get(link[0])[0] == 401  # it was a one-time link
        stop(process, log)


@pytest.mark.slow
def test_the_way_without_a_network_that_it_names_works(root: Root) -> None:
    install = "apt-get update -q && apt-get install -qy --no-install-recommends python3-venv"
    prepared = root.run("bash", "-c", install, user="root")
    assert prepared.returncode == 0, prepared.stderr
    fetch = 'python3 -m venv .fetch && .fetch/bin/python -m pip download -d wheels . "setuptools>=77" wheel'
    fetched = root.run("bash", "-c", fetch)
    assert fetched.returncode == 0, fetched.stderr
    shutil.rmtree(root.checkout / ".venv", ignore_errors=True)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"}
    with cable() as pair:
        done = root.run("./install.sh", "try", "--no-start", netns=pair.server, env=offline)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in ("wheels", ".fetch"):
        shutil.rmtree(root.checkout / folder)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_suite_passes_in_the_fresh_system(root: Root) -> None:
    done = root.run("./install.sh", "test", user="root", timeout_s=3500)
    print(done.stdout[-3000:])
    told = (
        done.stdout[done.stdout.find("= FAILURES =") :]
        if "= FAILURES =" in done.stdout
        else done.stdout[-6000:]
    )
    assert done.returncode == 0, told + done.stderr[-2000:]
