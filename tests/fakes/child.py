"""A child that speaks the link protocol and breaks on demand: the supervisor's web or worker in tests.

What it does is read from `fake.json` in the state folder, by name (`web`, `worker:x`), anew in each process:
- `ready`: seconds until `ready`, or `never`; `exit`: a status to end with at once; `fatal`: a code told first
- `deaf`: ignores drain, shutdown and SIGTERM; `mute_after`: seconds after which no heartbeat comes any more
- `job`: holds this job without progress; `rss`, `vram`: bytes told; `trim_to`: `rss` after a trim
- `oom`: says once that this resource ran out
- `grandchild`: starts a process that sleeps; `claim`: takes the queued job of its engine and never ends it
- `die_on`: a method that ends it by SIGKILL; `close_link_after`: closes its link but lives on
Each received message is a line of JSON in `received-NAME.log`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from pipeline import queue
from pipeline.child import adopt, lease_owner
from pipeline.store.db import connect


def main() -> int:
    context = adopt()
    name = f"worker:{sys.argv[2]}" if sys.argv[1:2] == ["--engine"] else "web"
    root = context.paths.root
    plan: dict[str, Any] = {}
    if (root / "fake.json").exists():
        plan = json.loads((root / "fake.json").read_text()).get(name, {})
    if plan.get("grandchild"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "exit" in plan and "fatal" not in plan:
        return int(plan["exit"])
    leave = threading.Event()
    work = threading.Event()
    beat: dict[str, Any] = {
        "rss": plan.get("rss", 50_000_000),
        "job": plan.get("job"),
        "vram": plan.get("vram"),
    }
    if plan.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log = root / f"received-{name.replace(':', '-')}.log"

    def heard(method: str, params: dict[str, Any]) -> Any:
        with log.open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "method": method, "params": params}) + "\n")
        if plan.get("die_on") == method:
            os.kill(os.getpid(), signal.SIGKILL)
        if method in ("drain", "shutdown") and not plan.get("deaf"):
            leave.set()
        if method == "work_available":
            work.set()
        if method == "trim":
            before = beat["rss"]
            beat["rss"] = plan.get("trim_to", before)
            return {"rss_before": before, "rss_after": beat["rss"], "vram_before": None, "vram_after": None}
        return None

    methods = ("drain", "shutdown", "trim", "cancel", "work_available", "state")
    handlers = {m: lambda params, m=m: heard(m, params) for m in methods}  # type: ignore[misc]
    link = context.open_link(handlers, (lambda: None) if "close_link_after" in plan else None)
    link.notify(
        "hello", role=name.partition(":")[0], engine=name.partition(":")[2] or None, pid=os.getpid(), schema=1
    )
    if "fatal" in plan:
        link.notify("fatal", code=plan["fatal"], params={"engine": name})
        return int(plan.get("exit", 75))
    began = time.monotonic()

    def beats() -> None:
        pause = threading.Event()
        while time.monotonic() - began < plan.get("mute_after", float("inf")):
            link.notify(
                "heartbeat",
                rss_bytes=beat["rss"],
                vram_bytes=beat["vram"],
                job=beat["job"],
                segment=0,
                progress_at=1.0,
            )
            if time.monotonic() - began > plan.get("close_link_after", float("inf")):
                link.close()
                return
            pause.wait(context.config.heartbeat_s - time.monotonic() % context.config.heartbeat_s)

    threading.Thread(target=beats, daemon=True).start()
    if plan.get("ready") == "never":
        threading.Event().wait()
    leave.wait(float(plan.get("ready", 0)))
    link.notify(
        "ready",
        capabilities={"modes": ["builtin"]},
        footprint={"rss_bytes": beat["rss"], "vram_bytes": beat["vram"]},
    )
    if plan.get("claim"):
        conn = connect(context.paths.database, "work")
        engine = name.partition(":")[2]
        row = conn.execute("SELECT id FROM jobs WHERE state='queued' AND engine=?", (engine,)).fetchone()
        if row is not None:
            owner = lease_owner(context.instance, os.getpid())
            assert queue.claim(conn, row["id"], owner, time.time(), 60.0) is not None
            beat["job"] = row["id"]
    if "oom" in plan:
        link.notify("oom", resource=plan["oom"], footprint={}, job=None)
    leave.wait()
    if not plan.get("deaf"):
        link.notify("drained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
