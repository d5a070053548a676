"""The models of the simulated pool, and what a right answer is.

Every row carries its own number, twice and in two tensors and a parameter, so that a row that
is torn, mixed with another or read too early shows itself in the model already.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.cpu import CpuBackend
from tests.sim.memory import Fault, Killed, Process

X = Tensor("x", "int64", (2,))
Y = Tensor("y", "int64", (2,))
K = Tensor("k", "int64", (), default=0)
PLAIN = ModelSpec("plain", "numpy", (X,), (Y,), (K,))
DYNAMIC = ModelSpec(
    "dynamic",
    "numpy",
    (X, Tensor("ids", "int64", (Dim(40, "t"),), pad=-1)),
    (Y, Tensor("out", "int64", (Dim(40, "t"),))),
    (K,),
)
# Two size buckets; new_request numbers requests in steps of 64.
LENGTHS = (0, 1, 16, 3, 40, 33)


def length_of(first: int) -> int:
    """The dynamic size of the rows of a request whose first number this is."""
    return LENGTHS[first // 64 % len(LENGTHS)]


def rows_of(spec: ModelSpec, numbers: list[int]) -> Rows:
    """One request whose rows carry these numbers."""
    each = np.array(numbers, dtype=np.int64)
    tensors = {"x": np.stack([each, -each], axis=1)}
    if spec is DYNAMIC:
        tensors["ids"] = each[:, None] + np.arange(length_of(numbers[0]))
    return check_rows(spec, tensors, {"k": 7 * numbers[0]})


def expected(spec: ModelSpec, numbers: list[int]) -> dict[str, Array]:
    """The right answer to that request."""
    rows = rows_of(spec, numbers)
    answer = {"y": 2 * rows.tensors["x"] + rows.parameters["k"] + 1}
    if spec is DYNAMIC:
        answer["out"] = rows.tensors["ids"] + 1
    return answer


class Trouble:
    """Which rows make the model raise or its worker die, and what they have done so far.

    refuses: rows whose input is invalid. The model names those with an even number, and raises
    for the others.
    """

    def __init__(self) -> None:
        self.raises: set[int] = set()
        self.kills: set[int] = set()
        self.refuses: set[int] = set()
        self.raised: Counter[int] = Counter()  # in how many batches that raised a row was


class SimBackend(CpuBackend):
    """y = 2x + k + 1, after it has checked that every row is whole."""

    def __init__(self, process: Process, depth: int, max_batch: int, trouble: Trouble) -> None:
        self.depth = depth
        self._process = process
        self._max_batch = max_batch
        self._trouble = trouble

    def launch(
        self,
        n: int,
        inputs: dict[str, Array],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Any = (),
    ) -> dict[str, Array]:
        x, k = inputs["x"], inputs["k"]
        if not len(x) == len(k) == n or n > self._max_batch:
            raise Fault(f"a batch of {n} rows ({len(x)} came), at most {self._max_batch}")
        ids = inputs.get("ids")
        lengths = sizes.get("ids")
        if lengths is not None and len(set((lengths > 16).ravel().tolist())) > 1:
            raise Fault(f"two size buckets met in one batch: {lengths.ravel()}")
        for i in range(n):
            number = int(x[i, 0])
            first = int(k[i]) // 7
            whole = 0 < first <= number < first + 64 and x[i, 1] == -number and k[i] % 7 == 0
            if ids is not None:
                size = length_of(first)
                whole &= lengths is not None and lengths[i, 0] == size
                whole &= ids[i].tolist()[:size] == list(range(number, number + size))
            if not whole:
                raise Fault(f"the model met a torn row: x {x[i]}, k {k[i]}, ids {ids}")
        return inputs

    def finish(self, flight: Any) -> dict[Any, Any]:
        x = flight["x"]
        numbers = set(x[:, 0].tolist())
        if numbers & self._trouble.kills:
            self._process.dead = True
            raise Killed(self._process.name)
        if numbers & self._trouble.raises:
            self._trouble.raised.update(numbers)
            raise ValueError("bad row")
        refused = numbers & self._trouble.refuses
        if unnamed := [number for number in sorted(refused) if number % 2]:
            raise InvalidInput(str(unnamed[0]))
        answer: dict[Any, Any] = {"y": 2 * x + flight["k"][:, None] + 1}
        if "ids" in flight:
            answer["out"] = flight["ids"] + 1
        if refused:
            each = enumerate(x[:, 0].tolist())
            answer[FAILED_ROWS] = {i: InvalidInput(str(n)) for i, n in each if n in refused}
        return answer
