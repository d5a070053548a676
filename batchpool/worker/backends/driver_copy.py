"""Asynchronous copies between registered host memory and a CUDA device, by the driver itself.

A copy between slices of two torch tensors keeps the thread that starts it busy several times as
long as the driver's own call does (bench/transfer.py), and a batch takes one for each extent.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Run: TypeAlias = tuple[int, int, int]  # target address, source address, bytes
StartCopies: TypeAlias = Callable[[Iterable[Run]], None]


def driver_copies(torch: Any, device: Any) -> StartCopies | None:
    """Starts copies, one behind the other, on the current stream of a device whose context the
    thread uses; None without an NVIDIA driver.

    The driver finds out which address is the device's. Both memories must stay until the stream has
    come to the end of the copies. Raises RuntimeError with "CUDA error", as torch does.
    """
    try:
        copy: Any = ctypes.CDLL("libcuda.so.1").cuMemcpyAsync
    except (OSError, AttributeError):
        return None
    copy.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    copy.restype = ctypes.c_int

    def start(runs: Iterable[Run]) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        for target, source, nbytes in runs:
            if code := copy(target, source, nbytes, stream):
                raise RuntimeError(f"CUDA error: cuMemcpyAsync of {nbytes} bytes returned {code}")

    return start
