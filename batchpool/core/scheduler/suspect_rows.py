"""Isolation of rows that make batches fail: group testing with eight parts.

A batch fails when its model raises or its worker dies. Any of its rows may be the cause. They are
split into eight groups, which run one after another, never together with other rows, and a group
that fails is split again. A row gets the error only after it failed alone and took part in
`attempts` failed batches, so that the other rows get their results: 64 rows with one that kills
its worker cause three deaths and 17 calls (1 + 8 + 8).

Group testing by binary splitting goes back to Dorfman (1943) and Sobel and Groll (1959). Eight
parts instead of two need fewer rounds, and a round may cost the restart of a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn

PARTS = 8
_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


class SuspectRows:
    """The groups of one model's suspect rows that wait to run apart, first in, first out."""

    def __init__(self) -> None:
        self._groups: deque[I64] = deque()

    def __len__(self) -> int:
        """The number of waiting rows."""
        return sum(group.shape[1] for group in self._groups)

    def __bool__(self) -> bool:
        """True if a row waits. Cheaper than `len`, for a check in every step."""
        return bool(self._groups)

    def add_failed(self, rows: I64, attempts: int, batch_rows: int) -> I64:
        """Add the rows [QUEUE_COLUMNS, n] of a failed batch; their ATTEMPT includes that batch.

        batch_rows: the rows that the batch had. Rows may be missing in `rows`, because their client
        has gone since; a row that is left over of several has not failed alone. Returns the rows
        that get the error: one that failed alone and for the last time, or none.
        """
        n = rows.shape[1]
        if batch_rows == 1 and n == 1 and rows[QueueColumn.ATTEMPT, 0] >= attempts:
            return rows
        self.add_parts(rows)
        return _NO_ROWS

    def add_parts(self, rows: I64) -> None:
        """Add rows [QUEUE_COLUMNS, n] in PARTS groups; each alone where they are fewer."""
        n = rows.shape[1]
        if n:
            self._groups.extend(np.array_split(rows, min(PARTS, n), axis=1))

    def add_group(self, rows: I64) -> None:
        """Add rows [QUEUE_COLUMNS, n] as one group behind all others."""
        if rows.shape[1]:
            self._groups.append(rows)

    def add_first(self, rows: I64) -> None:
        """Add rows [QUEUE_COLUMNS, n] as the next group: that which was taken and did not run."""
        if rows.shape[1]:
            self._groups.appendleft(rows)

    def take_next(self) -> I64:
        """Remove and return the next group; there must be one."""
        return self._groups.popleft()

    def peek(self) -> I64:
        """The next group, without removing it; there must be one."""
        return self._groups[0]

    def take_late(self, now_ns: int) -> I64:
        """Remove and return the rows at or past their deadline."""
        return self._take(lambda group: group[QueueColumn.DEADLINE_NS] <= now_ns)

    def take_lane(self, number: int) -> I64:
        """Remove and return the rows of one lane."""
        return self._take(lambda group: group[QueueColumn.LANE] == number)

    def of_lane(self, number: int) -> I64:
        """The rows of one lane, without removing them."""
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
        """The earliest deadline of a waiting row; 2**63 - 1 if none waits."""
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
