"""What GPUs say of themselves through NVIDIA's library, if nvidia-ml-py is installed.

Asked for only when /metrics is, never on a road that a request takes. A driver may take seconds
to answer while a device is lost: then the last values are given, and if those are old, none.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

_LOG = logging.getLogger("batchpool.frontend")
_WAIT_S = 0.25  # for an answer
_OLD_S = 30.0


@dataclass(frozen=True)
class Gpu:
    """One device. values: by the metric's name; what the device does not know is left out."""

    index: str
    name: str
    values: dict[str, float] = field(default_factory=dict)


class Gpus:
    """All devices that the driver shows, whichever the pool uses."""

    def __init__(self) -> None:
        self._library: Any = None
        self._absent = False
        self._looking: threading.Thread | None = None
        self._found: list[Gpu] = []
        self._found_s = float("-inf")

    def look(self) -> list[Gpu]:
        """What they say now; empty where there is none or nobody to ask. Waits 0.25 s at most."""
        if self._absent:
            return []
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, name="batchpool-gpus", daemon=True)
            self._looking.start()
            self._looking.join(_WAIT_S)  # once: nobody waits for one that was late already
        return self._found if time.monotonic() - self._found_s < _OLD_S else []

    def _look(self) -> None:
        try:
            if self._library is None:
                import pynvml

                pynvml.nvmlInit()
                self._library = pynvml
            self._found = _ask(self._library)
            self._found_s = time.monotonic()
        except ImportError:
            self._absent = True
        except Exception as exc:  # NVMLError: no driver, no device
            if self._library is None:
                self._absent = True
            _LOG.debug("no GPU can be asked: %s", exc)


def _ask(library: Any) -> list[Gpu]:
    devices = []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        name = library.nvmlDeviceGetName(handle)
        values: dict[str, float] = {}
        try:
            memory = library.nvmlDeviceGetMemoryInfo(handle)
            values["gpu_memory_used_bytes"] = memory.used
            values["gpu_memory_total_bytes"] = memory.total
        except library.NVMLError:  # as where the device is cut up (MIG)
            pass
        try:
            used = library.nvmlDeviceGetUtilizationRates(handle).gpu
            values["gpu_utilization_ratio"] = used / 100
        except library.NVMLError:
            pass
        devices.append(Gpu(str(index), name if isinstance(name, str) else name.decode(), values))
    return devices
