"""Suspects: the rows of failed batches, run apart until the guilty ones stand alone.

A batch fails when its model raises or its worker dies. Any of its rows may be the cause, so
they are suspects: split in eight at once, the parts run one after another, never mixed with
other rows, and a part that fails is split again. A row gets the error only when it failed
alone and was in `attempts` failed batches, so that its neighbours get their answers:
64 rows with one that kills make three deaths and 17 calls (1 + 8 + 8).

The same idea, with two halves, is group testing by binary splitting (Dorfman 1943, Sobel and
Groll 1959); eight parts need fewer rounds, and a round may cost a worker's restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn

PARTS = 8
_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


class Bisection:
    """The groups of one model that wait to be run apart, first in, first out."""

    def __init__(self) -> None:
        self._groups: deque[I64] = deque()

    def __len__(self) -> int:
        """How many rows wait."""
        return sum(group.shape[1] for group in self._groups)

    def __bool__(self) -> bool:
        """Whether any row waits: asked in every step, where there hardly ever is one."""
        return bool(self._groups)

    def add_failed(self, rows: I64, attempts: int, batch_rows: int) -> I64:
        """The rows [QUEUE_COLUMNS, n] of one failed batch, their ATTEMPT counting it already.

        batch_rows: how many rode in it. Some may be missing here, because their client has
        gone since; that does not make the others alone. Returns the rows that are to get the
        error: one that failed alone, for the last time.
        """
        n = rows.shape[1]
        if batch_rows == 1 and n == 1 and rows[QueueColumn.ATTEMPT, 0] >= attempts:
            return rows
        if n:
            self._groups.extend(np.array_split(rows, min(PARTS, n), axis=1))
        return _NO_ROWS

    def add_group(self, rows: I64) -> None:
        """Rows that were suspects before a takeover: run apart, as one group."""
        if rows.shape[1]:
            self._groups.append(rows)

    def take_next(self) -> I64:
        """Remove and return the next group; the caller looked at `len` first."""
        return self._groups.popleft()

    def peek(self) -> I64:
        """The next group, which stays."""
        return self._groups[0]

    def take_late(self, now_ns: int) -> I64:
        """Remove and return the rows at or past their deadline."""
        return self._take(lambda group: group[QueueColumn.DEADLINE_NS] <= now_ns)

    def take_lane(self, number: int) -> I64:
        """Remove and return the rows of one lane."""
        return self._take(lambda group: group[QueueColumn.LANE] == number)

    def of_lane(self, number: int) -> I64:
        """The rows of one lane, which stay."""
        parts = [group[:, group[QueueColumn.LANE] == number] for group in self._groups]
        return np.concatenate(parts, axis=1) if parts else _NO_ROWS

    def take_tickets(self, slots: I64, lane: int) -> I64:
        """Remove and return the rows in these slots of one lane."""
        return self._take(
            lambda group: (
                (group[QueueColumn.LANE] == lane) & np.isin(group[QueueColumn.SLOT], slots)
            )
        )

    def next_deadline_ns(self) -> int:
        """The earliest deadline of a row that waits; 2**63 - 1 if there is none."""
        return min((int(g[QueueColumn.DEADLINE_NS].min()) for g in self._groups), default=2**63 - 1)

    def _take(self, chosen: Callable[[I64], npt.NDArray[np.bool_]]) -> I64:
        taken = []
        kept: deque[I64] = deque()
        for group in self._groups:
            mask = chosen(group)
            taken.append(group[:, mask])
            if not mask.all():
                kept.append(group[:, ~mask])
        self._groups = kept
        return np.concatenate(taken, axis=1) if taken else _NO_ROWS
