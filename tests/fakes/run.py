"""The real supervisor, with fake children unless FAKE_CHILDREN is `no`: `python -m tests.fakes.run FLAGS`.

FAKE_ROOT replaces `/` for the memory reader, so that a test writes the machine's /proc/meminfo. FAKE_CLOCK is
a file with seconds by which the wall clock is ahead, as after a suspend. FAKE_MINUTE is how many seconds a
minute of slow growth has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from daemon import renewal, startup, supervisor
    from daemon.ram_reader import RamReader
    from pipeline.clock import SystemClock

    if root := os.environ.get("FAKE_ROOT"):
        supervisor.RamReader = lambda folder=Path(root): RamReader(folder)  # type: ignore[misc,assignment]
    if ahead := os.environ.get("FAKE_CLOCK"):
        file = Path(ahead)

        class AheadClock(SystemClock):
            def wall(self) -> float:
                return super().wall() + float(file.read_text() or 0)

        startup.SystemClock = AheadClock  # type: ignore[misc]
    if minute := os.environ.get("FAKE_MINUTE"):
        renewal.BUCKET_S = float(minute)
        renewal.SOOTHED_S = 2 * renewal.BUCKET_S
    if os.environ.get("FAKE_CHILDREN") == "no":
        sys.exit(startup.main(sys.argv[1:]))
    fake = ("tests.fakes.child",)
    sys.exit(startup.main(sys.argv[1:], web_module=fake, worker_module=fake))
