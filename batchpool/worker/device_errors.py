"""Classification of errors of the device: out of memory, or unusable until the process ends.

After an illegal access or a failed assertion, a CUDA context returns the same error from every
later call until its process ends. Such a worker must not fail batch after batch: it ends, and
its rows run again in a new worker, apart, since one of them may be the cause.
"""

from __future__ import annotations

# Texts of torch and the CUDA libraries; the exception classes differ between versions.
_BROKEN = (
    "CUDA error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(exc: BaseException) -> bool:
    """True for torch's OutOfMemoryError and Python's MemoryError: a smaller batch may succeed."""
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    return isinstance(exc, RuntimeError) and any(text in _text(exc) for text in _NO_MEMORY)


def is_device_broken(exc: BaseException) -> bool:
    """True for errors after which this process can run nothing more on its device."""
    if not isinstance(exc, RuntimeError) or is_out_of_memory(exc):
        return False
    return any(text in _text(exc) for text in _BROKEN)


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:2000]
    except Exception:
        return ""


class MustRestart(Exception):
    """Ends the worker's process; the supervisor starts another."""
