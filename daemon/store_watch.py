"""Is the database still there, the same file, and writable? Looked at each round; what follows from it.

A file that is deleted or moved away stays open in every process: work would go on into nowhere, and whatever
starts anew would die for want of it. So while it is gone, replaced or read-only no child is started, and the
state says so with the cure; page, workers and writer refuse or wait by themselves (`store.db.check_place`).
When it is back all goes on by itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daemon import lifecycle
from daemon.children import Children
from daemon.lifecycle import State
from daemon.loop import Loop
from pipeline.codes import CosydError
from pipeline.messages import error_text, terminal_language
from pipeline.store.db import check_place, file_identity

log = logging.getLogger("cosyd")
ENDED_BY_IT = ("schema_mismatch", "storage_full")
"""Codes with which a child ends that met the trouble before we did."""


class StoreWatch:
    """`changed` tells the state to others. `trouble` is None or `{"code", "params"}` for the state object."""

    def __init__(self, database: Path, loop: Loop, children: Children, changed: Callable[[], None]) -> None:
        self._database, self._loop, self._children, self._changed = database, loop, children, changed
        self._home = file_identity(database)
        self.trouble: Mapping[str, Any] | None = None

    def tick(self) -> None:
        """Three system calls while all is well."""
        before, self.trouble = self.trouble, look(self._database, self._home)
        self._children.held = self.trouble is not None
        if self.trouble == before:
            return
        if self.trouble is not None:
            log.error("%s", error_text("storage_full", terminal_language(), self.trouble["params"]))
        else:
            log.warning("the database can be used again")
            self._revive()
        self._changed()

    def _revive(self) -> None:
        """Who died of it starts again at once: the budget is for their own faults."""
        for slot in [self._children.web, *self._children.workers.values()]:
            if slot.child.state in (State.FAILED, State.BACKOFF) and slot.child.code in ENDED_BY_IT:
                slot.child = lifecycle.forgive(slot.child, self._loop.now())


def look(database: Path, home: tuple[int, int] | None) -> dict[str, Any] | None:
    """What is wrong with the database that was opened as the file `home`."""
    try:
        check_place(database, home)
    except CosydError as error:
        return {"code": error.code, "params": error.params}
    folder = database.parent  # SQLite makes its journal there
    if os.access(database, os.R_OK | os.W_OK) and os.access(folder, os.W_OK | os.X_OK):
        return None
    params = {"reason": "read_only", "file": database.name, "folder": str(folder)}
    return {"code": "storage_full", "params": params}
