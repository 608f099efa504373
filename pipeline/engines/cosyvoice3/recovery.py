"""Out of memory: told apart from other errors, freed, and gone on from leaner. Called by `engine`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator

from pipeline.engines.base import F32Mono, OutOfMemory
from pipeline.engines.cosyvoice3.errors import ENGINE
from pipeline.engines.cosyvoice3.heap import return_heap
from pipeline.engines.cosyvoice3.plan import Effort

log = logging.getLogger(__name__)


def exhausted(error: BaseException) -> str | None:
    """`ram` or `vram` when that ran out, None for any other error."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return "vram"
    text = str(error)
    if isinstance(error, RuntimeError) and "CUDA" in text and "out of memory" in text:
        return "vram"  # cuBLAS, cuDNN and graphs say it in their own words
    if isinstance(error, RuntimeError) and ("CUBLAS_STATUS_ALLOC_FAILED" in text):
        return "vram"
    if isinstance(error, MemoryError):
        return "ram"
    return "ram" if isinstance(error, RuntimeError) and "can't allocate memory" in text else None


class memory_errors:
    """Turns torch's and Python's out-of-memory into OutOfMemory, with the memory of the failed call freed."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or (resource := exhausted(error)) is None:
            return
        free_all()
        raise OutOfMemory(resource, engine=ENGINE) from error


def free_all() -> None:
    """Give back what nobody refers to."""
    import torch

    gc.collect()
    return_heap()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def leaner_each_time(
    run: Callable[[Effort], Iterator[tuple[int, F32Mono]]],
    effort: Effort,
    on_leaner: Callable[[Effort, str], None],
) -> Iterator[tuple[int, F32Mono]]:
    """`run(effort)`; after an out-of-memory again with less at once, without the samples already given.

    Equal seeds give an equal take, so the listener hears no seam. `on_leaner(effort, resource)` is told
    before each further try and frees what it can. Raises OutOfMemory when nothing leaner is left.
    """
    given: dict[int, int] = {}
    while True:
        skip = dict(given)
        resource = ""
        try:
            with memory_errors():
                for index, chunk in run(effort):
                    known = min(skip.get(index, 0), len(chunk))
                    skip[index] = skip.get(index, 0) - known
                    if known < len(chunk):
                        given[index] = given.get(index, 0) + len(chunk) - known
                        yield index, chunk[known:]
            return
        except OutOfMemory as error:
            resource = error.resource
        # here, not in the handler: the exception's frames keep the failed tensors alive
        leaner = effort.leaner()
        if leaner is None:
            raise OutOfMemory(resource, engine=ENGINE)
        effort = leaner
        log.warning("out of %s: going on with less at once (%s)", resource, effort)
        on_leaner(effort, resource)
