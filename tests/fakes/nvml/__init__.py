"""Builds the fake libnvidia-ml.so.1 (nvml.c), and writes the script it answers from.

The real binding (`pynvml`) loads it through LD_LIBRARY_PATH, so that everything between NVML's C interface
and the supervisor is the real thing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
MIB, GIB = 1024**2, 1024**3
VERSION = "580.95.05"


def build(folder: Path, version: str = VERSION) -> Path:
    """Compile into `folder`, with the names that a driver package gives; the folder for LD_LIBRARY_PATH.
    Raises AssertionError without a C compiler: CI has one, and what needs it must not be skipped unseen."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed: apt install gcc libc6-dev"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"libnvidia-ml.so.{version}"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE],
        check=True,
    )
    link = folder / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    return folder


@dataclass
class FakeCard:
    """A card or a slice; None is what this card does not support."""

    uuid: str = "GPU-aaaa"
    total: int = 6 * GIB
    free: int = 5 * GIB
    reserved: int = 0
    util: int | None = 0
    temp: int | None = 41
    power: int | None = 14000
    reasons: int | None = 0
    cc: int | None = 86
    name: str = "Fake"
    lost: bool = False
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    slices: list[FakeCard] = field(default_factory=list)

    def lines(self, word: str = "card") -> Iterable[str]:
        """Its lines in the script."""
        given = {
            n: getattr(self, n) for n in ("total", "free", "reserved", "util", "temp", "power", "reasons")
        }
        given |= {"cc": self.cc, "mig": 1 if self.slices else None, "name": self.name}
        given |= {"lost": 1} if self.lost else {}
        yield " ".join([word, self.uuid, *(f"{k}={v}" for k, v in given.items() if v is not None)])
        for pid, size in self.processes:
            yield f"process {pid} {'na' if size is None else size}"
        for pid, size in self.graphics:
            yield f"process {pid} {'na' if size is None else size} graphics"
        for part in self.slices:
            yield from part.lines("mig")


@dataclass
class FakeNvml:
    """The script. `write` puts it in place at once, also under a program that runs."""

    library: Path
    script: Path
    cards: list[FakeCard] = field(default_factory=lambda: [FakeCard()])
    errors: dict[str, int] = field(default_factory=dict)
    delays_ms: dict[str, int] = field(default_factory=dict)
    crash: str = ""
    driver: str = VERSION
    epoch: int = 1

    def write(self) -> None:
        """Atomically, as it is read in the middle of anything."""
        lines = [f"driver {self.driver}", f"epoch {self.epoch}"]
        lines += [f"error {name} {code}" for name, code in self.errors.items()]
        lines += [f"delay {name} {ms}" for name, ms in self.delays_ms.items()]
        lines += [f"crash {self.crash}"] if self.crash else []
        for card in self.cards:
            lines += card.lines()
        part = self.script.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self.script)

    @property
    def log(self) -> Path:
        return self.script.with_suffix(".log")

    def calls(self, name: str = "") -> int:
        """How often a function (or any) was called so far."""
        lines = self.log.read_text().split() if self.log.exists() else []
        return sum(1 for line in lines if name in ("", line))

    def environment(self) -> dict[str, str]:
        """What a program needs to find it."""
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML": str(self.script),
            "FAKE_NVML_LOG": str(self.log),
        }

    def environ(self) -> dict[str, str]:
        """The whole environment, ours with it."""
        return dict(os.environ) | self.environment()
