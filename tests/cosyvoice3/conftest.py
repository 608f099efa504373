"""The parity kit as fixtures. Tests that need torch skip with a reason where it is missing (in CI that is a
failure unless it was asked for); the rest run anyway.

The numbers are those of upstream on a tiny random checkpoint (tests/data/cosyvoice3): tolerances stand in
each test.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import NOT_ASKED

KIT = Path(__file__).parents[1] / "data" / "cosyvoice3"
NO_TORCH = "torch is not installed, so CosyVoice 3 is not tested (pip install cosyd[cosyvoice])"
if os.environ.get("COSYD_NO_TORCH") == "1":  # ./install.sh test --no-torch: then CI may skip these
    NO_TORCH = NOT_ASKED + NO_TORCH


@pytest.fixture(scope="session")
def kit() -> Path:
    return KIT


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """`golden("llm.npz")` or a JSON file."""
    found: dict[str, Any] = {}

    def read(name: str) -> Any:
        if name not in found:
            path = KIT / "golden" / name
            found[name] = (
                dict(np.load(path)) if name.endswith(".npz") else json.loads(path.read_text("utf-8"))
            )
        return found[name]

    return read


@pytest.fixture
def never() -> threading.Event:
    """A stop flag that is never set."""
    return threading.Event()


@pytest.fixture(scope="session")
def official() -> Any:
    pytest.importorskip("torch", reason=NO_TORCH)
    from pipeline.engines.cosyvoice3.official import open_official

    return open_official(KIT / "model")


@pytest.fixture(scope="session")
def make_llm(official: Any) -> Callable[[str], Any]:
    """`make_llm("int8")`: the kit's language model in a dtype."""
    import torch

    from pipeline.engines.cosyvoice3.convert import llm_items, text_items
    from pipeline.engines.cosyvoice3.llm import Llm

    made: dict[str, Any] = {}

    def make(dtype: str) -> Any:
        if dtype not in made:
            part = {i.name: i.make() for i in llm_items(official.config.llm, official.llm, dtype)}
            text = next(iter(text_items(official.llm, dtype))).make()
            made[dtype] = Llm(official.config.llm, part, text, torch.device("cpu"))
        return made[dtype]

    return make


@pytest.fixture(scope="session")
def make_flow(official: Any) -> Callable[..., Any]:
    """`make_flow("bf16", steps=5)`: the kit's flow."""
    import torch

    from pipeline.engines.cosyvoice3.convert import flow_items
    from pipeline.engines.cosyvoice3.flow import Flow

    made: dict[Any, Any] = {}

    def make(dtype: str = "fp32", steps: int = 10) -> Any:
        if (dtype, steps) not in made:
            items = flow_items(official.config.flow, official.flow, dtype, steps)
            made[dtype, steps] = Flow(
                official.config.flow, {i.name: i.make() for i in items}, torch.device("cpu")
            )
        return made[dtype, steps]

    return make


@pytest.fixture(scope="session")
def make_vocoder(official: Any) -> Callable[..., Any]:
    """`make_vocoder(noise)`: the kit's vocoder with a noise function."""
    import torch

    from pipeline.engines.cosyvoice3.convert import vocoder_items
    from pipeline.engines.cosyvoice3.vocoder import Vocoder

    part = {i.name: i.make() for i in vocoder_items(official.config.vocoder, official.vocoder)}

    def make(noise: Any = None, **options: Any) -> Any:
        return Vocoder(official.config.vocoder, part, torch.device("cpu"), noise=noise, **options)

    return make


@pytest.fixture(scope="session")
def formula_noise() -> Callable[[int, int], Any]:
    """The goldens' noise: exact integers instead of a 259 MB table (tests/data/cosyvoice3/README.md)."""
    import torch

    def rows(first: int, count: int) -> Any:
        k = np.arange(first * 9, (first + count) * 9, dtype=np.uint64)
        v = ((k * np.uint64(2654435761) + np.uint64(12345)) % np.uint64(2**32)) >> np.uint64(8)
        return torch.from_numpy((v / 2**24).astype(np.float32).reshape(count, 9))

    return rows
