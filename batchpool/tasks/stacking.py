"""Tasks of one shape and the same parameters as one call, and its rows as the tasks' answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import OF_A_ROW, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.ragged import padded, separate
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.tasks.known_form import KnownForm, KnownForms
from batchpool.tasks.record import ClaimedTask
from batchpool.wire.request import InferRequest, OutputChoice
from batchpool.wire.task_form import unpack_answer, unpack_input


class ReadTask:
    """A claimed task with its n rows. key: equal for tasks that may run in one call. form: that of
    others, where it has one."""

    __slots__ = ("_request", "form", "key", "n", "task")

    def __init__(
        self, task: ClaimedTask, n: int, key: object,
        request: InferRequest | None = None, form: KnownForm | None = None,
    ) -> None:  # fmt: skip
        self.task = task
        self.n = n
        self.key = key
        self.form = form
        self._request = request

    @property
    def request(self) -> InferRequest:
        """As its caller sent it."""
        if self._request is None:
            self._request = _request_of(self.task)
        return self._request

    @property
    def rows(self) -> Rows:
        return self.request.rows

    @property
    def outputs(self) -> tuple[OutputChoice, ...]:
        """Those that its caller asked for."""
        return (self.request if self.form is None else self.form.request).outputs


def read_task(task: ClaimedTask, forms: KnownForms) -> ReadTask:
    """A claimed task with its rows. forms: of its model."""
    form = forms.find(task)
    if form is not None:
        return ReadTask(task, form.n, form.key, form=form)
    request = _request_of(task)
    key = _key(task, request)
    forms.learn(task, request, key)
    return ReadTask(task, request.rows.n, key, request)


def _request_of(task: ClaimedTask) -> InferRequest:
    return unpack_answer(task.answer, unpack_input(task.input))


def _key(task: ClaimedTask, request: InferRequest) -> object:
    """Equal for tasks that may run in one call: rows of different sizes have their own."""
    rows = request.rows
    if rows.sizes:
        return task.id
    shapes = tuple((n, a.dtype.str, a.shape[1:]) for n, a in sorted(rows.tensors.items()))
    parameters = tuple(sorted((name, repr(value)) for name, value in rows.parameters.items()))
    return shapes, parameters, frozenset(choice.name for choice in request.outputs)


def in_calls(tasks: Iterable[ReadTask], most_rows: int) -> list[list[ReadTask]]:
    """The tasks in groups that may run in one call of at most so many rows; a task with more of
    them is a call alone."""
    calls: list[list[ReadTask]] = []
    open_calls: dict[object, tuple[list[ReadTask], int]] = {}
    for task in tasks:
        key = task.key
        call, rows = open_calls.get(key, ([], 0))
        if not call or rows + task.n > most_rows:
            call, rows = [], 0
            calls.append(call)
        call.append(task)
        open_calls[key] = call, rows + task.n
    return calls


def fits(task: ReadTask, inputs: Sequence[Tensor]) -> bool:
    """True if a model with these inputs could have been sent this task: its release may be another
    one than that which took it."""
    tensors = task.rows.tensors
    by_name = {tensor.name: tensor for tensor in inputs}
    if not by_name.keys() >= tensors.keys():
        return False
    if any(t.default is None and t.name not in tensors for t in inputs):
        return False
    return all(_has_form(by_name[name], array) for name, array in tensors.items())


def _has_form(tensor: Tensor, array: Array) -> bool:
    shape = array.shape[1:]
    is_alike = shape == tensor.max_shape or (
        bool(tensor.dynamic) and len(shape) == len(tensor.max_shape)
    )
    return is_alike and array.dtype == tensor.np_dtype


def stacked(call: Sequence[ReadTask], inputs: Iterable[Tensor]) -> dict[str, Any]:
    """The inputs of a call: of each an array of all rows, or a list where rows differ in size."""
    form = call[0].form
    if form is not None and all(task.form is form for task in call):
        names = {tensor.name for tensor in inputs}
        rows = form.rows_of([task.task.input for task in call])
        return {form.name: rows} if form.name in names else {}
    found: dict[str, Any] = {}
    for tensor in inputs:
        name = tensor.name
        arrays = [task.rows.tensors[name] for task in call if name in task.rows.tensors]
        if not arrays:
            continue
        sizes = call[0].rows.sizes.get(tensor.name)
        if sizes is not None:
            found[tensor.name] = separate(tensor, arrays[0], sizes)
        else:
            found[tensor.name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return found


def wanted_outputs(call: Sequence[ReadTask], spec: ModelSpec) -> list[str]:
    """The outputs that a call is asked for, in the model's order: those of each of its tasks, by
    their key. The sizes of an output's rows, which a caller may ask for by name, are known with the
    output."""
    asked = {choice.name for choice in call[0].outputs}
    return [t.name for t in spec.outputs if t.name in asked or t.sizes_name in asked]


def answer_rows(
    outputs: Mapping[str, Sequence[Any]], spec: ModelSpec, first: int, task: ReadTask
) -> dict[str, Array] | PoolError:
    """The outputs of a task's rows as arrays, or the error of the first row that has one.

    outputs: of its call. first: where its rows begin there. Where rows of an output differ in size
    it is padded; `Tensor.sizes_name` has their sizes then, and where the caller asked for them.
    """
    found: dict[str, Array] = {}
    n = task.n
    asked = {choice.name for choice in task.outputs}
    for tensor in spec.outputs:
        if tensor.name not in outputs:
            continue
        rows = outputs[tensor.name][first : first + n]
        for i, row in enumerate(rows):
            if isinstance(row, PoolError):
                if isinstance(row, OF_A_ROW):
                    row.row = i if n > 1 else None
                return row
        found[tensor.name], sizes = _joined(tensor, rows)
        if sizes is None and tensor.sizes_name in asked:
            own = [found[tensor.name].shape[1 + at] for at in tensor.dynamic]
            sizes = np.tile(np.array(own, dtype=np.int64), (n, 1))
        if sizes is not None:
            found[tensor.sizes_name] = sizes
    return found


def _is_of(tensor: Tensor, row: Any) -> bool:
    """True if a row is an array as the tensor has them."""
    return (
        isinstance(row, np.ndarray)
        and row.dtype == tensor.np_dtype
        and row.shape == tensor.max_shape
    )


def _joined(tensor: Tensor, rows: Sequence[Any]) -> tuple[Array, Array | None]:
    if tensor.dynamic:
        array, sizes = padded(tensor, rows)
        return array, sizes
    if len(rows) == 1 and _is_of(tensor, rows[0]):
        one: Array = rows[0][np.newaxis]
        return one, None
    whole = np.empty((len(rows), *tensor.max_shape), dtype=tensor.np_dtype)
    for place, row in enumerate(rows):
        whole[place] = row
    return whole, None
