"""What the guard saw, as lines of JSON that can go into a bug report: sizes and states, no text, no names.

The first line has the rules (thresholds and times), each further one a look. Written from a ring in memory
by the control method `trace`, read by `daemon.replay`. Names of programs, voices, files and addresses are
not in a sample and so cannot be here; a child is `web` or `worker:ENGINE`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from daemon.sample import OwnProcess, RamReading, Sample, VramReading
from pipeline.codes import CosydError
from pipeline.profile import Config, Layer, resolve, to_json
from pipeline.profile.load import flatten

VERSION = 1
RULES = ("profile", "guard", "lean", "restart", "deadlines", "timeout_factor", "keep_alive")


def header(config: Config) -> str:
    """The rules that the samples were judged by."""
    values = json.loads(to_json(config))
    return json.dumps({"trace": VERSION, "rules": {name: values[name] for name in RULES}})


def encode(sample: Sample, now: float) -> str:
    """One look; `now` is monotonic seconds. Times to the last bit: the loop wakes at the very end of a settle
    time, and a millisecond less would make the replay decide one look later, or never."""
    ram, vram = sample.ram, sample.vram
    return json.dumps(
        {
            "t": now,
            "ram": ram
            and [
                ram.available_bytes,
                ram.total_bytes,
                ram.swap_used_bytes,
                ram.swap_total_bytes,
                ram.stall_ratio,
            ],
            "vram": vram
            and [
                vram.free_bytes,
                vram.total_bytes,
                vram.utilisation_ratio,
                vram.temperature_c,
                vram.power_w,
                vram.throttle_reasons,
            ],
            "own": [
                [
                    p.name,
                    p.pid,
                    p.rss_bytes,
                    p.vram_bytes,
                    int(p.ready),
                    int(p.idle),
                    p.base_rss_bytes,
                    p.age_s,
                    int(p.keep),
                ]
                for p in sample.own
            ],
            "work": sample.work,
        },
        separators=(",", ":"),
    )


def decode(line: str) -> tuple[float, Sample]:
    """The inverse. Raises ValueError for anything else."""
    try:
        found = json.loads(line)
        ram, vram = found["ram"], found["vram"]
        own = tuple(_own(*entry) for entry in found["own"])
        at = float(found["t"])
        if not math.isfinite(at):
            raise ValueError("no time")
        return at, Sample(
            None
            if ram is None
            else RamReading(_whole(ram[0]), _whole(ram[1]), _maybe(ram[2]), _maybe(ram[3]), ram[4]),
            None
            if vram is None
            else VramReading(
                _whole(vram[0]),
                _whole(vram[1]),
                utilisation_ratio=vram[2],
                temperature_c=vram[3],
                power_w=vram[4],
                throttle_reasons=_maybe(vram[5]),
            ),
            own,
            _maybe(found["work"]),
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _own(
    name: str, pid: int, rss: Any, vram: Any, ready: int, idle: int, base: Any, age: float, keep: int
) -> OwnProcess:
    return OwnProcess(
        name=str(name), pid=_whole(pid), rss_bytes=_maybe(rss), vram_bytes=_maybe(vram), ready=bool(ready),
        idle=bool(idle), base_rss_bytes=_maybe(base), age_s=float(age), keep=bool(keep),
    )  # fmt: skip


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number of bytes")
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _whole(value)


def read_trace(lines: Iterable[str]) -> tuple[Config, Iterator[tuple[float, Sample]]]:
    """Rules and looks. Raises CosydError(bad_value) with the number of the line that is none."""
    rest = enumerate(lines, 1)

    def refuse(number: int) -> CosydError:
        return CosydError("bad_value", field="trace", reason="trace_line", line=number)

    number, first = next(rest, (1, ""))
    try:
        found = json.loads(first)
        if found["trace"] != VERSION:
            raise refuse(number)
        rules = found["rules"]
        config = resolve([Layer("trace", flatten(rules))]).config
    except (ValueError, KeyError, TypeError, AttributeError):
        raise refuse(number) from None
    except CosydError:
        raise refuse(number) from None

    def looks() -> Iterator[tuple[float, Sample]]:
        for number, line in rest:
            if line.strip():
                try:
                    yield decode(line)
                except ValueError:
                    raise refuse(number) from None

    return config, looks()
