"""CosyVoice 3 at full size over many generations: random weights, same sizes.

    python -m tests.bench.cosyvoice3_soak [--folder DIR] [--json FILE] [--stage engine|service] [--count N]

engine    50 generations in one process: resident memory after 50 less that after 5 stays below 20 MB
service   `cosyd run` in a memory cgroup of 4 GB (root): 120 generations, none lost, the last 100 flat

The checkpoint is written into --folder when it is not there (3.4 GB). Exit status 1 when one of these fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.slope import sen_interval, theil_sen

KIT = Path(__file__).parents[1] / "data" / "cosyvoice3"
GRAPHS = ("campplus.onnx", "speech_tokenizer_v3.onnx")
CGROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 4 << 30
GROWTH_BYTES = 20 << 20
SETTLED = 20
"""Generations before a slope is looked at. Each new length of a segment leaves kernels behind, until those
that are kept (`pipeline.planning.environment.PRIMITIVES`) are complete: 15 to 20 MB were seen."""
NOISE_BYTES = 100_000
"""A slope below 25 pages a generation is noise, however sure its interval is."""
TEXTS = ("今天天气很好。", "我们去图书馆。", "Good morning.", "一二三四五六七。", "See you later.")
MB = 1e6


def status_bytes(pid: int | str, *names: str) -> dict[str, int]:
    """Fields of /proc/PID/status in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {f[0][:-1]: int(f[1]) * 1024 for f in lines if f and f[0][:-1] in names}


def full_checkpoint(folder: Path) -> Path:
    """A full-size checkpoint of noise, with the parity kit's two small graphs so that it can enrol."""
    if not all((folder / name).exists() for name in ("hift.pt", *GRAPHS)):  # in this order they are written
        from pipeline.engines.cosyvoice3.random_weights import random_weights

        random_weights(folder, graphs=KIT / "model")
    return folder


def growth(values: list[int]) -> dict[str, Any]:
    """The slope of resident memory a generation once it has settled, and whether it is zero within noise: its
    95 % interval holds zero, or it is smaller than a few pages.

    Looked at are the means of whole rounds of TEXTS: a long text leaves more of the heap in use than a short
    one, and neighbours are alike (the heap's end moves by steps), so single values would count as surer than
    they are. None where there are fewer than four rounds."""
    size = len(TEXTS)
    series = [fmean(values[at : at + size]) for at in range(SETTLED, len(values) - size + 1, size)]
    if len(series) < 4:
        return {"slope_kb": None, "slope_interval_kb": None, "flat": None}
    slope, (low, high) = theil_sen(series) / size, sen_interval(series)
    low, high = low / size, high / size
    return {
        "slope_kb": round(slope / 1e3, 2),
        "slope_interval_kb": [round(low / 1e3, 2), round(high / 1e3, 2)],
        "flat": low <= 0 <= high or abs(slope) < NOISE_BYTES,
    }


# -- one process -------------------------------------------------------------------------------------


def soak_engine(folder: Path, count: int) -> dict[str, Any]:
    """`count` sentences of one engine; RSS after each."""
    import threading

    import numpy as np
    import torch

    from pipeline.engines.base import Options, Segment, VoiceFeatures
    from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine
    from pipeline.profile import Config

    torch.set_num_threads(2)
    engine, never = CosyVoice3Engine(full_checkpoint(folder), folder / "cache"), threading.Event()
    engine.load(Config(), never)
    draw = np.random.default_rng(1)
    voice = VoiceFeatures(
        {
            "speech_tokens": draw.integers(0, 6561, 75).astype(np.int32),
            "prompt_mel": draw.normal(-3, 1, (150, 80)).astype(np.float32),
            "speaker": draw.normal(0, 1, 192).astype(np.float32),
        },
        "a voice",
        "The words.",
    )
    marks: list[dict[str, int]] = []
    audio, begin = 0.0, time.monotonic()
    for number in range(count):
        text = TEXTS[number % len(TEXTS)]
        segment = Segment(0, text, 0, len(text))
        heard = [
            len(c) for c in engine.synthesize(segment, voice, Options(seed=number, mode="zero_shot"), never)
        ]
        audio += sum(heard) / 24_000
        marks.append(status_bytes("self", "VmRSS", "RssAnon", "RssFile"))
    rss = [m["VmRSS"] for m in marks]
    return {
        "generations": count,
        "audio_s": round(audio, 1),
        "s": round(time.monotonic() - begin, 1),
        "rss_mb": [round(r / MB, 1) for r in rss],
        "anonymous_mb": [round(m["RssAnon"] / MB, 1) for m in marks],
        "last_mb": {name: round(size / MB, 1) for name, size in marks[-1].items()},
        "growth_mb": round((rss[-1] - rss[min(4, count - 1)]) / MB, 2),
        "well": rss[-1] - rss[min(4, count - 1)] < GROWTH_BYTES,
    } | growth(rss)


