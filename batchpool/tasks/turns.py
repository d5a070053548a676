"""The order in which tasks are claimed: in turns by origin, within an origin by caller, by rows.

A caller may give itself any number of names, but no origin (batchpool/tasks/byte_shares.py). So
turns are those of origins, and more names never give more than the turns of their origin, which
they share. In both levels it is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996):

    turn of an origin   the row at which its next task begins. Each task that is claimed puts it
                        off by its rows, and an origin of which nothing waits comes back where the
                        origins are that are claimed now, or at its own turn where that is later.
    turn of a task      the same for the callers of one origin. It is given when the task comes, and
                        a caller whose line is empty joins where its origin is now.

So an origin with 100,000 tasks holds up its own and nobody else's, and so does a name within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

_PRUNED_AT = 4096  # lines that are remembered before those that have ended are looked for


class Head(NamedTuple):
    """A task at the front of its origin's line. n: its number. bytes: of its input."""

    n: int
    turn: int
    rows: int
    bytes: int


# Of these origins the tasks that wait: as many of each as the first number says, behind as many as
# the second one says, in the order of their turns.
Read = Callable[[Sequence[str], int, int], Sequence[list[Head]]]


class Turns:
    """The turns of all origins and callers, for each model its own."""

    def __init__(self) -> None:
        self._models: dict[str, _OriginTurns] = {}

    def join(self, model: str, origin: str, caller: str, rows: int) -> int:
        """The turn, within its origin, of a task that waits from now on."""
        origins = self._models.get(model)
        if origins is None:
            origins = self._models[model] = _OriginTurns()
        return origins.line(origin).join(caller, rows)

    def take(self, model: str, tasks: int, most_bytes: int, read: Read) -> list[Head]:
        """The next tasks of a model, which wait no more: so many at most, and of so many bytes, but
        for the first one."""
        origins = self._models.get(model)
        if origins is None or tasks <= 0:
            return []
        found = origins.take(tasks, most_bytes, read)
        if origins.are_gone:  # a model of which nothing waits begins anew
            del self._models[model]
        return found

    def load(self, lines: Iterable[tuple[str, str, str, int, int]]) -> None:
        """Begin anew with (model, origin, caller, first turn, end of the line) of tasks that
        wait; all origins are at the same turn."""
        self._models.clear()
        for model, origin, caller, first, end in lines:
            origins = self._models.setdefault(model, _OriginTurns())
            origins.line(origin).load(caller, first, end)


class _CallerTurns:
    """The tasks of one origin that wait, as far as they are known: some may have gone otherwise."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}  # of a caller's line
        self._now: int | None = None  # the turn of the task that was claimed last
        self._prune_at = _PRUNED_AT

    def join(self, caller: str, rows: int) -> int:
        turn = max(self._now or 0, self._ends.get(caller, 0))
        self._ends[caller] = turn + rows
        if len(self._ends) > self._prune_at:
            self._ends = {name: end for name, end in self._ends.items() if end > (self._now or 0)}
            self._prune_at = max(_PRUNED_AT, 2 * len(self._ends))
        return turn

    def claimed(self, turn: int) -> None:
        self._now = turn

    def load(self, caller: str, first: int, end: int) -> None:
        self._ends[caller] = end
        self._now = first if self._now is None else min(self._now, first)


class _OriginTurns:
    """The origins of which tasks wait for one model."""

    def __init__(self) -> None:
        self._now = 0  # the turn of the origin that was claimed last
        self._lines: dict[str, _CallerTurns] = {}
        # (turn, number, origin) of each line, as a heap: of equal turns the one that was set first.
        self._order: list[tuple[int, int, str]] = []
        self._set = 0
        self._left: dict[str, int] = {}  # the turns of origins of which nothing waits

    @property
    def are_gone(self) -> bool:
        """True if no task waits."""
        return not self._lines

    def line(self, origin: str) -> _CallerTurns:
        """The line of an origin, which is behind none of those that wait where it is new."""
        line = self._lines.get(origin)
        if line is None:
            line = self._lines[origin] = _CallerTurns()
            self._set += 1
            turn = max(self._now, self._left.pop(origin, 0))
            heappush(self._order, (turn, self._set, origin))
        return line

    def take(self, tasks: int, most_bytes: int, read: Read) -> list[Head]:
        near = [heappop(self._order) for _ in range(min(tasks, len(self._order)))]
        each = 1 + -(-tasks // len(near))  # one more, which tells whether anything is left
        # Of each origin what is left of the tasks that were read, the next one last, and how many
        # were read; those of which there is no more are in `ended`.
        rest = {
            origin: heads[::-1]
            for (*_, origin), heads in zip(near, read([o for *_, o in near], each, 0), strict=True)
        }
        n_read = {origin: len(heads) for origin, heads in rest.items()}
        ended = {origin for origin, n in n_read.items() if n < each}
        found: list[Head] = []
        size = 0
        while near and len(found) < tasks:
            turn, _, origin = near[0]
            heads = rest.get(origin)
            if not heads and origin not in ended:
                at, most = n_read.get(origin, 0), 1 + tasks - len(found)
                heads = rest[origin] = read([origin], most, at)[0][::-1]
                n_read[origin] = at + len(heads)
                if len(heads) < most:
                    ended.add(origin)
            if not heads:
                heappop(near)
                self._leave(origin, turn)
                if self._order:
                    heappush(near, heappop(self._order))
                continue
            head = heads[-1]
            size += head.bytes
            if found and size > most_bytes:
                break
            heads.pop()
            found.append(head)
            self._lines[origin].claimed(head.turn)
            self._now = turn
            if heads or origin not in ended:
                self._set += 1
                heapreplace(near, (turn + head.rows, self._set, origin))
            else:
                heappop(near)
                self._leave(origin, turn + head.rows)
        for entry in near:
            heappush(self._order, entry)
        return found

    def _leave(self, origin: str, turn: int) -> None:
        """Nothing of an origin waits any more."""
        del self._lines[origin]
        self._left[origin] = turn
        if len(self._left) > _PRUNED_AT:
            self._left = {name: at for name, at in self._left.items() if at > self._now}
            if len(self._left) > _PRUNED_AT // 2:  # each of them may come once too early
                self._left.clear()
