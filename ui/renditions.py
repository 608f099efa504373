"""Finished recordings in another format: encoded on request into bounded scratch space, removed soon after.

A player asks for one file several times (Range), so a rendition is kept for a while after its last use. Files
lie in `renditions` of the process's own folder (`ui.scratch`); the oldest go first when `limits.tmp_bytes` is
reached.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pipeline.audio.encode import EXTENSIONS, encode_file
from pipeline.codes import CosydError
from ui.services import Services

KEPT_S = 60.0
RETRY_AFTER_FULL_S = 10.0


class Renditions:
    """One per web process. `lend` gives a path that stays until it is given back."""

    def __init__(self, services: Services, kept_s: float = KEPT_S) -> None:
        self._services, self._kept_s = services, kept_s
        self.folder = services.scratch / "renditions"
        self._used: Counter[Path] = Counter()
        self._last: dict[Path, float] = {}
        self._locks: dict[Path, asyncio.Lock] = {}

    @asynccontextmanager
    async def lend(self, job_id: str, final: Path, format: str) -> AsyncIterator[Path]:
        """The recording `final` (flac) in `format`. Raises CosydError(not_found | storage_full)."""
        if not final.exists():
            raise CosydError("not_found")
        if format == "flac" and not self._services.tag(job_id):
            yield final
            return
        path = self.folder / f"{job_id}{EXTENSIONS[format]}"
        self._used[path] += 1
        try:
            async with self._locks.setdefault(path, asyncio.Lock()):
                if not path.exists():
                    await self._make(final, format, path, self._services.tag(job_id))
            yield path
        finally:
            self._used[path] -= 1
            self._last[path] = self._services.clock.monotonic()
            self._services.later(self._remove_later(path))

    async def _make(self, final: Path, format: str, path: Path, tag: str) -> None:
        # A wav or pcm is at most 2.5 times its flac in practice; counting 4 keeps the bound a bound.
        self._make_room(final.stat().st_size * (4 if format in ("wav", "pcm") else 1))

        def encode() -> None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            encode_file(final, format, path, tag)

        await self._services.in_audio_thread(encode)

    def _make_room(self, needed: int) -> None:
        limit = self._services.config.limits.tmp_bytes // 2  # the other half is for uploads and Gradio
        files = (
            {p: p.stat().st_size for p in self.folder.glob("*") if p.is_file()}
            if self.folder.exists()
            else {}
        )
        total = sum(files.values())
        for path in sorted(files, key=lambda p: self._last.get(p, 0.0)):
            if total + needed <= limit:
                return
            if not self._used[path]:
                path.unlink(missing_ok=True)
                total -= files[path]
        if total and total + needed > limit:
            raise CosydError(
                "storage_full", retry_after_s=RETRY_AFTER_FULL_S, reason="tmp", free_bytes=limit - total
            )

    async def _remove_later(self, path: Path) -> None:
        await asyncio.sleep(self._kept_s)
        if self._used[path] or self._services.clock.monotonic() - self._last[path] < self._kept_s * 0.9:
            return  # in use again: whoever gives it back last removes it
        path.unlink(missing_ok=True)
        for kept in (self._used, self._last, self._locks):
            kept.pop(path, None)
