"""A pool in the test's own process: what a bulk run asks of its driver, answered at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import InvalidInput, NotFound
from batchpool.core.tensors.ragged import separate
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.lanes import new_lane

X = Tensor("x", "float32", (2,))
IDS = Tensor("ids", "int32", (Dim(8),))
TEXT = Tensor("text", "bytes", max_bytes=64)
SPECS = {
    spec.name: spec
    for spec in (
        ModelSpec("double", "numpy", (X,), (Tensor("y", "float32", (2,)),)),
        ModelSpec("echo", "numpy", (TEXT,), (TEXT, Tensor("length", "int64"))),
        ModelSpec(
            "add",
            "numpy",
            (Tensor("a", "int32"), Tensor("b", "int32", default=7)),
            (Tensor("sum", "int32"),),
            (Tensor("factor", "int32", default=1),),
        ),
        ModelSpec("next", "numpy", (IDS,), (IDS,)),
        ModelSpec("half", "numpy", (Tensor("a", "float32"),), (Tensor("h", "bfloat16"),)),
    )
}


def answer(model: str, rows: Rows) -> dict[str, Any]:
    """The outputs of a model; a text "bad" is refused."""
    found = rows.tensors
    if model == "double":
        return {"y": found["x"] * 2}
    if model == "echo":
        texts = found["text"]
        outputs: dict[str, Any] = {"text": texts, "length": np.array([len(t) for t in texts])}
        if b"bad" not in texts.tolist():
            return outputs
        return {
            name: [InvalidInput("no such text") if t == b"bad" else row
                   for t, row in zip(texts, values, strict=True)]
            for name, values in outputs.items()
        }  # fmt: skip
    if model == "add":
        return {"sum": (found["a"] + found["b"]) * rows.parameters["factor"]}
    if model == "half":
        return {"h": (found["a"].view(np.uint32) >> 16).astype(np.uint16)}
    sizes = rows.sizes.get("ids")
    return {"ids": found["ids"] + 1 if sizes is None else separate(IDS, found["ids"] + 1, sizes)}


class DriverDouble:
    """Takes the place of a ThreadDriver. at_submit: called at each window, with its number."""

    connects_again = True

    def __init__(self, at_submit: Callable[[int], Any] = lambda number: None) -> None:
        self.lanes = {name: LaneClient(new_lane(spec, 16)) for name, spec in SPECS.items()}
        self.windows = 0
        self.held = 0
        self._at_submit = at_submit

    def __call__(self, socket: str, timeout_s: float, *, pinned: bool) -> DriverDouble:
        return self

    def models(self) -> dict[str, Any]:
        return dict(SPECS)

    def facts(self, model: str) -> ModelFacts:
        if model not in SPECS:
            raise NotFound(f"there is no model {model!r}")
        return ModelFacts(0, SPECS[model], 0.9, 30.0, 4)

    def close(self) -> None:
        assert self.held == 0

    async def lane_client(self, model: str) -> LaneClient:
        return self.lanes[model]

    async def submit(
        self, lane_client: LaneClient, window: Rows, call: Any, under_way: deque[PendingRequest]
    ) -> bool:
        self._at_submit(self.windows)
        self.windows += 1
        self.held += window.n
        pending = PendingRequest(range(window.n), slice(0), 2**62, 0, window)
        pending.remaining = 0
        under_way.append(pending)
        return True

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Any
    ) -> dict[str, Any]:
        pending = under_way.popleft()
        self.held -= pending.n
        found = answer(lane_client.spec.name, pending.tag)
        found = {name: found[name] for name in call.outputs or found}
        if pending.n == call.n and not isinstance(next(iter(found.values())), list):
            for name, rows in call.outputs_to.items():  # as `WindowCall.take`
                rows[...] = found[name]
                found[name] = rows
        return found

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        self.held -= sum(pending.n for pending in requests)

    async def look(self) -> None:
        pass
