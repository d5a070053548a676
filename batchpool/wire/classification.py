"""Classifier: an output's highest values as text, for the classification extension.

An output [n, ...] of numbers becomes BYTES [n, k]: for each row its k highest values, the highest
first, each as "value:index" or "value:index:label". The index is that of the row's elements,
row-major. Of equal values the one with the lower index comes first; NaN comes behind all numbers. A
row of fewer than k elements gives all of them. A value is the shortest text that reads back as the
same number of its dtype.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

import math

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor
from batchpool.wire.outputs import OutputWriter

_VALUES_AT_ONCE = 1 << 18  # that are sorted in one step


class Classifier:
    """Classifies one output. writer: of the result. elements: of one row."""

    __slots__ = ("_is_bfloat16", "_labels", "elements", "writer")

    def __init__(self, tensor: Tensor) -> None:
        self.writer = OutputWriter(Tensor(tensor.name, "bytes", (), max_bytes=1))
        self.elements = math.prod(tensor.max_shape)
        self._is_bfloat16 = tensor.element.is_bfloat16
        self._labels = tensor.labels

    @staticmethod
    def fits(tensor: Tensor) -> bool:
        """True for an output that can be classified: numbers of a fixed shape."""
        return not (tensor.is_bytes or tensor.dynamic)

    def highest(self, array: Array, k: int) -> Array:
        """The k highest values of each row as text: [n, min(k, elements)] of `bytes`.

        array: the output, [n, *row shape] in its storage dtype.
        """
        n, k = len(array), min(k, self.elements)
        found = np.empty((n, k), dtype=object)
        rows = max(1, _VALUES_AT_ONCE // max(1, self.elements))
        for start in range(0, n if k else 0, rows):
            part = array[start : start + rows]
            found[start : start + rows] = self._texts(self._numbers(part), k)
        return found

    def _numbers(self, array: Array) -> Array:
        numbers = array.reshape(len(array), self.elements)
        if self._is_bfloat16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.view(np.uint8) if numbers.dtype == np.bool_ else numbers

    def _texts(self, numbers: Array, k: int) -> list[list[bytes]]:
        # Turned round twice, so that a stable order puts the lower index first.
        order = self.elements - 1 - np.argsort(numbers[:, ::-1], axis=1, kind="stable")[:, ::-1]
        if numbers.dtype.kind == "f":  # NaN, which comes first by now, goes behind all numbers
            no_number = np.take_along_axis(np.isnan(numbers), order, axis=1)
            last = np.argsort(no_number, axis=1, kind="stable")
            order = np.take_along_axis(order, last, axis=1)
        order = order[:, :k]
        values = np.take_along_axis(numbers, order, axis=1).astype(np.str_)
        return [
            [self._text(value, index) for value, index in zip(row, indices, strict=True)]
            for row, indices in zip(values.tolist(), order.tolist(), strict=True)
        ]

    def _text(self, value: str, index: int) -> bytes:
        label = f":{self._labels[index]}" if self._labels else ""
        return f"{value}:{index}{label}".encode()
