"""GPUs: asked through a library that may be absent, wrong, slow or stuck; nobody waits for long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from batchpool.frontend.service.gpu_metrics import Gpus


class NVMLError(Exception):
    """As the library's own."""


class Library(SimpleNamespace):
    """pynvml with two devices; the second has no memory of its own to tell of."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.inits = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.fault: Exception | None = None

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.fault is not None:
            raise self.fault

    def nvmlDeviceGetCount(self) -> int:
        assert self.may_answer.wait(30)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return b"old bytes" if handle else "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if handle:
            raise NVMLError("not supported")
        return SimpleNamespace(used=10, total=80)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=25 * (1 + handle))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    yield library
    library.may_answer.set()


def test_devices_tell_what_they_know(library: Library) -> None:
    gpus = Gpus()
    first, second = gpus.look()
    assert (first.index, first.name) == ("0", "NVIDIA H100")
    assert first.values == {
        "gpu_memory_used_bytes": 10, "gpu_memory_total_bytes": 80, "gpu_utilization_ratio": 0.25,
    }  # fmt: skip
    assert (second.index, second.name) == ("1", "old bytes")
    assert second.values == {"gpu_utilization_ratio": 0.5}
    gpus.look()
    assert library.inits == 1


def test_without_the_library_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert gpus.look() == []
    monkeypatch.setitem(sys.modules, "pynvml", Library())  # type: ignore[arg-type]
    assert gpus.look() == [], "it is not looked for again and again"


def test_without_a_driver_there_are_none(library: Library) -> None:
    library.fault = NVMLError("driver not loaded")
    gpus = Gpus()
    assert gpus.look() == []
    assert gpus.look() == []
    assert library.inits == 1


def test_a_driver_that_is_stuck_is_waited_for_once(library: Library) -> None:
    gpus = Gpus()
    before = gpus.look()
    library.may_answer.clear()
    looks = [gpus.look() for _ in range(50)]
    assert all(look == before for look in looks), "what was known before"
    stuck = [t for t in threading.enumerate() if t.name == "batchpool-gpus"]
    assert len(stuck) == 1, "nobody asks again while one is being asked"
    library.may_answer.set()
    stuck[0].join(30)
    assert len(gpus.look()) == 2
