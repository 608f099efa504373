"""Runs `gpu_inside` once for each size of card and watches the device from outside. Called by `gpu.sh`.

For each profile a neighbour process takes all of the card but 4, 6 or 12 GB, so that running out is real. The
device's own count of used memory is read by `nvidia-smi` beside it all; the allocator's count and the size of
the context come from within. One JSON object, and a table of targets, come out. torch is not imported here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GIB, MIB = 1024**3, 1024**2
CAPS_GIB = {"gpu-4g": 4, "gpu-6g": 6, "gpu-12g": 12}
WHOLE_S = 460.0
"""What is not begun by then is not begun; `gpu.sh` ends everything a little later."""

LONGEST_S = {"machine": 60.0, "parity": 60.0, "gpu-4g": 170.0, "gpu-6g": 90.0, "gpu-12g": 100.0}


class Watch:
    """Largest and last used memory of the first card, from `nvidia-smi`; nothing where there is none."""

    def __init__(self, command: str | None) -> None:
        self.last: int | None = None
        self.peak: int | None = None
        self._process: subprocess.Popen[str] | None = None
        if command is None:
            return
        self._process = subprocess.Popen(
            [command, "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "20"],
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.last = int(line) * MIB
                self.peak = max(self.peak or 0, self.last)

    def settled(self, seconds: float = 1.0) -> int | None:
        """What is used after things came to rest."""
        if self._process is not None:
            time.sleep(seconds)
        return self.last

    def begin(self) -> int | None:
        """Forget the peak; what is used now."""
        now = self.settled(0.3)
        self.peak = now
        return now

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def start_inside(role: str, args: argparse.Namespace, *more: str, **pipes: Any) -> subprocess.Popen[str]:
    """`gpu_inside` in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.gpu_inside", role, *more]
    if args.dry_run:
        command.append("--dry-run")
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **pipes)


