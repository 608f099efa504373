"""Restart budget and exponential backoff of one child. Pure.

`budget` restarts in `window_s` (CONTRACTS 6), each after a longer pause; then it is over, and the child is
FAILED until a person asks for a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.profile.config import Restart


@dataclass(frozen=True, slots=True)
class Budget:
    """Times (monotonic seconds) of the crashes that were charged and still count."""

    crashes: tuple[float, ...] = ()

    def charge(self, now: float, rules: Restart) -> Budget:
        """One more crash at `now`; crashes older than the window no longer count."""
        return Budget((*(at for at in self.crashes if now - at < rules.window_s), now))

    def refund(self) -> Budget:
        """Take the last charge back (the text was to blame, not the engine)."""
        return replace(self, crashes=self.crashes[:-1])

    def delay_s(self, rules: Restart) -> float | None:
        """The pause before the next start: 0 without a crash, 1, 2, 4 .. max; None when the budget is used
        up."""
        count = len(self.crashes)
        if count == 0:
            return 0.0
        if count > rules.budget:
            return None
        return min(rules.backoff_max_s, rules.backoff_initial_s * 2.0 ** min(count - 1, 60))
