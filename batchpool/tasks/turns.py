"""The order in which tasks of several callers are claimed: in turns, by rows.

A task's turn is the row at which its caller's own line has arrived, and a caller whose line was
empty joins where the tasks that are claimed now are. So a caller with 100,000 tasks holds up its
own and nobody else's. (Start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996.)
"""

from __future__ import annotations

from collections.abc import Iterable

_PRUNED_AT = 4096  # lines that are remembered before those that have ended are looked for


class Turns:
    """The lines of all callers, for each model its own."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}  # the turn that was claimed last, by model
        self._ends: dict[tuple[str, str], int] = {}  # of a caller's line, by model and caller
        self._prune_at = _PRUNED_AT

    def join(self, model: str, caller: str, rows: int, *, is_idle: bool) -> int:
        """The turn of a new task. is_idle: its caller has no open task, so its line is empty."""
        line = model, caller
        now = self._now.get(model, 0)
        turn = now if is_idle else max(now, self._ends.get(line, 0))
        self._ends[line] = turn + rows
        if len(self._ends) > self._prune_at:
            self._prune()
        return turn

    def claimed(self, model: str, turn: int) -> None:
        """A task with this turn is claimed."""
        self._now[model] = max(self._now.get(model, 0), turn)

    def _prune(self) -> None:
        """Forget the lines whose ends have been claimed: they are as good as empty."""
        self._ends = {
            line: end for line, end in self._ends.items() if end > self._now.get(line[0], 0)
        }
        self._prune_at = max(_PRUNED_AT, 2 * len(self._ends))

    def load(self, lines: Iterable[tuple[str, str, int, int]]) -> None:
        """Begin anew with (model, caller, first turn, end of the line) of queued tasks."""
        self._now.clear()
        self._ends.clear()
        for model, caller, first, end in lines:
            self._now[model] = min(self._now.get(model, first), first)
            self._ends[model, caller] = end