@contextmanager
def neighbour(args: argparse.Namespace, cap_gib: int) -> Iterator[dict[str, Any]]:
    """A process that holds all of the card but `cap_gib`; yields what it says it holds."""
    process = start_inside("neighbour", args, "--cap-gib", str(cap_gib), stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the neighbour ended with {process.wait()}")
        yield json.loads(line)
    finally:
        process.stdin.close()  # its sign to end
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def run_inside(role: str, args: argparse.Namespace, seconds: float, *more: str) -> dict[str, Any]:
    """Its last line of JSON, or what went wrong; what it had measured by then is kept."""
    with tempfile.NamedTemporaryFile(suffix=".json") as partial:
        begin = time.monotonic()
        process = start_inside(role, args, "--partial", partial.name, *more, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=seconds)
            trouble = f"exit {process.returncode}: {err[-1500:]}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            trouble = f"not done after {seconds:.0f} s: {err[-500:]}"
        text = out.splitlines()[-1] if out.strip() and not trouble else ""
        found = json.loads(text) if text else json.loads(Path(partial.name).read_text() or "{}")
        if trouble:
            found["error"] = trouble
        found["wall_s"] = round(time.monotonic() - begin, 1)
        return dict(found)


def one_card(profile: str, args: argparse.Namespace, watch: Watch, seconds: float) -> dict[str, Any]:
    """A profile with the memory of its card, the device's count added."""
    empty = watch.begin()
    with neighbour(args, CAPS_GIB[profile]) as beside:
        before = watch.begin()
        found = run_inside(
            "profile", args, seconds, "--profile", profile, "--free", str(beside["free_bytes"])
        )
        peak, after = watch.peak, watch.settled()
    memory = found.setdefault("memory", {})
    context = memory.get("context_bytes")
    memory["neighbour_bytes"] = beside["held_bytes"]
    memory["free_at_start_bytes"] = beside["free_bytes"]
    if None not in (before, peak):
        memory["device_peak_bytes"] = peak - before  # type: ignore[operator]
        if context is not None:
            memory["device_peak_without_context_bytes"] = memory["device_peak_bytes"] - context
    if None not in (before, after):
        memory["device_left_after_exit_bytes"] = after - before  # type: ignore[operator]
    memory["device_used_when_empty_bytes"] = empty
    return found


def reach(found: Any, path: str) -> Any:
    """`a.b.c` of nested objects, None where it ends early."""
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


TARGETS = (
    ("4 GB: peak without context, bytes", "gpu-4g.memory.peak_without_context_bytes", 1.5 * GIB),
    ("6 GB: peak without context, bytes", "gpu-6g.memory.peak_without_context_bytes", 2.1 * GIB),
    ("4 GB: generations that failed", "gpu-4g.generations.failed", 0),
    ("4 GB: generations not made", "gpu-4g.generations.missing", 0),
    (
        "4 GB: growth of reserved memory over the last half, bytes",
        "gpu-4g.generations.growth_bytes",
        20 * MIB,
    ),
    ("6 GB: LLM step, ms", "gpu-6g.llm.one.step_ms", 3.0),
    ("6 GB: first audio, first request, ms", "gpu-6g.first_audio.first_ms", 250.0),
    ("6 GB: first audio, tenth request, ms", "gpu-6g.first_audio.tenth_ms", 250.0),
    ("6 GB: RTF, one segment", "gpu-6g.whole.one.rtf", 0.10),
    ("12 GB: RTF, 8 segments together", "gpu-12g.whole.many.rtf", 0.03),
    ("4 GB: left after exit, bytes", "gpu-4g.memory.device_left_after_exit_bytes", 16 * MIB),
)


def judge(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target with what was measured; `met` is None where nothing was, and in a dry run."""
    out = []
    known = not results.get("dry_run", False)
    for name, path, limit in TARGETS:
        measured = reach(results, path)
        out.append(
            {
                "name": name,
                "at_most": limit,
                "measured": measured,
                "met": bool(measured <= limit) if known and measured is not None else None,
            }
        )
    return out


def device_peak(found: dict[str, Any]) -> None:
    """The peak that the targets are about: the device's own count, else the allocator's."""
    memory = found.get("memory", {})
    candidates = ("device_peak_without_context_bytes", "allocator_reserved_peak_bytes")
    seen = [memory[name] for name in candidates if memory.get(name) is not None]
    memory["peak_without_context_bytes"] = seen[0] if seen else None


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 when a stage failed, 0 otherwise: a missed target is a result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, tiny sizes: is the script ready?")
    parser.add_argument("--only", action="append", choices=tuple(LONGEST_S), help="may be repeated")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    smi = None if args.dry_run else shutil.which("nvidia-smi")
    if not args.dry_run and smi is None:
        print("No nvidia-smi here: this bench needs an NVIDIA card. Try --dry-run.", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"dry_run": args.dry_run, "note": "same sizes, random weights"}
    if args.dry_run:
        results["note"] = "dry run: a tiny model on a CPU; no figure here means anything"
    watch = Watch(smi)
    try:
        for stage in args.only or LONGEST_S:
            left = WHOLE_S - (time.monotonic() - begin)
            if left < 20:
                results[stage] = {"error": "not begun: the time was up"}
                continue
            seconds = min(LONGEST_S[stage], left - 5)
            if stage in CAPS_GIB:
                results[stage] = one_card(stage, args, watch, seconds)
                device_peak(results[stage])
            else:
                results[stage] = run_inside(stage, args, seconds)
            print(stage, json.dumps(results[stage]), flush=True)
            save(args.json, results)
    finally:
        watch.close()
    results["targets"] = judge(results)
    results["wall_s"] = round(time.monotonic() - begin, 1)
    save(args.json, results)
    for target in results["targets"]:
        mark = {True: "met", False: "MISSED", None: "no verdict"}[target["met"]]
        print(f"{mark:>12}  {target['name']}: {target['measured']} (at most {target['at_most']})")
    failed = [stage for stage in LONGEST_S if "error" in results.get(stage, {})]
    print(f"{results['wall_s']} s" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def save(path: Path | None, results: dict[str, Any]) -> None:
    """After each stage: a run that is ended keeps what it had."""
    if path is not None:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(results, indent=1))
        os.replace(part, path)


if __name__ == "__main__":
    sys.exit(main())
