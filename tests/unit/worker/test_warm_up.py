"""The calls before ready: every size that requests will meet, made of one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, ModelError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.model import Batch, Model
from batchpool.worker import warm_up as module
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.warm_up import BatchTime, warm_up, warm_up_rows
from tests.unit.specs import model

SPEC = model(
    Tensor("x", "float32", (2,), pad=3),
    Tensor("ids", "int64", (Dim(4),), pad=-1),
    Tensor("text", "bytes", (2,), max_bytes=4),
    parameters=(Tensor("k", "int32", default=5), Tensor("scale", "float64")),
)


class Recorder(Model):
    """Damages its inputs after it looked at them."""

    writable = True

    def __init__(self, given: dict[str, Any] | None = None) -> None:
        self.given = given or {}
        self.calls: list[dict[str, Any]] = []

    def warm_up_row(self) -> dict[str, Any]:
        return self.given

    def infer(self, batch: Batch) -> Any:
        seen = {name: batch[name].tolist() for name in batch}
        seen |= {"n": batch.n, "rows": batch.rows, "sizes": batch.sizes["ids"].tolist()}
        self.calls.append(seen)
        for name in ("x", "ids", "k"):
            batch[name][...] = 99
        return {"y": np.zeros(batch.n, np.float32)}


def calls(recorder: Recorder, *sizes: int) -> list[dict[str, Any]]:
    warm_up(SPEC, NumpyBackend(recorder), warm_up_rows(recorder, SPEC), sizes)
    return recorder.calls


def test_a_bfloat16_parameter_is_warmed_up_with_its_bits() -> None:
    parameters = (Tensor("scale", "bfloat16", default=0.5),)
    rows = warm_up_rows(Recorder(), model(Tensor("x", "float32"), parameters=parameters))
    assert (rows["scale"].dtype, rows["scale"].tolist()) == (np.uint16, [0x3F00])


def test_a_size_that_the_element_budget_keeps_from_long_rows_is_warmed_up_with_shorter_ones() -> (
    None
):
    """Dimensions that belong together are cut together; what cannot be cut runs as it is."""
    both = (Tensor("a", "int32", (Dim(20, "n"),)), Tensor("b", "int32", (Dim(20, "n"), 2)))
    spec = model(*both, Tensor("c", "float32", (6,)))
    seen: list[tuple[int, ...]] = []

    class Seer(Model):
        inputs, outputs = spec.inputs, spec.outputs

        def infer(self, batch: Batch) -> Any:
            seen.append((batch.n, *(batch[name].shape[1] for name in "abc")))
            return {"y": np.zeros(batch.n, np.float32)}

    rows = warm_up_rows(Seer(), spec)
    warm_up(spec, NumpyBackend(Seer()), rows, (1, 4, 16), times=1, max_elements=40)
    assert seen == [(1, 20, 20, 6), (4, 5, 5, 6), (16, 1, 1, 6)]


def test_every_size_is_run_twice() -> None:
    found = calls(Recorder(), 1, 3, 8)
    assert [(call["n"], call["rows"]) for call in found] == [(n, n) for n in (1, 1, 3, 3, 8, 8)]
    for call in found:
        n = call["n"]
        assert call["x"] == [[3, 3]] * n
        assert call["ids"] == [[-1] * 4] * n
        assert call["sizes"] == [[4]] * n
        assert call["text"] == [[b"warm", b"warm"]] * n
        assert call["k"] == [5] * n
        assert call["scale"] == [0] * n


def test_the_row_may_be_the_models_own_and_stays_as_it_is() -> None:
    x, ids = np.array([1, 2], np.float32), np.array([7, 8, 9])
    recorder = Recorder({"x": x, "ids": ids, "text": [b"a", b""]})
    for call in calls(recorder, 2):
        assert call["x"] == [[1, 2]] * 2
        assert call["ids"] == [[7, 8, 9]] * 2
        assert call["sizes"] == [[3]] * 2
        assert call["text"] == [[b"a", b""]] * 2
    assert x.tolist() == [1, 2]
    assert ids.tolist() == [7, 8, 9]


def test_a_row_that_does_not_fit_its_tensor() -> None:
    with pytest.raises(InvalidRequest, match="input 'x' has shape"):
        warm_up_rows(Recorder({"x": np.zeros(3, np.float32)}), SPEC)


def test_an_answer_that_fits_no_slot_fails_the_start() -> None:
    class TooLong(Model):
        def infer(self, batch: Batch) -> Any:
            return {"y": [b"long"] * batch.n}

    spec = ModelSpec("m", "numpy", SPEC.inputs, (Tensor("y", "bytes", max_bytes=3),))
    with pytest.raises(ModelError, match="has 4 bytes; at most 3 fit"):
        warm_up(spec, NumpyBackend(TooLong()), warm_up_rows(TooLong(), spec), (4,))


def test_a_text_parameter_is_warmed_up_with_its_default_or_a_text_that_fits() -> None:
    spec = model(
        Tensor("x", "float32"),
        parameters=(
            Tensor("language", "bytes", max_bytes=8, default="dé"),
            Tensor("style", "bytes", max_bytes=4),
        ),
    )
    rows = warm_up_rows(Model(), spec)
    assert rows["language"].tolist() == ["dé".encode()]
    assert rows["style"].tolist() == [b"warm"]


def test_the_sizes_are_those_of_the_dynamic_dimensions_wherever_they_stand() -> None:
    class Seer(Model):
        def infer(self, batch: Batch) -> Any:
            seen.append(batch.sizes["grid"].tolist())
            return {"y": np.zeros(batch.n, np.float32)}

    seen: list[Any] = []
    spec = model(Tensor("grid", "int64", (2, Dim(3), 5, Dim(4))))
    warm_up(spec, NumpyBackend(Seer()), warm_up_rows(Seer(), spec), (2,), times=1)
    assert seen == [[[3, 4], [3, 4]]]


def test_the_slowest_of_the_last_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size runs twice; its first run, which pays for what is done once, does not count."""
    clock_s = iter([0, 100, 103, 200, 250, 251])  # two starts and an end for each size
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock_s))
    recorder = Recorder()
    rows = warm_up_rows(recorder, SPEC)
    assert warm_up(SPEC, NumpyBackend(recorder), rows, (1, 4)) == BatchTime(1, 3)
