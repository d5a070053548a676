"""The models of the simulated pool, and what a right answer is.

Every row carries its own number, twice and in two tensors and a parameter, so that a row that
is torn, mixed with another or read too early shows itself in the model already.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.core.layout.arena import Arena
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.cpu import CpuBackend
from tests.sim.memory import Fault, Killed, Process
from tests.unit.generator_worker import token_of

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
# Inputs whose rows stand in the lane's arena: four of the largest rows, for up to eight slots.
LARGE = ModelSpec(
    "large",
    "numpy",
    (
        X,
        Tensor("ids", "int64", (Dim(40, "t"),), pad=-1),
        Tensor("note", "bytes", (Dim(2),), max_bytes=60),
    ),
    (Y, Tensor("out", "int64", (Dim(40, "t"),))),
    (K,),
)
IN_ARENA = ("ids", "note")
ARENA_BYTES = 4 * 512
# Features, and an input that both stages read.
STAGED = replace(
    DYNAMIC,
    name="staged",
    features=(Tensor("sum", "int64", (2,)), Tensor("later", "int64", (Dim(45, "t"),), pad=-1)),
    kept_inputs=("x",),
)
# The same rows by way of predictions, which stand beside an input, and a feature or another input.
PREDICTIONS = (Tensor("twice", "int64", (2,)), Tensor("rest", "int64", (Dim(50, "r"),), pad=-1))
AROUND = replace(STAGED, name="around", predictions=PREDICTIONS, kept_tensors=("x", "later"))
AFTER = replace(DYNAMIC, name="after", predictions=PREDICTIONS, kept_tensors=("x", "ids"))
STAGES = {"before": STAGED, "around": AROUND, "after": AFTER}  # by the word of a profile
LATER = 5  # of a feature's dynamic dimension beyond that of the input: another size bucket
WHOLE = 50  # of the input's dimension and the prediction's together: another one again
# Two size buckets; new_request numbers requests in steps of 64.
LENGTHS = (0, 1, 16, 3, 40, 33)


def length_of(first: int) -> int:
    """The dynamic size of the rows of a request whose first number this is."""
    return LENGTHS[first // 64 % len(LENGTHS)]


def tokens_of(first: int) -> int:
    """The tokens of the sequences of a request whose first number this is; of some, more than end a
    probation."""
    return 1 + first // 64 % 6 * 7


def rows_of(spec: ModelSpec, numbers: list[int]) -> Rows:
    """One request whose rows carry these numbers."""
    if spec.generates:
        prompts = np.repeat(np.array(numbers)[:, None], 1 + numbers[0] // 64 % 3, axis=1)
        return check_rows(spec, {"prompt": prompts}, {"max_tokens": tokens_of(numbers[0])})
    each = np.array(numbers, dtype=np.int64)
    tensors: dict[str, Any] = {"x": np.stack([each, -each], axis=1)}
    if spec is not PLAIN:
        tensors["ids"] = each[:, None] + np.arange(length_of(numbers[0]))
    if spec is LARGE:
        tensors["note"] = [notes_of(number) for number in numbers]
    return check_rows(spec, tensors, {"k": 7 * numbers[0]})


def notes_of(number: int) -> list[bytes]:
    """The byte strings of a row of LARGE: none, one or two, of any length."""
    each = b"%d." % number
    return [each * (number // 64 % 9), each][: number // 64 % 3]


def arena_of_sim(spec: ModelSpec) -> Arena:
    """The arena of a lane of the simulated pool."""
    return Arena(IN_ARENA, ARENA_BYTES) if spec is LARGE else Arena()


def trouble_stage(spec: ModelSpec, number: int) -> Stage:
    """The stage of a model in which a row with this number makes its trouble."""
    stages = sorted(stages_of(spec))
    return stages[number // 2 % len(stages)]


def expected(spec: ModelSpec, numbers: list[int]) -> dict[str, Array]:
    """The right answer to that request."""
    if spec.generates:
        indices = range(tokens_of(numbers[0]))
        return {"token": np.array([[token_of(n, i) for i in indices] for n in numbers])}
    rows = rows_of(spec, numbers)
    answer = {"y": 2 * rows.tensors["x"] + rows.parameters["k"] + 1}
    if spec is not PLAIN:
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
        # In how many batches of a stage that raised a row was.
        self.raised: Counter[tuple[int, Stage]] = Counter()


class SimBackend(CpuBackend):
    """y = 2x + k + 1, after it has checked that every row is whole."""

    def __init__(
        self,
        process: Process,
        depth: int,
        max_batch: int,
        trouble: Trouble,
        spec: ModelSpec,
        stage: Stage,
    ) -> None:
        self.depth = depth
        self._spec, self._stage = spec, stage
        read = stage_spec(spec, stage)
        self._names = {tensor.name for tensor in (*read.inputs, *read.parameters)}
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
        if set(inputs) != self._names:
            raise Fault(f"{self._stage.label} got {sorted(inputs)}")
        for name, right in (("sum", x + k[:, None]), ("twice", 2 * x)):
            if name in inputs and not np.array_equal(inputs[name], right):
                raise Fault(f"torn between stages: {name} {inputs[name]} of x {x}, k {k}")
        ids, lengths = inputs.get("ids"), sizes.get("ids")
        more = LATER if "later" in inputs else 0
        if more:
            ids, lengths = inputs["later"] - LATER, sizes.get("later")
        for own in (lengths, sizes.get("rest")):
            if own is not None and len(set((own > 16).ravel().tolist())) > 1:
                raise Fault(f"two size buckets met in one batch: {own.ravel()}")
        for i in range(n):
            number = int(x[i, 0])
            first = int(k[i]) // 7
            whole = 0 < first <= number < first + 64 and x[i, 1] == -number and k[i] % 7 == 0
            if ids is not None:
                size = length_of(first) + more
                whole &= lengths is not None and lengths[i, 0] == size
                whole &= ids[i].tolist()[:size] == list(range(number, number + size))
            if "rest" in inputs:
                rest = WHOLE - length_of(first)
                whole &= sizes["rest"][i, 0] == rest  # type: ignore[index]
                whole &= inputs["rest"][i].tolist()[:rest] == list(range(number, number + rest))
            if "note" in inputs:
                found = [note for note in inputs["note"][i].tolist() if note]
                whole &= found == [note for note in notes_of(number) if note]
            if not whole:
                raise Fault(f"the model met a torn row: x {x[i]}, k {k[i]}, ids {ids}")
        return inputs

    def finish(self, flight: Any) -> dict[Any, Any]:
        x = flight["x"]
        numbers = {
            number
            for number in x[:, 0].tolist()
            if trouble_stage(self._spec, number) is self._stage
        }
        if numbers & self._trouble.kills:
            self._process.dead = True
            raise Killed(self._process.name)
        if numbers & self._trouble.raises:
            self._trouble.raised.update((number, self._stage) for number in x[:, 0].tolist())
            raise ValueError("bad row")
        refused = numbers & self._trouble.refuses
        if unnamed := [number for number in sorted(refused) if number % 2]:
            raise InvalidInput(str(unnamed[0]))
        answer: dict[Any, Any] = self._answer(flight)
        if refused:
            each = enumerate(x[:, 0].tolist())
            answer[FAILED_ROWS] = {i: InvalidInput(str(n)) for i, n in each if n in refused}
        return answer

    def _answer(self, flight: Any) -> dict[Any, Any]:
        x, k = flight["x"], flight["k"][:, None]
        sizes = [length_of(int(first) // 7) for first in flight["k"]]
        if self._stage is Stage.PREPROCESS:
            later = [x[i, 0] + LATER + np.arange(size + LATER) for i, size in enumerate(sizes)]
            return {"sum": x + k, "later": later}
        twice = flight.get("twice", 2 * (flight["sum"] - k if "sum" in flight else x))
        if self._stage is Stage.INFER and self._spec.predictions:
            rest = [x[i, 0] + np.arange(WHOLE - size) for i, size in enumerate(sizes)]
            return {"twice": twice, "rest": rest}
        answer = {"y": twice + k + 1}
        if "later" in flight:
            # As long as the row's ids: the output has a dimension of the name, which is cut by it.
            answer["out"] = [flight["later"][i, :size] - LATER + 1 for i, size in enumerate(sizes)]
        elif "ids" in flight:
            answer["out"] = flight["ids"] + 1
        return answer
