"""Runs inside the virtual machine (tests.system.vm): leaks, a greedy neighbour, the kernel's OOM killer.

Standard library only, as it runs with the system's Python. The service runs already. What it finds goes into
`found`; the sound of each generation too (compressed), which the test decodes.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1024**2
URL = "http://127.0.0.1:7860"
DATABASE = "/var/lib/cosyd/cosyd.db"
CGROUP = Path("/sys/fs/cgroup/system.slice/cosyd.service")
LEAK_WEB = Path("/var/lib/cosyd/leak-web")
"""MB that the page leaks with each job (`leak_web.py` below, in its site-packages)."""
LEAK_WEB_CODE = f'''
import os
if "COSYD_LISTEN_FDS" in os.environ and os.path.exists("{LEAK_WEB}"):
    import pipeline.acceptance as module
    kept, plain = [], module.accept
    def accept(*words, **more):
        with open("{LEAK_WEB}") as file:
            kept.append(bytearray(os.urandom(4096)) * (int(file.read() or 0) * 256))
        return plain(*words, **more)
    module.accept = accept
'''
HOG = """
import sys, time
kept = bytearray(int(sys.argv[1]))
kept[::4096] = b"1" * len(kept[::4096])
print("full", flush=True)
time.sleep(3600)
"""


def meminfo(name: str) -> int:
    """A number of /proc/meminfo, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def vmstat(name: str) -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def wait_for(check: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true answer. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.25)
    raise TimeoutError(what)


def request(method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Status (0: no answer), body, headers. A connection that a restart of the page breaks is no answer."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=240) as answer:
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {k.lower(): v for k, v in error.headers.items()}
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, str(error).encode(), {}


def healthy() -> bool:
    return request("GET", "/healthz")[0] == 200


def speak(text: str) -> dict[str, Any]:
    """One generation through POST /api/jobs, as a patient program does it; its sound."""
    began, tries = time.monotonic(), 0
    while True:
        tries += 1
        status, body, _ = request("POST", "/api/jobs", {"v": 1, "text": text, "voice": "numbers"})
        if status in (200, 201, 202):
            break
        assert tries < 200 and status in (0, 503), (status, body[:300])
        time.sleep(1)
    job = json.loads(body)["id"]
    while True:
        status, sound, _ = request("GET", f"/api/jobs/{job}/audio?format=pcm")
        if status == 200 and state_of(job) == "done":
            break
        assert status in (0, 200, 503), (status, sound[:300])
        assert time.monotonic() - began < 600, "never spoken"
        time.sleep(0.5)
    packed = base64.b64encode(zlib.compress(sound, 1)).decode()
    return {"text": text, "job": job, "tries": tries, "s": time.monotonic() - began, "sound": packed}


def rows(query: str, *words: Any) -> list[dict[str, Any]]:
    """A look into the database."""
    conn = sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True, timeout=10)
    conn.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in conn.execute(query, words)]
    finally:
        conn.close()


def state_of(job: str) -> str:
    return str(rows("SELECT state FROM jobs WHERE id = ?", job)[0]["state"])


def events(since: int) -> list[dict[str, Any]]:
    found = rows("SELECT id, at, kind, code, params, ram_available_bytes FROM events WHERE id > ?", since)
    return [{**row, "params": json.loads(row["params"] or "{}")} for row in found]


def last_event() -> int:
    return int(rows("SELECT max(id) AS n FROM events")[0]["n"] or 0)


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request("GET", "/api/state")[1])
    return found


def groups() -> dict[str, dict[str, str]]:
    """The cgroups of the service, with what matters of each."""
    return {
        folder.name: {
            name: (folder / name).read_text().strip()
            for name in ("cgroup.procs", "memory.high", "memory.peak", "memory.events")
        }
        for folder in CGROUP.iterdir()
        if folder.is_dir()
    }


