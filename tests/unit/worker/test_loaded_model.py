"""A model as its worker runs it: loaded in order, for an instance of each stage, and warmed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.core.tensors.stages import Stage
from batchpool.model import Batch, Model, spec_of
from batchpool.worker.loaded_model import LoadedModel, load_model


class Told(Model):
    """Its instances tell what they are asked for, each under a number of its own."""

    framework = "numpy"
    inputs = [Tensor("text", "bytes", (), max_bytes=8)]
    features = [Tensor("ids", "int32", (Dim(32),))]
    outputs = [Tensor("total", "int64")]
    events: ClassVar[list[Any]] = []
    made: ClassVar[int] = 0
    fails: ClassVar[str] = ""

    def __init__(self) -> None:
        self.number = Told.made
        Told.made += 1

    def tell(self, *words: Any) -> None:
        self.events.append((self.number, *words))
        if words[0] == self.fails:
            raise ValueError(f"no {self.fails}")

    def load_preprocess(self) -> None:
        self.tell("load_preprocess")

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        self.tell("preprocess", batch.n)
        return {"ids": [np.frombuffer(raw, np.uint8).astype(np.int32) for raw in batch["text"]]}

    def unload_preprocess(self) -> None:
        self.tell("unload_preprocess")

    def load(self, device: str) -> None:
        self.tell("load")

    def infer(self, batch: Batch) -> dict[str, Any]:
        self.tell("infer", batch.n)
        return {"total": batch["ids"].sum(axis=1, dtype=np.int64)}

    def unload(self) -> None:
        self.tell("unload")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Told, "events", found)
    return found


def load(unloads: list[Callable[[], None]], *, rows: int = 0, **arguments: Any) -> LoadedModel:
    spec = spec_of(Told)
    Told.made = 0
    name = f"{Told.__module__}:Told"
    fused = {"preprocess": rows} if rows else {}
    return load_model(spec, name, "cpu", 8, (), {}, unloads.append, fused_rows=fused, **arguments)


def test_both_stages_of_a_fused_worker_are_loaded_for_instances_of_their_own(
    events: list[Any],
) -> None:
    unloads: list[Callable[[], None]] = []
    found = load(unloads, rows=4)
    assert events == [
        (0, "load_preprocess"),
        (1, "load"),
        *[(0, "preprocess", n) for n in (1, 1, 8, 8)],
        *[(1, "infer", n) for n in (1, 1, 8, 8)],
    ]
    assert found.slowest.rows in (1, 8)
    assert (found.spec.features, found.padding) == ((), None)
    events.clear()
    for unload in reversed(unloads):
        unload()
    assert events == [(1, "unload"), (0, "unload_preprocess")]


def test_the_warm_up_row_runs_once_through_each_stage(events: list[Any]) -> None:
    found = load([], rows=4)
    events.clear()
    found.run_warm_up_row()
    assert events == [(0, "preprocess", 1), (1, "infer", 1)]


@pytest.mark.parametrize("stage", [Stage.PREPROCESS, Stage.INFER])
def test_a_worker_of_one_stage_loads_that_alone(events: list[Any], stage: Stage) -> None:
    unloads: list[Callable[[], None]] = []
    load(unloads, stage=stage)
    names = {Stage.INFER: ("load", "infer"), Stage.PREPROCESS: ("load_preprocess", "preprocess")}
    assert {event[1] for event in events} == set(names[stage])
    assert len(unloads) == 1


def test_a_stage_that_fails_leaves_what_was_loaded_before_to_be_undone(
    events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "fails", "load")
    unloads: list[Callable[[], None]] = []
    with pytest.raises(ValueError, match="no load"):
        load(unloads, rows=4)
    assert len(unloads) == 1
    unloads[0]()
    assert events[-1] == (0, "unload_preprocess")


def test_a_stage_that_refuses_its_warm_up_row_says_so(
    events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "preprocess", lambda self, batch: {"ids": [ValueError("no")]})
    with pytest.raises(ModelError, match="refused its own warm-up row: no") as raised:
        load([], rows=4)
    assert "define warm_up_row" in raised.value.__notes__[0]


def test_a_model_that_writes_into_its_inputs_is_told_how_it_may(
    events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changes(self: Told, batch: Batch) -> dict[str, Any]:
        batch["ids"].flags.writeable = False  # as a view of shared memory is
        batch["ids"][:] = 0
        return {}

    monkeypatch.setattr(Told, "infer", changes)
    with pytest.raises(ValueError, match="read-only") as raised:
        load([], rows=4)
    (note,) = raised.value.__notes__
    assert "writable = True" in note
    assert "warm_up_row" not in note


@pytest.mark.parametrize(
    ("answer", "is_row"),
    [
        (lambda n: {"ids": np.zeros((n, 3, 3), np.int32)}, False),
        (lambda n: {"other": 1}, False),
        (lambda n: {"ids": [RuntimeError("no")] * n}, True),
        (lambda n: 1 / 0, True),
    ],
)
def test_only_a_row_that_is_not_taken_is_to_be_defined(
    events: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[int], Any],
    is_row: bool,
) -> None:
    monkeypatch.setattr(Told, "preprocess", lambda self, batch: answer(batch.n))
    with pytest.raises((ModelError, ZeroDivisionError)) as raised:
        load([], rows=4)
    (note,) = raised.value.__notes__
    assert note.startswith("it was the warm-up")
    assert ("define warm_up_row" in note) == is_row
