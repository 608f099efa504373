"""The real supervisor with fake children: `python -m tests.fakes.run FLAGS`.

FAKE_ROOT replaces `/` for the memory reader, so that a test writes the machine's /proc/meminfo.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from daemon import startup, supervisor
    from daemon.ram_reader import RamReader

    if root := os.environ.get("FAKE_ROOT"):
        supervisor.RamReader = lambda: RamReader(Path(root))  # type: ignore[misc,assignment]
    fake = ("tests.fakes.child",)
    sys.exit(startup.main(sys.argv[1:], web_module=fake, worker_module=fake))