def generations(count: int, text: str) -> dict[str, Any]:
    """`count` texts one after the other; `{n}` is their number."""
    since, began, least, kills = last_event(), time.monotonic(), [], vmstat("oom_kill")
    spoken = []
    for n in range(1, count + 1):
        spoken.append(speak(text.format(n=n)))
        least.append(meminfo("MemAvailable"))
        print(n, round(spoken[-1]["s"], 1), least[-1] // MIB, flush=True)
    return {
        "spoken": spoken, "events": events(since), "s": time.monotonic() - began, "available": least,
        "oom_kills": vmstat("oom_kill") - kills,
    }  # fmt: skip


def foreign() -> dict[str, Any]:
    """A neighbour takes nearly all, stays a while, and goes."""
    since, kills = last_event(), vmstat("oom_kill")
    before = {name: engine["restarts"] for name, engine in status()["engines"].items()}
    Path("/root/greedy.py").write_text(HOG)
    size = meminfo("MemAvailable") - 120 * MIB
    hog = subprocess.Popen(
        ["python3", "/root/greedy.py", str(size)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    found: dict[str, Any] = {"size": size}
    try:
        assert hog.stdout is not None
        hog.stdout.readline()
        wait_for(lambda: any(e["kind"] == "foreign_pressure" for e in events(since)), 60, "foreign_pressure")
        wait_for(lambda: (status().get("pressure") or {}).get("foreign"), 30, "the page knows")
        wait_for(lambda: status()["ram"]["level"] == "critical", 30, "very tight")
        code, body, headers = request(
            "POST", "/v1/audio/speech", {"model": "tts-1", "voice": "numbers", "input": "Number 5."}
        )
        found |= {"status": code, "body": body.decode("utf-8", "replace"), "headers": headers}
        time.sleep(20)  # a while of it: no restarts in circles
        found["level"] = status()["level"]
    finally:
        hog.kill()
        hog.wait()
    wait_for(lambda: status()["level"] == "ok", 60, "calm")
    found["events"] = events(since)
    found["restarts"] = {
        name: engine["restarts"] - before[name] for name, engine in status()["engines"].items()
    }
    found["oom_kills"] = vmstat("oom_kill") - kills
    found["after"] = speak("Number 6 comes after.")
    return found


def killed_by_the_kernel() -> dict[str, Any]:
    """The kernel's OOM killer takes a worker in the middle of a text: it is told as that."""
    wait_for(lambda: status()["level"] == "ok", 240, "calm after the leaks")
    since = last_event()
    speak("Number 7 warms it up.")
    worker = next(folder for folder in CGROUP.glob("worker-*") if (folder / "cgroup.procs").read_text())
    used = int((worker / "memory.current").read_text())
    subprocess.run(["swapoff", "-a"], check=False)
    (worker / "memory.max").write_text(str(used + 16 * MIB))
    spoken = speak("[leak 60MB] Number 8 does not fit the first time.")
    return {"spoken": spoken, "events": events(since), "left": sorted(groups())}


def prepare() -> None:
    """Before the service starts: its page learns to leak, nothing at first."""
    site = next(Path("/opt/cosyd/venv/lib").glob("python3*/site-packages"))
    (site / "leak_web.py").write_text(LEAK_WEB_CODE)
    (site / "leak_web.pth").write_text("import leak_web\n")
    LEAK_WEB.parent.mkdir(exist_ok=True)
    shutil.chown(LEAK_WEB.parent, "cosyd", "cosyd")
    LEAK_WEB.write_text("0")


def run(found: dict[str, Any], plan: list[tuple[int, int, int]]) -> None:
    """All of it, on a service that is started. `plan`: generations with a leak in the engine, in the page,
    and how many MB each leaks."""
    wait_for(healthy, 300, "the page")
    found["groups"] = groups()
    speak("Number 1 loads the engine.")
    found["foreign"] = foreign()
    found["worker leaks"] = [
        generations(count, f"[leak {leak_mb}MB] Number {{n}} is said.") for count, _, leak_mb in plan
    ]
    found["killed"] = killed_by_the_kernel()
    found["groups in use"] = groups()
    found["web leaks"] = []
    for _, count, leak_mb in plan:
        LEAK_WEB.write_text(str(leak_mb))
        found["web leaks"].append(generations(count, "Number {n} is said."))
        LEAK_WEB.write_text("0")
    found["reloaded"] = subprocess.run(["systemctl", "reload", "cosyd"]).returncode
    subprocess.run(["systemctl", "restart", "cosyd"], check=True, timeout=300)
    found["groups again"] = sorted(groups())
    found["active"] = subprocess.run(
        ["systemctl", "is-active", "cosyd"], capture_output=True, text=True
    ).stdout.strip()
