"""Takes pieces from an iterator ahead of the reader, so that a reader can wait for the next one with a limit.

An async iterator cannot be left in the middle of a step; a task that fills a short queue can be waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

AHEAD = 4


class Pump:
    """Iterate it, or `get` with a limit. `close` ends the source too; use it as an async context manager."""

    def __init__(self, source: AsyncGenerator[bytes, None]) -> None:
        self._source = source
        self._queue: asyncio.Queue[bytes | BaseException] = asyncio.Queue(AHEAD)
        self._task = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        last: BaseException = StopAsyncIteration()
        try:
            async for piece in self._source:
                await self._queue.put(piece)
        except Exception as error:
            last = error
        await self._queue.put(last)

    async def get(self, timeout_s: float | None = None) -> bytes | None:
        """The next piece; None when there was none within `timeout_s`.

        Raises StopAsyncIteration at the end, or what the source raised.
        """
        try:
            item = await asyncio.wait_for(self._queue.get(), timeout_s)
        except TimeoutError:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.get()
        assert piece is not None
        return piece

    async def close(self) -> None:
        """Stop filling and close the source. Idempotent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._source.aclose()

    async def __aenter__(self) -> Pump:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
