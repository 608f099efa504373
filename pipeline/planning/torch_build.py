"""Which cards the installed torch can use, told from its files without importing it (500 MB). Pure but for
one small file that is read.

Least compute capability by CUDA version of the wheel, from torch's own build table: CUDA 13 dropped Maxwell,
Pascal and Volta; the 12.8 wheels dropped Maxwell and Pascal; 12.6 and older still have them.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """`cuda` is None for a CPU build."""

    version: str
    cuda: tuple[int, int] | None


def parse_build(text: str) -> TorchBuild | None:
    """From the text of torch/version.py; None when it does not look like one."""
    version = re.search(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", text, re.M)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*['\"](\d+)\.(\d+)", text, re.M)
    if version is None:
        return None
    return TorchBuild(version[1], (int(cuda[1]), int(cuda[2])) if cuda else None)


def installed_build() -> TorchBuild | None:
    """The torch of this environment; None when there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return parse_build((Path(spec.origin).parent / "version.py").read_text("utf-8"))
    except OSError:
        return None


def highest_capability(build: TorchBuild | None) -> Capability | None:
    """The greatest compute capability that `build` has kernels for; None when newer cards can compile theirs,
    or when nothing is known. CUDA 12.6 and older end before Blackwell (`torch_choice` has the sources)."""
    if build is None or build.cuda is None or build.cuda >= (13, 0):
        return None
    return (12, 9) if build.cuda >= (12, 8) else (9, 9)


def lowest_capability(build: TorchBuild | None) -> Capability | None:
    """The least compute capability that `build` has kernels for; None when nothing is known to be excluded
    (no torch yet, or a CPU build, which uses no card)."""
    if build is None or build.cuda is None:
        return None
    if build.cuda >= (13, 0):
        return (7, 5)
    return (7, 0) if build.cuda >= (12, 8) else (5, 0)
