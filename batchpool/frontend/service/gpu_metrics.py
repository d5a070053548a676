"""Memory and utilization of GPUs from NVIDIA's library, if nvidia-ml-py is installed.

Read only for /metrics and the dashboard, never for an infer request. A driver may take seconds to
answer while a device is lost: then the last values are given, and none once those are old.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

_LOG = logging.getLogger("batchpool.frontend")
_WAIT_S = 0.25  # for the driver
_OLD_S = 30.0


@dataclass(frozen=True)
class Gpu:
    """One device. values: by the metric's name, without those that the device does not give."""

    index: str
    name: str
    values: dict[str, float] = field(default_factory=dict)


class Gpus:
    """Reads all devices that the driver shows, whether or not the pool uses them."""

    def __init__(self) -> None:
        self._library: Any = None
        self._absent = False
        self._thread: threading.Thread | None = None
        self._found: list[Gpu] = []
        self._found_s = float("-inf")

    def look(self) -> list[Gpu]:
        """The devices now; empty without a device or library. Waits 0.25 s at most."""
        if self._absent:
            return []
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="batchpool-gpus", daemon=True)
            self._thread.start()
            self._thread.join(_WAIT_S)  # only the first call waits for a slow driver
        return self._found if time.monotonic() - self._found_s < _OLD_S else []

    def _read(self) -> None:
        try:
            if self._library is None:
                import pynvml

                pynvml.nvmlInit()
                self._library = pynvml
            self._found = _devices(self._library)
            self._found_s = time.monotonic()
        except ImportError:
            self._absent = True
        except Exception as exc:  # NVMLError: no driver, no device
            if self._library is None:
                self._absent = True
            _LOG.debug("no GPU can be asked: %s", exc)


def _devices(library: Any) -> list[Gpu]:
    devices = []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        name = library.nvmlDeviceGetName(handle)
        values: dict[str, float] = {}
        try:
            memory = library.nvmlDeviceGetMemoryInfo(handle)
            values["gpu_memory_used_bytes"] = memory.used
            values["gpu_memory_total_bytes"] = memory.total
        except library.NVMLError:  # as on a partitioned device (MIG)
            pass
        try:
            used = library.nvmlDeviceGetUtilizationRates(handle).gpu
            values["gpu_utilization_ratio"] = used / 100
        except library.NVMLError:
            pass
        devices.append(Gpu(str(index), name if isinstance(name, str) else name.decode(), values))
    return devices