# -- the service in a cgroup -------------------------------------------------------------------------


class Cgroup:
    """A memory cgroup below ours, version 1 or 2."""

    def __init__(self, limit: int) -> None:
        unified = (CGROUPS / "cgroup.controllers").exists()
        base = CGROUPS if unified else CGROUPS / "memory"
        if not unified and not base.is_dir():
            raise OSError("no memory cgroups")
        self._parent = base / own_path("" if unified else "memory").lstrip("/")
        self.folder = self._parent / f"cosyd-soak-{os.getpid()}"
        self.folder.mkdir()
        self._unified = unified
        try:
            (self.folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
        except OSError:
            self.folder.rmdir()
            raise

    def enter(self) -> None:
        """This process and all it starts from now on."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Back, and the group is gone."""
        (self._parent / "cgroup.procs").write_text(str(os.getpid()))
        deadline = time.monotonic() + 20
        while (self.folder / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.folder.rmdir()

    def numbers(self) -> dict[str, int]:
        """Anonymous and mapped bytes now, and how often the kernel killed."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        names = ("anon", "file_mapped") if self._unified else ("total_rss", "total_mapped_file")
        events = (self.folder / ("memory.events" if self._unified else "memory.oom_control")).read_text()
        killed = [int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill ")]
        return {
            "anonymous_bytes": int(stat[names[0]]),
            "mapped_bytes": int(stat[names[1]]),
            "kills": killed[0] if killed else 0,
        }


def own_path(controller: str) -> str:
    """Our cgroup's path for a version 1 controller, or "" for version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == controller or (controller and controller in controllers.split(",")):
            return path
    return "/"


@contextmanager
def limited(limit: int) -> Iterator[Cgroup]:
    """Everything inside runs in a cgroup of `limit` bytes."""
    group = Cgroup(limit)
    try:
        group.enter()
        yield group
    finally:
        group.leave()


def first_start(service: Any, voice: str) -> int:
    """One sentence, asked for again while the answer is 503 (files are converted meanwhile): how often."""
    deadline, busy = time.monotonic() + 900, 0
    while (answer := service.speech(TEXTS[0], voice=voice, seed=1)).status_code == 503:
        assert time.monotonic() < deadline, answer.text
        busy += 1
        time.sleep(float(answer.headers.get("Retry-After", "1")))
    assert answer.status_code == 200, answer.text
    return busy


def soak_service(folder: Path, count: int, limit: int = LIMIT_BYTES) -> dict[str, Any]:
    """`count` generations over HTTP with a cloned voice; memory of worker and group after each. Started as a
    person would, `cosyd run`, with defaults but for the take check; its first start converts the files."""
    from tests.integration.service import Service

    class AsAPerson(Service):
        def command(self) -> list[str]:
            where = ("--state", str(self.state), "--port", str(self.port))
            # random weights make no speech: only silence and noise without end are refused
            return [sys.executable, "-m", "daemon.cli.main", "run", *where, "--set", "take_check=signal"]

    clip = (KIT / "golden" / "prompt_24k.wav").read_bytes()
    state = Path(tempfile.mkdtemp(prefix="cosyd-soak-"))
    env = {"COSYD_MODEL_DIR": str(full_checkpoint(folder))}
    begin = time.monotonic()
    try:
        with limited(limit) as group, AsAPerson(state / "state", env=env) as service:
            service.http.timeout = 600.0  # type: ignore[assignment]
            added = service.http.post(
                "/api/voices",
                data={"name": "Anna", "consent": "own", "transcript": "The words of the clip."},
                files={"audio": ("a.wav", clip)},
                headers={"Origin": service.url},
            )
            assert added.status_code == 201, added.text
            voice = added.json()["id"]
            worker: list[int] = []
            whole: list[int] = []
            web: list[int] = []
            pids: set[int] = set()
            peak = {"anonymous_bytes": 0, "mapped_bytes": 0}
            lost, answers = 0, Counter[int]()
            busy = first_start(service, voice)
            for number in range(count):
                answer = service.speech(TEXTS[number % len(TEXTS)], voice=voice, seed=number)
                answers[answer.status_code] += 1
                if answer.status_code != 200 or len(answer.content) < 4800:
                    lost += 1
                    said = answer.content[:400] if answer.status_code != 200 else len(answer.content)
                    print(number, answer.status_code, said, file=sys.stderr, flush=True)
                process = service.child("cosyvoice3")
                pids.add(process.pid)
                worker.append(status_bytes(process.pid, "VmRSS")["VmRSS"])
                web.append(status_bytes(service.child("ui").pid, "RssAnon")["RssAnon"])
                now = group.numbers()
                whole.append(now["anonymous_bytes"])
                peak = {name: max(peak[name], now[name]) for name in peak}
            rows = service.generations(count + 1)
            slope = growth(worker)
            return slope | {
                "generations": count,
                "busy_answers_during_the_first_start": busy,
                "answers": dict(answers),
                "lost": lost + sum(row["status"] != "done" for row in rows),
                "s": round(time.monotonic() - begin, 1),
                "limit_mb": round(limit / MB),
                "worker_processes": len(pids),
                "kernel_kills": group.numbers()["kills"],
                "worker_rss_mb": [round(size / MB, 1) for size in worker],
                "whole_anonymous_mb": [round(size / MB, 1) for size in whole],
                "web_anonymous_mb": [round(web[0] / MB, 1), round(web[-1] / MB, 1)],
                "whole_anonymous_peak_mb": round(peak["anonymous_bytes"] / MB),
                "whole_mapped_peak_mb": round(peak["mapped_bytes"] / MB),
                "events": sorted(set(service.event_kinds())),
                "well": not lost
                and all(row["status"] == "done" for row in rows)
                and len(pids) == 1
                and slope["flat"] is not False,
            }
    except BaseException:
        print((state / "state.log").read_text("utf-8", "replace")[-4000:], file=sys.stderr)
        raise
    finally:
        shutil.rmtree(state, ignore_errors=True)


def main() -> int:
    """Run the stages, print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cosyd-bench-model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stage", choices=("engine", "service"), action="append")
    parser.add_argument("--count", type=int, help="generations (50 and 120)")
    parser.add_argument(
        "--limit-mb", type=int, default=LIMIT_BYTES >> 20, help="of the service's memory cgroup"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no service is left running
    if importlib.util.find_spec("torch") is None:
        print("not run: torch is not installed (pip install cosyd[cosyvoice])")
        return 0
    results: dict[str, Any] = {}
    for stage in args.stage or ("engine", "service"):
        if stage == "service" and os.geteuid() != 0:
            results[stage] = {"not_run": "needs root for a memory cgroup"}
        elif stage == "service":
            results[stage] = soak_service(args.folder, args.count or SETTLED + 100, args.limit_mb << 20)
        else:
            results[stage] = soak_engine(args.folder, args.count or 50)
        print(stage, json.dumps(results[stage]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 1 if any(not found.get("well", True) for found in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
