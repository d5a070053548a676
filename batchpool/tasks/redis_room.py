"""The room for new tasks, counted over all partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from batchpool.tasks.record import NewTask, PutOutcome, StoreLimits
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_forms import number
from batchpool.tasks.redis_keys import key
from batchpool.tasks.redis_link import Command

_FAR = 4  # a count below this part of its limit is far from it
_COUNTED_FOR_MS = 1000


class Room:
    """The limits of the store. Other pools put at the same time: they may pass a limit by what
    each of them puts in one round trip."""

    def __init__(self, cells: Cells, limits: StoreLimits) -> None:
        self._cells = cells
        self._limits = limits
        self._counted_ms: int | None = None
        self._open = self._bytes = 0

    def lacks(self, tasks: Sequence[NewTask], now_ms: int) -> list[PutOutcome | None]:
        """The limit that keeps each of these out, None where there is room for it."""
        counted_ms = self._counted_ms
        recent = counted_ms is not None and 0 <= now_ms - counted_ms < _COUNTED_FOR_MS
        if recent and self._is_far:
            self._open += len(tasks)
            self._bytes += sum(len(task.input) for task in tasks)
            return [None] * len(tasks)
        own = self._count(sorted({task.caller for task in tasks}))
        self._counted_ms = now_ms
        return [self._lack(task, own) for task in tasks]

    @property
    def _is_far(self) -> bool:
        limits = self._limits
        return self._open < limits.open // _FAR and self._bytes < limits.bytes // _FAR

    def _count(self, callers: Sequence[str]) -> Counter[str]:
        """Count all open tasks and bytes, and the open tasks of these callers."""
        partitions = range(self._cells.number)
        commands = [
            Command(at, ("HMGET", at, "open", "bytes"))
            for at in (key(p, "n") for p in partitions)
        ] + [
            Command(at, ("HMGET", at, *callers)) for at in (key(p, "c") for p in partitions)
        ]  # fmt: skip
        found = self._cells.link.run(commands)
        totals, owns = found[: len(partitions)], found[len(partitions) :]
        self._open = sum(number(open_) for open_, _ in totals)
        self._bytes = sum(number(size) for _, size in totals)
        own: Counter[str] = Counter()
        for counts in owns:
            for caller, count in zip(callers, counts, strict=True):
                own[caller] += number(count)
        return own

    def _lack(self, task: NewTask, own: Counter[str]) -> PutOutcome | None:
        limits = self._limits
        if self._bytes >= limits.bytes:
            return PutOutcome.BYTES_FULL
        if self._open >= limits.open:
            return PutOutcome.FULL
        has_half = own[task.caller] >= max(1, limits.open // 2)
        if has_half and self._open > own[task.caller]:
            return PutOutcome.SHARE_FULL
        own[task.caller] += 1
        self._open += 1
        self._bytes += len(task.input)
        return None
