"""Errors that say something of the device, not of the rows: out of memory, and broken for good.

A CUDA context that met an illegal access or a failed assertion answers every later call with
the same error until its process ends. Such a worker must not fail batch after batch: it ends,
and its rows run again in a fresh one, apart, since one of them may have done it.
"""

from __future__ import annotations

# What torch and the CUDA libraries write; the classes differ between versions.
_BROKEN = (
    "CUDA error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
FAILURES_IN_A_ROW_MOST = 20  # failed batches without a good one between; then start afresh


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether a smaller batch may succeed: torch's OutOfMemoryError, or Python's MemoryError."""
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    return isinstance(exc, RuntimeError) and any(text in _text(exc) for text in _NO_MEMORY)


def is_device_broken(exc: BaseException) -> bool:
    """Whether this process can run nothing more on its device."""
    if not isinstance(exc, RuntimeError) or is_out_of_memory(exc):
        return False
    return any(text in _text(exc) for text in _BROKEN)


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:2000]
    except Exception:
        return ""


class MustRestart(Exception):
    """This worker cannot go on; its process ends, and the supervisor starts another."""
