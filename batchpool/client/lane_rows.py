"""A client's rows in the slots of its lane: inputs and parameters written, outputs read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.shm.columns import Where
from batchpool.shm.lane import Lane


class LaneRows:
    """Writes checked rows into slots of one lane, and reads the outputs of rows out of them."""

    def __init__(self, lane: Lane) -> None:
        self._inputs = list(lane.inputs.items())
        parameters = lane.parameters.items()
        self._numbers = [(name, column) for name, column in parameters if column.lengths is None]
        self._texts = [(name, column) for name, column in parameters if column.lengths is not None]
        self._outputs = lane.outputs

    def write(self, where: Where, rows: Rows) -> None:
        """Write the inputs and parameters of n rows into n slots."""
        tensors, parameters = rows.tensors, rows.parameters
        for name, column in self._inputs:
            column.store(where, tensors[name])
        for name, column in self._numbers:
            column.values[where] = parameters[name]
        for name, column in self._texts:
            column.store(where, np.full(rows.n, parameters[name], dtype=object))

    def outputs(self, where: Where, names: Iterable[str] | None, copy: bool) -> dict[str, Array]:
        """{output: [n, *row shape]} of rows that are done, of all outputs where names is None.

        Where `copy` is false, fixed tensors in neighbouring slots are views of the lane.
        """
        found: dict[str, Array] = {}
        for name in self._outputs if names is None else names:
            rows = self._outputs[name].load(where)
            found[name] = rows.copy() if copy and rows.base is not None else rows
        return found

    def views(self, where: Where) -> list[Array]:
        """Every output [n, *row shape] in the model's order: of fixed tensors in neighbouring
        slots views of the lane."""
        return [column.load(where) for column in self._outputs.values()]
