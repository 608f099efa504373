"""C18: which errors only a new process can get rid of."""

from __future__ import annotations

import pytest

from pipeline.faults import card_is_gone


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (RuntimeError("somebody said: illegal memory access"), False),
        (ValueError("CUDA error: an illegal memory access"), False),
    ],
)
def test_sticky_errors_are_told_apart(error: Exception, gone: bool) -> None:
    assert card_is_gone(error) is gone
