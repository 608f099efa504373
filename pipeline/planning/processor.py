"""What this processor multiplies in hardware, as /proc/cpuinfo says."""

from __future__ import annotations

from pathlib import Path


def _flags(root: Path) -> frozenset[str]:
    try:
        lines = (root / "proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines if line.startswith("flags") for word in line.split())


def fast_bf16(root: Path = Path("/")) -> bool:
    """Whether bf16 is quicker than fp32 here."""
    return bool(_flags(root) & {"amx_bf16", "avx512_bf16"})


def int8_units(root: Path = Path("/")) -> bool:
    """Whether there are units for int8 matrices: AMX, where it was measured. By the processor and not by a
    race of two kernels, so that a seed gives the same speech after every start."""
    return "amx_int8" in _flags(root)
