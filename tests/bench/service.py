"""How quick and how small the running service is, in one run, with the machine named.

    python -m tests.bench.service [--requests 50] [--idle 30] [--json FILE]

Start to page, cold and warm first audio over HTTP, real-time factor, memory and CPU of each process at rest.
The baseline of each speed figure is the engine alone in this process, in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from pipeline.engines.base import Options, Segment, open_engine
from pipeline.profile import Config
from tests.bench.resting import at_rest, bare_python
from tests.integration.service import Service, wait_for

SHORT = "The kettle is ready."
PARAGRAPH = (
    "The old house at the edge of the village had been empty for many years. In the spring a young family "
    "moved in and opened all the windows. They painted the kitchen yellow, planted beans along the fence, "
    "and found a piano under a dusty cloth in the attic. Every evening somebody played a slow song, and the "
    "neighbours stopped at the gate to listen."
)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": psutil.cpu_count(),
        "ram_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "load_before": round(psutil.getloadavg()[0], 2),
    }


def engine_alone(requests: int) -> dict[str, float]:
    """First chunk and real-time factor of the built-in engine without any service: the baseline."""
    engine = open_engine("builtin", {})
    stop = threading.Event()
    engine.load(Config(), stop)
    firsts, seconds, took = [], 0.0, 0.0
    for n in range(requests + 2):
        began = time.perf_counter()
        first = None
        for chunk in engine.synthesize(Segment(0, SHORT, 0, len(SHORT)), "heart", Options(seed=n), stop):
            first = first or time.perf_counter() - began
            seconds += len(chunk) / 24_000
        took += time.perf_counter() - began
        if n >= 2 and first is not None:
            firsts.append(first)
    engine.close()
    return {"first_audio_ms": statistics.median(firsts) * 1000, "rtf": took / seconds}


def first_audio(service: Service, text: str) -> tuple[float, float, float]:
    """Seconds to the first body byte, to the last, and seconds of audio."""
    body = {"model": "tts-1", "input": text, "voice": "heart", "response_format": "pcm"}
    began = time.perf_counter()
    first, size = None, 0
    with service.http.stream("POST", "/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        for chunk in response.iter_bytes():
            first = first or time.perf_counter() - began
            size += len(chunk)
    assert first is not None
    return first, time.perf_counter() - began, size / 48_000


def quantile(values: list[float], q: float) -> float:
    """The q-quantile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(requests: int, idle_s: float) -> dict[str, Any]:
    """All figures of one run."""
    report: dict[str, Any] = {"machine": machine(), "engine_alone": engine_alone(requests)}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state", {"engines.extra": ""})
        began = time.perf_counter()
        service.start(wait=False)

        def page() -> bool:
            try:
                return httpx.get(service.url, timeout=2, trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(page, 60, "the page")
        report["start_to_page_s"] = time.perf_counter() - began
        cold, _, _ = first_audio(service, SHORT)
        report["cold_first_audio_ms"] = cold * 1000
        warm = [first_audio(service, SHORT)[0] for _ in range(requests + 3)][3:]
        report["warm_first_audio_ms"] = {
            "median": statistics.median(warm) * 1000,
            "p95": quantile(warm, 0.95) * 1000,
            "over_engine": statistics.median(warm) * 1000 / report["engine_alone"]["first_audio_ms"],
        }
        rtfs = []
        for _ in range(max(3, requests // 10)):
            _, whole, seconds = first_audio(service, PARAGRAPH)
            rtfs.append(whole / seconds)
        report["paragraph_rtf"] = statistics.median(rtfs)
        report["paragraph_rtf_over_engine"] = report["paragraph_rtf"] / report["engine_alone"]["rtf"]
        assert service.process is not None
        family = {
            "supervisor": psutil.Process(service.process.pid),
            "web": service.child("ui"),
            "worker": service.child("pipeline.worker"),
        }
        with bare_python() as bare:
            report["at_rest"] = at_rest({**family, "bare_python": bare}, idle_s)
        service.stop()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = json.dumps(measure(options.requests, options.idle), indent=1)
    print(report)
    if options.json:
        options.json.write_text(report + "\n")


if __name__ == "__main__":
    main()
