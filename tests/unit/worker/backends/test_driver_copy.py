"""Copies by the driver: what it is told, and what its errors become."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from batchpool.worker.backends.driver_copy import driver_copies
from batchpool.worker.device_errors import is_device_broken

STREAM = 77


class Driver:
    """cuMemcpyAsync, which notes its calls; code: what it returns from the second one on."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[int, ...]] = []

        def copy(*call: int) -> int:
            self.calls.append(call)
            return code if len(self.calls) > 1 else 0

        self.cuMemcpyAsync = copy


def torch_on(device: str) -> Any:
    def current_stream(asked: str) -> Any:
        assert asked == device
        return SimpleNamespace(cuda_stream=STREAM)

    return SimpleNamespace(cuda=SimpleNamespace(current_stream=current_stream))


def load(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    def cdll(name: str) -> Any:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", cdll)


def test_each_run_is_one_copy_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    load(monkeypatch, driver)
    start = driver_copies(torch_on("cuda:1"), "cuda:1")
    assert start is not None
    start([(1 << 47, 4096, 512), (8192, 1 << 47, 64)])
    assert driver.calls == [(1 << 47, 4096, 512, STREAM), (8192, 1 << 47, 64, STREAM)]


def test_an_error_of_the_driver_says_that_the_device_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(719)
    load(monkeypatch, driver)
    start = driver_copies(torch_on("cuda:0"), "cuda:0")
    assert start is not None
    with pytest.raises(RuntimeError, match="cuMemcpyAsync of 64 bytes returned 719") as told:
        start([(1, 2, 32), (3, 4, 64), (5, 6, 96)])
    assert is_device_broken(told.value)
    assert len(driver.calls) == 2, "nothing is started behind it"


@pytest.mark.parametrize("driver", [None, SimpleNamespace()])
def test_without_a_driver_nothing_is_copied_by_it(
    monkeypatch: pytest.MonkeyPatch, driver: Any
) -> None:
    load(monkeypatch, driver)
    assert driver_copies(torch_on("cuda:0"), "cuda:0") is None
