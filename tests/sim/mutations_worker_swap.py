"""Changes of duty with one rule removed at a time; as tests/sim/mutations_batcher.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.worker import WorkerProxy
from tests.sim.mutations import Patch


def off_duty_is_not_heard(patch: Patch) -> None:
    """A replaced worker gets further batches: a reload would mix old and new answers."""
    relieve = Batcher.relieve

    def deaf(self: Batcher, on: Iterable[int], off: Iterable[int], turn: int) -> None:
        off = list(off)
        relieve(self, on, off, turn)
        for number in off:
            if number in self.crew:
                self.crew[number].on_duty = True

    patch.setattr(Batcher, "relieve", deaf)


def takeover_forgets_who_is_off_duty(patch: Patch) -> None:
    add_worker = Batcher.add_worker

    def forgetful(self: Batcher, member: WorkerProxy, turn: int = 0) -> None:
        add_worker(self, member, turn)
        member.on_duty = True

    patch.setattr(Batcher, "add_worker", forgetful)


def idle_with_rows_in_flight(patch: Patch) -> None:
    """A standby that is ended with rows aboard makes them suspects, or costs them an attempt."""

    def hasty(self: Batcher) -> list[tuple[int, int]]:
        idle = list(self._leaving.items())
        self._leaving.clear()
        return idle

    patch.setattr(Batcher, "take_idle", hasty)


def suspects_of_whom_has_left_do_not_count(patch: Patch) -> None:
    """The next group leaves while one still runs on a worker that is off duty."""
    dispatch_apart = Batcher._dispatch_apart

    def hasty(self: Batcher, model: Any, crew: list[WorkerProxy], now_ns: int) -> None:
        everybody, self.crew = self.crew, {member.number: member for member in crew}
        dispatch_apart(self, model, crew, now_ns)
        self.crew = everybody

    patch.setattr(Batcher, "_dispatch_apart", hasty)
