"""Environment variables that make a child lean and quick, by what it is and by the profile. Pure.

`daemon.spawn` adds what a child must know (its link, its state folder). What the person set in the
environment wins over everything here but the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.profile import Config

TORCH_ENGINES = frozenset({"cosyvoice3"})

HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
"""glibc gives each thread a heap and a cache of its own and raises its thresholds as blocks come and go: with
many short requests these look like a leak. One heap, no caches and fixed thresholds bring the growth of the
page from 5.7 KB a recording below 1 KB and cost no measurable time."""

TORCH_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""Tensors come and go by the megabyte: fixed thresholds would map each anew (1.4 to 4 times the vocoder's
time), so the engine sets its own (`engines/cosyvoice3/heap.py`)."""

ALLOCATOR = "expandable_segments:True"
"""Segments that grow instead of ones that are cut: else a 4 GB card is full of holes after some texts of
different lengths. Older torch reads PYTORCH_CUDA_ALLOC_CONF, newer PYTORCH_ALLOC_CONF."""

PRIMITIVES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "GOMP_SPINCOUNT": "10000"}
"""Read when the libraries are loaded or first used. oneDNN keeps what it prepared for each shape, 1,024 times
by default: 16 MB for each new length of a segment. 128 hold what a segment uses; with it, and lengths rounded
up, memory is flat. GNU OpenMP's threads spin for milliseconds after each product, and a decoding step has
hundreds: where other programs want the same cores, the thread that is waited for cannot run. With short spins
such products took half the time on 2 cores at load 12 (429 and 643 ms for 970 and 1,174)."""

THREADS_MAX = 16
"""Decoding is bound by memory: further threads only wait for each other."""

GPU_THREADS = 4
"""With a card the CPU computes pitch alone."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a child is. `engine` only for a worker."""

    name: str
    engine: str | None = None


WEB = Role("web")
SHORT = Role("short")
"""Maintenance and migration."""


def worker(engine: str) -> Role:
    """The worker of `engine`."""
    return Role("worker", engine)


def visible_cards(gpu: str) -> dict[str, str]:
    """Which cards a child may see: one by UUID, none, or (`auto`) as the environment says."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # else `nvidia-smi` and CUDA count differently
    if gpu.startswith(("GPU-", "MIG-")):
        return order | {"CUDA_VISIBLE_DEVICES": gpu}
    return order | {"CUDA_VISIBLE_DEVICES": ""} if gpu == "none" else order


def settings(role: Role, config: Config, cores: int) -> dict[str, str]:
    """What is set unless the person set it. `cores` are the physical ones that this process may use."""
    if role.engine not in TORCH_ENGINES:
        return dict(HEAP)
    on_card = config.gpu != "none"
    threads = str(max(1, min(cores, GPU_THREADS if on_card else THREADS_MAX)))
    found = TORCH_HEAP | PRIMITIVES | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if on_card:
        found |= {"PYTORCH_ALLOC_CONF": ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATOR}
    return found


def child_environment(role: Role, config: Config, cores: int, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with our settings beneath it and the profile's card above it.

    A person who set one of two names of a thing is not overruled by the other: torch reads the newer name of
    the allocator's options first, and MKL its own name for threads.
    """
    ours = settings(role, config, cores)
    for name, other in (
        ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    ):
        if name in ours and other in environ and name not in environ:
            ours[name] = environ[other]
    return ours | dict(environ) | visible_cards(config.gpu)
