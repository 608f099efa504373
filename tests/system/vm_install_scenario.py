"""Runs inside the virtual machine (tests.system.vm): install.sh on a bare server, over some boots.

Standard library only, as it runs with the system's Python. What it finds goes into /root/result.json, also
when it fails; how far it is goes to the console.
"""

import base64
import http.cookiejar
import json
import os
import subprocess
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RESULT, BEFORE = Path("/root/result.json"), Path("/root/packages.json")
FOLDER = Path("/var/lib/cosyd-swap")
# The Python packages come from a folder, the Debian packages over the network.
ENVIRONMENT = {**os.environ, "HOME": "/root", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels"}
INSTALL = ["./install.sh", "install", "--unattended", "--no-gpu"]


def tell(text: str) -> None:
    """A line on the console."""
    Path("/dev/kmsg").write_text(f"<3>scenario: {text[:200]}\n")


@contextmanager
def timed(found: dict[str, Any], name: str) -> Iterator[None]:
    """A part, and how long it took in seconds."""
    tell(name)
    began = time.monotonic()
    yield
    found.setdefault("took", {})[name] = round(time.monotonic() - began)


def installer(*argv: str) -> dict[str, Any]:
    """Exit status and what it said. Each task is told."""
    process = subprocess.Popen(
        argv, cwd="/root/cosyd", env=ENVIRONMENT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith(("TASK", "fatal", "PLAY")):
            tell(line.rstrip("* \n"))
    return {"status": process.wait(), "said": "".join(said)}


def output(*argv: str) -> str:
    """What a command says."""
    return subprocess.run(argv, capture_output=True, text=True, env=ENVIRONMENT).stdout


def wait_for(check: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true answer. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := check():
            return answer
        time.sleep(1)
    raise TimeoutError(what)


def packages() -> list[str]:
    """Debian packages that are installed."""
    lines = output("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n").splitlines()
    return [line[3:] for line in lines if line[:2] in ("ii", "hi")]


def status(url: str) -> int:
    """Of a GET; redirections are followed with the cookies that they set. 0: no answer."""
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    try:
        with urllib.request.build_opener(cookies).open(url, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def doors() -> dict[str, Any]:
    """Without the link, with it, and with it again."""
    link = json.loads(output("cosyd", "login-link", "--json"))["url"]
    return {"link": link, "answers": [status(url) for url in (link.split("/login")[0], link, link)]}


def say(text: str) -> str:
    """The sound, as base64."""
    done = subprocess.run(["cosyd", "say", text], capture_output=True, env=ENVIRONMENT)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return base64.b64encode(done.stdout).decode()


def swap() -> dict[str, Any]:
    """What the kernel swaps to, and whose the files are."""
    wait_for(lambda: str(FOLDER) in Path("/proc/swaps").read_text(), 600, "swap")
    owners = {}
    for path in (FOLDER, *FOLDER.glob("swap-*")):
        stat = path.stat()
        owners[str(path)] = [stat.st_uid, stat.st_gid, oct(stat.st_mode & 0o777), stat.st_size]
    return {
        "kernel": Path("/proc/swaps").read_text(),
        "files": owners,
        "cosyd": json.loads(output("cosyd", "admin", "swap", "status", "--json")),
    }


def history() -> list[str]:
    """Texts, newest first."""
    return [row["text"] for row in json.loads(output("cosyd", "history", "--json"))]


def first(found: dict[str, Any], plan: dict[str, Any]) -> None:
    """Installed, used, and installed again. Begun anew where the power was cut."""
    wait_for(lambda: output("ip", "route", "show", "default"), 120, "a network")
    if not BEFORE.exists():
        BEFORE.write_text(json.dumps(packages()))
        os.sync()
    found["packages before"] = json.loads(BEFORE.read_text())
    with timed(found, "installation"):
        found["installation"] = installer(*INSTALL)
    found["active"] = output("systemctl", "is-active", "cosyd").strip()
    if found["installation"]["status"]:
        return
    with timed(found, "doors"):
        found["doors"] = doors()
    with timed(found, "sentence"):
        found["sound"] = say(plan["sentence"])
    with timed(found, "swap"):
        found["swap"] = swap()
    pid = output("systemctl", "show", "-P", "MainPID", "cosyd")
    with timed(found, "second installation"):
        found["second installation"] = installer(*INSTALL)
    found["the same process"] = pid == output("systemctl", "show", "-P", "MainPID", "cosyd")
    with timed(found, "text"):
        say(plan["text"])
    found["history"] = history()


def second(found: dict[str, Any], plan: dict[str, Any]) -> None:
    """Back after the power was off; and away."""
    with timed(found, "page after the boot"):
        wait_for(lambda: status("http://127.0.0.1:7860/healthz") == 200, 600, "the page")
    found["history after the boot"] = history()
    with timed(found, "sentence after the boot"):
        found["sound after the boot"] = say(plan["sentence"])
    with timed(found, "swap after the boot"):
        found["swap after the boot"] = swap()
    with timed(found, "removal"):
        found["removal"] = installer("./install.sh", "uninstall")
    found["packages after"] = packages()
    found["left"] = sorted(output(*plan["left"]).split())
    found["units left"] = [
        unit for unit in plan["units"]
        if output("systemctl", "show", "-P", "LoadState", unit).strip() != "not-found"
    ]  # fmt: skip
    found["user left"] = output("getent", "passwd", "cosyd") + output("getent", "group", "cosyd")
    found["swaps left"] = Path("/proc/swaps").read_text().splitlines()[1:]
    found["owner of the database"] = [*os.stat("/var/lib/cosyd/cosyd.db")[4:6]]


def main(plan: dict[str, Any]) -> None:
    """The part that is next."""
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    try:
        (second if found else first)(found, plan)
    except BaseException:
        found["error"] = traceback.format_exc()
    log = ["journalctl", "-q", "-b", "--no-pager", "-o", "short-monotonic"]
    found["journal"] = output(*log, "-u", "cosyd*")[-20000:]
    found["oom kills"] = output(*log, "-k", "-g", "Out of memory")
    RESULT.write_text(json.dumps(found))
    tell("the end")
