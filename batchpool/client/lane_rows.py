"""A client's rows in the slots of its lane: inputs and parameters written, outputs read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import PoolError, Status
from batchpool.core.tensors.dtypes import Array, filled
from batchpool.core.tensors.ragged import are_ragged, separate
from batchpool.core.tensors.rows import Rows
from batchpool.shm.columns import Where, where_of
from batchpool.shm.lane import Lane


class LaneRows:
    """Writes checked rows into slots of one lane, and reads the outputs of rows out of them."""

    def __init__(self, lane: Lane) -> None:
        self._inputs = list(lane.inputs.items())
        parameters = lane.parameters.items()
        self._numbers = [(name, column) for name, column in parameters if column.lengths is None]
        self._texts = [(name, column) for name, column in parameters if column.lengths is not None]
        self._lane_inputs = lane.inputs
        self._outputs = lane.outputs
        self._output_columns = list(lane.outputs.values())
        self._sized = {column.tensor.sizes_name: column for column in lane.outputs.values()}
        self._status = lane.scalars("status")
        self._lane = lane
        # One cell of these is cheaper to write than an element of an array.
        self._deadline = lane.scalars("deadline_ns")
        self._submit = lane.scalars("submit_ns")
        self._priority = lane.scalars("priority")
        self._flow = lane.scalars("flow")

    def write_header(
        self,
        slots: Sequence[int],
        where: Where,
        deadline_ns: int,
        submit_ns: int,
        priority: int,
        flow: int,
    ) -> None:
        """Write the header words that all rows of a request share. where: these slots."""
        if len(slots) == 1:
            slot = slots[0]
            self._deadline[slot] = deadline_ns
            self._submit[slot] = submit_ns
            self._priority[slot] = priority
            self._flow[slot] = flow
        else:
            lane = self._lane
            lane.deadline_ns[where] = deadline_ns
            lane.submit_ns[where] = submit_ns
            lane.priority[where] = priority
            lane.flow[where] = flow

    def write(self, where: Where, rows: Rows) -> None:
        """Write the inputs and parameters of n rows into n slots."""
        tensors, parameters = rows.tensors, rows.parameters
        for name, column in self._inputs:
            column.store(where, tensors[name])
        for name, column in self._numbers:
            column.values[where] = parameters[name]
        for name, column in self._texts:
            column.store(where, filled(rows.n, parameters[name], np.dtype(object)))
        if rows.sizes:
            for name, sizes in rows.sizes.items():
                self._lane_inputs[name].store_sizes(where, sizes)

    def outputs(
        self, where: Where, names: Iterable[str] | None, copy: bool
    ) -> dict[str, Array | list[Array]]:
        """{output: [n, *row shape]} of rows that are done, of all outputs where names is None.

        An output whose rows differ in size is a list of n arrays. Where `copy` is false, fixed
        tensors in neighbouring slots are views of the lane.
        """
        found: dict[str, Array | list[Array]] = {}
        for name in self._outputs if names is None else names:
            column = self._outputs[name]
            sizes = column.sizes_of(where)
            rows = column.load(where, sizes=sizes)
            if sizes is not None and are_ragged(sizes):
                found[name] = separate(column.tensor, rows, sizes)
            else:
                found[name] = rows.copy() if copy and rows.base is not None else rows
        return found

    def padded_outputs(
        self, where: Where, names: Iterable[str] | None, copy: bool
    ) -> dict[str, Array]:
        """As `outputs`, each output one array, padded to its largest row.

        `Tensor.sizes_name` has the sizes int64 [n, dynamic dimensions] where rows differ, and
        where it is among the names.
        """
        found: dict[str, Array] = {}
        for name in self._outputs if names is None else names:
            column = self._outputs.get(name)
            if column is None:
                sizes = self._sized[name].sizes_of(where)
                assert sizes is not None
                found[name] = sizes
                continue
            sizes = column.sizes_of(where)
            rows = column.load(where, sizes=sizes)
            found[name] = rows.copy() if copy and rows.base is not None else rows
            if sizes is not None and are_ragged(sizes):
                found[column.tensor.sizes_name] = sizes
        return found

    def listed(
        self,
        slots: Sequence[int],
        names: Iterable[str] | None,
        error_of: Callable[[int], PoolError],
    ) -> dict[str, list[Any]]:
        """{output: one entry a row}: copies of the outputs of rows that are done, and the errors of
        those whose status is not OK."""
        status = self._status
        good = [at for at, slot in enumerate(slots) if status[slot] == Status.OK]
        bad = {at: error_of(slot) for at, slot in enumerate(slots) if status[slot] != Status.OK}
        outputs: dict[str, Array | list[Array]] = {}
        if good:
            outputs = self.outputs(where_of([slots[at] for at in good]), names, True)
        found: dict[str, list[Any]] = {}
        for name in self._outputs if names is None else names:
            entries: list[Any] = [bad.get(at) for at in range(len(slots))]
            for at, row in zip(good, outputs.get(name, ()), strict=True):
                entries[at] = row
            found[name] = entries
        return found

    def octets(self, where: Where) -> list[Any]:
        """The bytes of every output in the model's order, each as a buffer: of neighbouring slots
        views of the lane. For models whose outputs are all fixed tensors of numbers."""
        return [column.octets_of(where) for column in self._output_columns]
