"""Tasks that have the form of one that came before: all but the bytes of one tensor is read once.

A front end packs inputs of one form always alike, so two of the same length that begin and end with
the same bytes differ in their tensor alone (batchpool/wire/task_form.py). Where their answers are
asked for in the same form too, nothing else has to be read of the second one, and the head of its
answer is that of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.tasks.record import ClaimedTask, TaskAnswer
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest
from batchpool.wire.task_form import lone_tensor_place

_KNOWN_MOST = 64
_LONG_BYTES = 64 * 1024  # of an answer, which is written as any other


class KnownForm:
    """The form of tasks with one tensor of fixed shape and without parameters. key: as of
    `ReadTask`. request: of the first of them."""

    __slots__ = (
        "_frame", "_head", "_headers", "_shapes", "_size", "_start", "_stop", "_tail", "dtype",
        "key", "n", "name", "request", "row_shape",
    )  # fmt: skip

    def __init__(
        self, packed: bytes, place: tuple[int, int], request: InferRequest, key: object,
        codec: Codec, spec: ModelSpec,
    ) -> None:  # fmt: skip
        self.request, self.key = codec.with_own_outputs(request), key
        ((self.name, array),) = request.rows.tensors.items()
        self.n, self.dtype, self.row_shape = request.rows.n, array.dtype, array.shape[1:]
        self._start, self._stop = place
        self._size = len(packed)
        self._head, self._tail = packed[: self._start], packed[self._stop :]
        frame = codec.frame(self.request, self.n)
        self._frame = None if frame is None or frame.size > _LONG_BYTES else frame
        self._headers = () if frame is None else tuple(frame.fields)
        self._shapes = [(t.name, t.np_dtype, t.max_shape) for t in spec.outputs]

    def is_of(self, packed: bytes) -> bool:
        """True for an input that differs in the bytes of the tensor alone."""
        return (
            len(packed) == self._size
            and packed.startswith(self._head)
            and packed.endswith(self._tail)
        )

    def rows_of(self, inputs: Sequence[bytes]) -> Array:
        """The rows of several inputs of this form."""
        data = b"".join([packed[self._start : self._stop] for packed in inputs])
        rows: Array = np.frombuffer(data, self.dtype).reshape(-1, *self.row_shape)
        return rows

    def answer(self, outputs: Mapping[str, Sequence[Any]], first: int) -> TaskAnswer | None:
        """The answer with the rows from `first` on, where all of them are arrays as the model has
        them and only their bytes are its own; else None, and it is written as any other."""
        frame = self._frame
        if frame is None:
            return None
        pieces = [frame.head]
        for name, dtype, shape in self._shapes:
            for row in outputs[name][first : first + self.n]:
                if type(row) is not np.ndarray or row.dtype != dtype or row.shape != shape:
                    return None
                pieces.append(row.tobytes())
        return TaskAnswer(200, self._headers, b"".join(pieces))


class KnownForms:
    """The forms of the tasks of one model, as its tensors are now."""

    def __init__(self, codec: Codec, spec: ModelSpec) -> None:
        self._codec = codec
        self._spec = spec
        self._outputs = {word for t in spec.outputs for word in (t.name, t.sizes_name)}
        self._forms: dict[tuple[bytes, int], KnownForm] = {}

    def find(self, task: ClaimedTask) -> KnownForm | None:
        """The form of a task; None for one that has to be read."""
        form = self._forms.get((task.answer, len(task.input)))
        return form if form is not None and form.is_of(task.input) else None

    def learn(self, task: ClaimedTask, request: InferRequest, key: object) -> None:
        """Know the form of a task that was read, if others can have it and the model has what they
        ask for. key: of it."""
        rows = request.rows
        if request.id is not None or rows.parameters or rows.sizes or len(rows.tensors) != 1:
            return
        if not self._outputs.issuperset([choice.name for choice in request.outputs]):
            return
        place = lone_tensor_place(task.input)
        if place is None:
            return
        if len(self._forms) >= _KNOWN_MOST:
            self._forms.clear()
        self._forms[task.answer, len(task.input)] = KnownForm(
            task.input, place, request, key, self._codec, self._spec
        )
