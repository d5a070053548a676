"""Which errors say something of the device."""

from __future__ import annotations

import pytest

from batchpool.worker.device_errors import is_device_broken, is_out_of_memory


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "memory", "broken"),
    [
        (MemoryError("x"), True, False),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True, False),
        (RuntimeError("CUDA error: out of memory"), True, False),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel ..."), False, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False, True),
        (RuntimeError("CUDA error: unspecified launch failure"), False, True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (ValueError("CUDA error: device-side assert triggered"), False, False),
        (Mute(), False, False),
    ],
)
def test_errors_of_the_device(error: BaseException, memory: bool, broken: bool) -> None:
    """C36: recognised by what they say."""
    assert is_out_of_memory(error) is memory
    assert is_device_broken(error) is broken
