"""The installed service as systemd sees it: stop, start, and is it really back? For `cosyd restore` and
`cosyd update`, which must not leave a household without speech.

Ready is more than systemd's "active": the page answers and something can speak.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from daemon.cli import control
from daemon.cli.frame import PACKAGED_ROOT
from daemon.cli.status import can_speak
from pipeline.codes import CosydError
from pipeline.paths import StatePaths

UNIT = "cosyd.service"
SYSTEMCTL_S = 400.0
"""Above TimeoutStartSec of the unit, which makes and migrates a database before it is ready."""
READY_S = 180.0
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Appliance:
    """The unit that runs on a state folder."""

    paths: StatePaths
    unit: str = UNIT

    @classmethod
    def of(cls, paths: StatePaths) -> Appliance | None:
        """The service of the packaged state folder, where we may stop and start it; else None."""
        if paths.root != PACKAGED_ROOT or os.geteuid() != 0 or shutil.which("systemctl") is None:
            return None
        found = cls(paths)
        told = found._systemctl("show", "--property=LoadState", "--value", found.unit)
        return found if told.stdout.strip() == "loaded" else None

    def active(self) -> bool:
        """Does it run, or is it about to?"""
        told = self._systemctl("show", "--property=ActiveState", "--value", self.unit)
        return told.stdout.strip() in ("active", "activating", "reloading")

    def stop(self) -> None:
        """In order: what is being spoken goes back to the queue. Raises CosydError(internal)."""
        self._must("stop", self.unit)

    def start(self) -> bool:
        """Start it; False when systemd says that it did not come up."""
        self._systemctl("reset-failed", self.unit)
        return self._systemctl("start", self.unit).returncode == 0

    def wait_ready(self, timeout_s: float = READY_S, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Until the page answers and something can speak; False when it does not in time, or ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._ready():
                return True
            if not self.active():
                return False
            sleep(LOOK_S)
        return False

    def _ready(self) -> bool:
        try:
            found = control.status(self.paths)
        except CosydError:
            return False
        web = ((found or {}).get("web") or {}).get("state")
        return found is not None and web == "ready" and can_speak(found)

    def _systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["systemctl", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_S,
            check=False,
        )

    def _must(self, *words: str) -> None:
        done = self._systemctl(*words)
        if done.returncode != 0:
            raise CosydError("internal", reason="systemctl", detail=done.stderr.strip()[-300:])
