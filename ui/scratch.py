"""The temporary files of one web process: a folder of its own, gone with it.

While the page is recycled two webs run at once, and the one that ends must not take the other's files along.
Everything temporary goes there (uploads, Gradio's files, recordings in other formats, `tempfile`), so that it
lies on the disk that `limits.tmp_bytes` bounds, and never in a /tmp that may be memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "web-"
CLOSE_TRIES = 10


def scratch_of(tmp: Path, pid: int) -> Path:
    """Where the web with that pid has its files."""
    return tmp / f"{PREFIX}{pid}"


def open_scratch(tmp: Path) -> Path:
    """Make this process's folder and have `tempfile` use it; what webs left that are gone is removed."""
    tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in tmp.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX)
        if not pid.isdigit() or int(pid) == os.getpid() or not _lives(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    mine = scratch_of(tmp, os.getpid())
    mine.mkdir(mode=0o700)
    tempfile.tempdir = os.environ["TMPDIR"] = str(mine)
    return mine


def close_scratch(tmp: Path) -> None:
    """Remove it. Idempotent. Another thread may be putting something there just now, so it is tried again."""
    mine = scratch_of(tmp, os.getpid())
    for _ in range(CLOSE_TRIES):
        shutil.rmtree(mine, ignore_errors=True)
        if not mine.exists():
            return


def _lives(pid: int) -> bool:
    """A pid that is somebody else's by now keeps a folder until cosyd's next start; that does no harm."""
    return Path(f"/proc/{pid}").exists()
