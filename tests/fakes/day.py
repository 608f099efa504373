"""A day of the real supervisor in about a minute: `python -m tests.fakes.day FLAGS`, run by
`tests.bench.guard`.

The clock is virtual: after each round of the loop it goes to the next timer. All else is real: the tick, the
readers, the policy, the writer thread and its database, a child with its link. Once an hour memory gets tight
for half a minute, so that the guard has something to do. Prints a JSON line with the RSS through the day.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pipeline.clock import SystemClock

DAY_S = 86400.0
WARM_S = 1800.0
TIGHT_MIB, CALM_MIB = 300, 3000


class DayClock(SystemClock):
    """Real time and a virtual distance."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def rss_bytes() -> int:
    """Of this process."""
    fields = Path("/proc/self/statm").read_text("ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    from daemon import loop, startup, supervisor
    from daemon.ram_reader import RamReader
    from tests.fakes.meminfo import meminfo

    clock = DayClock()
    hours = float(os.environ.get("DAY_HOURS", "24"))
    root = Path(os.environ["FAKE_ROOT"])

    class DayLoop(loop.Loop):
        """Never waits for time, only for what a child may say."""

        def __init__(self, given: object) -> None:
            super().__init__(clock)
            self.seen: dict[str, int] = {}
            self.ticks = 0
            self.began = time.monotonic()
            for hour in range(round(hours)):
                self.later(600.0 + hour * 3600.0, lambda: meminfo(root, TIGHT_MIB))
                self.later(630.0 + hour * 3600.0, lambda: meminfo(root, CALM_MIB))
                self.later((hour + 1) * 3600.0, lambda hour=hour: self.note(f"{hour + 1} h"))  # type: ignore[misc]
            self.later(WARM_S, lambda: self.note("0.5 h"))
            self.later(hours * 3600.0 + 1.0, self.finish)

        def once(self, limit_s: float | None = None) -> None:
            super().once(0.0)
            self.ticks += 1
            if self._timers and not self._posted:
                clock.ahead += max(0.0, self._timers[0].when - self.now())

        def note(self, name: str) -> None:
            self.seen[name] = rss_bytes()

        def finish(self) -> None:
            print(
                json.dumps({"rss": self.seen, "rounds": self.ticks, "real_s": time.monotonic() - self.began}),
                flush=True,
            )
            os.kill(os.getpid(), 15)

    supervisor.Loop = DayLoop  # type: ignore[misc,assignment]
    supervisor.RamReader = lambda: RamReader(root)  # type: ignore[misc,assignment]
    startup.SystemClock = lambda: clock  # type: ignore[misc,assignment]
    fake = ("tests.fakes.child",)
    return startup.main(sys.argv[1:], web_module=fake, worker_module=fake)


if __name__ == "__main__":
    sys.exit(main())
