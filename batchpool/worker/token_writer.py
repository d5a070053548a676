"""Writes the tokens of a step into the slots of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.worker.generator_metrics import GeneratorMetrics
from batchpool.worker.sequence_lane import I64, SequenceLane
from batchpool.worker.sequence_table import SequenceTable
from batchpool.worker.step_result import CheckedStep


class EndedBySteps(NamedTuple):
    """The numbers of sequences that have ended: by themselves, and since they have all tokens that
    they may have, or that there is room for."""

    stopped: I64
    full: I64


class TokenWriter:
    """Writes steps into the lanes of their rows and into the table. One store for each lane and
    column serves all rows of the lane.

    made: the column of the worker's records that counts the tokens of their rows.
    """

    def __init__(
        self,
        table: SequenceTable,
        lanes: Mapping[int, SequenceLane],
        metrics: GeneratorMetrics,
        made: Array,
    ) -> None:
        self._table = table
        self._lanes = lanes
        self._metrics = metrics
        self._made = made

    def write(self, step: CheckedStep, began_ns: int, now_ns: int) -> EndedBySteps:
        """Write the tokens of a step, show them to the clients, and ring their bells, once for each
        lane that grew. Tokens beyond those that a sequence may have are cut."""
        table, numbers, tokens = self._table, step.numbers, step.tokens
        before = table.length[numbers]
        counts = step.counts
        if counts is None:
            after = before + 1
        else:
            room = table.most[numbers] - before
            if (counts > room).any():
                tokens = tokens[_places(counts) < np.repeat(room, counts)]
                counts = np.minimum(counts, room)
            after = before + counts
        table.length[numbers] = after
        stopped = step.stopped
        for lane, rows in by_lane(table.lane[stopped]):
            which = stopped[rows]
            self._lanes[lane].mark_stops(table.slot[which], table.length[which])
        slots = table.slot[numbers]
        for lane, rows in by_lane(table.lane[numbers]):
            own = self._lanes[lane]
            if counts is None:
                own.write(slots[rows], before[rows], tokens[rows])
            else:
                self._write_runs(own, slots, before, counts, tokens, rows)
            own.publish(slots[rows], after[rows])
        made = 1 if counts is None else counts.astype(np.uint32)
        self._made[table.record[numbers]] += made
        self._count(numbers, before, len(tokens), began_ns, now_ns)
        full = numbers[after >= table.most[numbers]]
        if len(stopped) and len(full):
            full = full[~np.isin(full, stopped)]
        if len(step.out_of_room):
            full = np.union1d(full, step.out_of_room)
        return EndedBySteps(stopped, full)

    def _write_runs(
        self,
        own: SequenceLane,
        slots: I64,
        before: I64,
        counts: I64,
        tokens: Array,
        rows: I64 | slice,
    ) -> None:
        """Write several tokens of each of some rows, which stand side by side in `tokens`."""
        if not isinstance(rows, slice):
            chosen = np.zeros(len(counts), dtype=np.bool_)
            chosen[rows] = True
            tokens = tokens[np.repeat(chosen, counts)]
        counts = counts[rows]
        at = np.repeat(before[rows], counts) + _places(counts)
        own.write(np.repeat(slots[rows], counts), at, tokens)

    def _count(self, numbers: I64, before: I64, tokens: int, began_ns: int, now_ns: int) -> None:
        table = self._table
        last_ns = table.last_ns[numbers]
        table.last_ns[numbers] = now_ns
        since_ns = now_ns - last_ns
        first = last_ns == 0
        if first.any():
            first_ns = now_ns - table.submit_ns[numbers[first]]
            self._metrics.step(now_ns - began_ns, tokens, first_ns, since_ns[~first])
        else:
            self._metrics.step(now_ns - began_ns, tokens, last_ns[:0], since_ns)


def by_lane(lanes: I64) -> Iterator[tuple[int, I64 | slice]]:
    """Each lane among these of rows, with an index of its rows."""
    if not len(lanes):
        return
    first = int(lanes[0])
    if (lanes == first).all():
        yield first, slice(0, len(lanes))
        return
    for lane in np.unique(lanes).tolist():
        yield lane, np.flatnonzero(lanes == lane)


def _places(counts: I64) -> I64:
    """The place of each element in its run, of runs with these lengths: 0 1 2 0 1 of [3, 2]."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
