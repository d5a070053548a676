"""A process that a model has forked ends where the model's method ends, however that does."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from batchpool.model import Batch
from batchpool.process import own_process
from batchpool.worker.backends.backend import batch_of, call_method
from batchpool.worker.generator_calls import GeneratorCalls

CAME_OUT = 77


def raises(*_: object) -> object:
    raise KeyboardInterrupt


def returns(*_: object) -> object:
    return {"y": np.zeros(1)}


class Steps:
    """The part of a generator that these tests call."""

    framework = "numpy"

    def __init__(self, step: Callable[[], object]) -> None:
        self.step = step


def call_of(kind: str, method: Callable[..., object]) -> Callable[[], object]:
    if kind == "batch":
        batch: Batch = batch_of(1, {"x": np.zeros(1)}, {})
        return lambda: call_method(method, batch)
    return GeneratorCalls(Steps(method)).step  # type: ignore[arg-type]


def status_in_child(call: Callable[[], object]) -> int:
    """The exit status of a forked child that makes this call, CAME_OUT if it comes out of it."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(CAME_OUT)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("method", [raises, returns])
@pytest.mark.parametrize("kind", ["batch", "generator"])
def test_a_child_does_not_come_out_of_the_models_method(
    kind: str, method: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(kind, method)
    monkeypatch.setattr(own_process, "_pids", [])
    assert status_in_child(call) == CAME_OUT, "no worker: a program may fork as it likes"
    own_process.claim()
    assert status_in_child(call) == 1
    if method is returns:
        assert call() is not None, "the worker itself goes on"
