"""The room for new tasks, counted over all partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from batchpool.tasks.byte_shares import ByteShares, most_of_one
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
        own, shares = self._count(sorted({task.holder for task in tasks}))
        self._counted_ms = now_ms
        return [self._lack(task, own, shares) for task in tasks]

    @property
    def _is_far(self) -> bool:
        limits = self._limits
        if self._open >= limits.open // _FAR or self._bytes >= limits.bytes // _FAR:
            return False
        most = most_of_one(limits.bytes, self._bytes, limits.share)
        return self._bytes <= most  # whoever has them

    def _count(self, origins: Sequence[str]) -> tuple[Counter[str], ByteShares]:
        """Count all open tasks and bytes, and the open tasks and bytes of these origins."""
        partitions = range(self._cells.number)
        commands = [
            Command(at, ("HMGET", at, "open", "bytes"))
            for at in (key(p, "n") for p in partitions)
        ] + [
            Command(at, ("HMGET", at, *origins))
            for name in "cb" for at in (key(p, name) for p in partitions)
        ]  # fmt: skip
        found = self._cells.link.run(commands)
        n = len(partitions)
        totals, owns, sizes = found[:n], found[n : 2 * n], found[2 * n :]
        self._open = sum(number(open_) for open_, _ in totals)
        self._bytes = sum(number(size) for _, size in totals)
        own: Counter[str] = Counter()
        shares = ByteShares()
        for counts, bytes_ in zip(owns, sizes, strict=True):
            for origin, count, size in zip(origins, counts, bytes_, strict=True):
                own[origin] += number(count)
                shares.add(origin, number(size))
        return own, shares

    def _lack(self, task: NewTask, own: Counter[str], shares: ByteShares) -> PutOutcome | None:
        limits, origin, size = self._limits, task.holder, len(task.input)
        if self._bytes >= limits.bytes:
            return PutOutcome.BYTES_FULL
        if not shares.has_room(origin, size, self._bytes, limits.bytes, limits.share):
            return PutOutcome.BYTES_SHARE_FULL
        if self._open >= limits.open:
            return PutOutcome.FULL
        has_half = own[origin] >= max(1, limits.open // 2)
        if has_half and self._open > own[origin]:
            return PutOutcome.SHARE_FULL
        own[origin] += 1
        self._open += 1
        self._bytes += size
        shares.add(origin, size)
        return None
