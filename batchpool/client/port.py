"""The client's side of one lane: claim, submit, reap, and what to do when time is up.

A `Port` belongs to one thread or loop at a time and never waits, reads no clock and calls
nobody: the caller brings `now_ns` (CLOCK_MONOTONIC) and takes back what is finished. The
sync client, the async client and the HTTP front ends are skins over it.

    submit  claims slots, writes rows and headers, and queues the tickets
    flush   publishes all queued tickets as one group; the caller rings the bell
    reap    takes completions; returns the requests that are finished
    expire  returns the requests whose deadline has passed; their slots stay claimed,
            abandoned, until the batcher is done with them
    result  reads a finished request's outputs and frees its slots
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from batchpool.client.pace import Pace
from batchpool.core.errors import (
    Draining,
    InternalError,
    NotReady,
    Overloaded,
    PoolError,
    Status,
    TooLarge,
    error_for,
)
from batchpool.core.lifecycle import Gate, State
from batchpool.core.slots import SlotMap
from batchpool.core.tensors import Array, Rows
from batchpool.shm.columns import Where, where_of
from batchpool.shm.lane import Lane
from batchpool.shm.ring import unpack

_NEVER_NS = 2**63 - 1
# Plain ints: cheaper to store and to compare than members of an enum.
_FREE, _FILLING = int(State.FREE), int(State.FILLING)
_SUBMITTED, _DONE = int(State.SUBMITTED), int(State.DONE)
_OPEN = int(Gate.OPEN)
_U32 = 0xFFFFFFFF


class Pending:
    """One request under way: n rows in n slots. `tag` is the caller's own."""

    __slots__ = ("abandoned", "deadline_ns", "n", "remaining", "slots", "tag", "where")

    def __init__(self, slots: Sequence[int], where: Where, deadline_ns: int, tag: Any) -> None:
        self.slots = slots
        self.where = where
        self.n = len(slots)
        self.remaining = self.n
        self.deadline_ns = deadline_ns
        self.tag = tag
        self.abandoned = False


class Port:
    """Claims and completions of one lane."""

    def __init__(
        self,
        lane: Lane,
        *,
        watermark: float = 0.90,
        serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self.lane = lane
        self.spec = lane.spec
        self.map = SlotMap(lane.slots, watermark)
        self.pace = Pace()
        self.stale = 0
        self._serving = serving
        self._sq = lane.sq_producer()
        self._cq = lane.cq_consumer()
        self._state = lane.scalars("state")
        self._status = lane.scalars("status")
        self._sequence = lane.scalars("sequence")
        self._deadline = lane.scalars("deadline_ns")
        self._submit = lane.scalars("submit_ns")
        self._priority = lane.scalars("priority")
        self._flow = lane.scalars("flow")
        self._uses = [0] * lane.slots
        self._owner: list[Pending | None] = [None] * lane.slots
        self._due = np.full(lane.slots, _NEVER_NS, dtype=np.int64)
        self._due_at = memoryview(self._due.data)
        self._queued: list[int] = []
        self._generation = lane.generation.get()
        self._inputs = list(lane.inputs.items())
        self._parameters = list(lane.parameters.items())

    # -- claim and submit ---------------------------------------------------------------

    def check(self, n: int) -> None:
        """Raise what a claim of n rows would meet now: TooLarge or one of the 503s."""
        if n > self.map.bound:
            raise TooLarge(
                f"{n} rows at once; model {self.spec.name!r} takes at most {self.map.bound}"
                " here: send them in smaller requests"
            )
        self.check_gate()
        if not self.map.admits(n):
            self.lane.refused.set(self.lane.refused.get() + 1)
            over = self.map.claimed + n - self.map.reopen_below
            raise Overloaded(
                f"model {self.spec.name!r} is overloaded: {self.map.claimed} of"
                f" {self.map.slots} slots are in use",
                self.pace.wait_ms(over),
            )

    def check_gate(self) -> None:
        """Raise why the lane takes no claims at all now, if so."""
        gate = self.lane.gate.get()
        if gate != _OPEN:
            raise self._shut(gate)
        if not self._serving():
            raise NotReady(f"no worker serves model {self.spec.name!r} now")

    def _shut(self, gate: int) -> PoolError:
        name = self.spec.name
        if gate == Gate.DRAINING:
            return Draining("the pool is shutting down")
        if gate == Gate.BROKEN:
            return InternalError(f"this client's lane to model {name!r} was closed as broken")
        return NotReady(f"model {name!r} is not open for requests yet")

    def may_claim(self, n: int) -> bool:
        """Whether a claim of n rows would be admitted; asking never shuts the lane."""
        return self.map.would_admit(n)

    def submit(
        self,
        rows: Rows,
        now_ns: int,
        deadline_ns: int,
        *,
        priority: int = 0,
        flow: int = 0,
        tag: Any = None,
    ) -> Pending:
        """Claim slots for checked rows, write them, and queue their tickets for `flush`."""
        n = rows.n
        self.check(n)
        if deadline_ns > _NEVER_NS:
            deadline_ns = _NEVER_NS
        slots: Sequence[int] = (self.map.take_one(),) if n == 1 else self.map.take(n)
        where = slice(slots[0], slots[0] + 1) if n == 1 else where_of(slots)
        for slot in slots:
            self._state[slot] = _FILLING
        try:
            for name, column in self._inputs:
                column.store(where, rows.tensors[name])
            for name, column in self._parameters:
                column.values[where] = rows.parameters[name]
            for slot in slots:
                self._deadline[slot] = deadline_ns
                self._submit[slot] = now_ns
                self._priority[slot] = priority
                self._flow[slot] = flow
        except BaseException:
            self._free(slots)
            raise
        pending = Pending(slots, where, deadline_ns, tag)
        for slot in slots:
            use = (self._uses[slot] + 1) & _U32
            self._uses[slot] = use
            self._sequence[slot] = use
            self._owner[slot] = pending
            self._state[slot] = _SUBMITTED
            self._queued.append(slot | use << 32)
        self._due_at[slots[0]] = deadline_ns
        return pending

    def flush(self) -> int:
        """Publish the queued tickets as one group; returns how many. Ring the bell if any."""
        queued = self._queued
        n = len(queued)
        if n:
            if n <= 8:
                self._sq.push_few(queued)
            else:
                self._sq.push(np.array(queued, dtype=np.uint64))
            queued.clear()
            self.lane.claimed.set(self.map.claimed)
        return n

    # -- completions --------------------------------------------------------------------

    def reap(self, now_ns: int) -> list[Pending]:
        """Take all completions; returns the requests that are finished and not abandoned."""
        finished: list[Pending] = []
        entries = self._cq.peek()
        if len(entries):
            slots, sequences = unpack(entries)
            self._complete(zip(slots.tolist(), sequences.tolist(), strict=True), finished)
            self._cq.advance(len(entries))
            self.pace.count(len(entries), now_ns)
        if self.lane.generation.get() != self._generation:
            self._after_takeover(finished)
        return finished

    def _complete(self, tickets: Iterable[tuple[int, int]], finished: list[Pending]) -> None:
        owner, uses = self._owner, self._uses
        for slot, use in tickets:
            pending = owner[slot] if slot < len(owner) else None
            if pending is None or uses[slot] != use or self._state[slot] != _DONE:
                self.stale += 1
                continue
            owner[slot] = None
            pending.remaining -= 1
            if pending.remaining:
                continue
            self._due_at[pending.slots[0]] = _NEVER_NS
            if pending.abandoned:
                self._free(pending.slots)
            else:
                finished.append(pending)

    def _after_takeover(self, finished: list[Pending]) -> None:
        """A new batcher: the old one may have died between DONE and the completion entry."""
        self._generation = self.lane.generation.get()
        done = np.flatnonzero(self.lane.state == _DONE).tolist()
        mine = [slot for slot in done if self._owner[slot] is not None]
        self._complete(((slot, self._uses[slot]) for slot in mine), finished)

    def expire(self, now_ns: int) -> list[Pending]:
        """The requests whose deadline has passed, now abandoned; answer their callers."""
        overdue: list[Pending] = []
        for first in np.flatnonzero(self._due <= now_ns).tolist():
            pending = self._owner_of_request(first)
            if pending is not None:
                overdue.append(pending)
                self.abandon(pending)
        return overdue

    def _owner_of_request(self, first: int) -> Pending | None:
        pending = self._owner[first]
        if pending is None:  # its first row is done already, others are not
            for candidate in self._owner:
                if candidate is not None and candidate.slots[0] == first:
                    return candidate
        return pending

    def next_deadline_ns(self) -> int:
        """The earliest deadline of a request under way; 2**63 - 1 if there is none."""
        return int(self._due.min())

    # -- results and ends ---------------------------------------------------------------

    def failure(self, pending: Pending) -> PoolError | None:
        """The error of a finished request's first row that has one."""
        if pending.n == 1:
            slot = pending.slots[0]
            status = self._status[slot]
            return error_for(status, self.lane.read_message(slot)) if status else None
        for slot in pending.slots:
            status = self._status[slot]
            if status != Status.OK:
                return error_for(status, self.lane.read_message(slot))
        return None

    def result(
        self, pending: Pending, outputs: Iterable[str] | None = None, *, copy: bool = True
    ) -> dict[str, Array]:
        """A finished request's outputs {name: [n, *row shape]}; frees its slots.

        Raises the error of the first row that has one. With copy=False fixed tensors in
        neighbouring slots are views of the lane, valid until `release`, which the caller owes.
        """
        try:
            error = self.failure(pending)
            if error is not None:
                raise error
            found: dict[str, Array] = {}
            for name in self.lane.outputs if outputs is None else outputs:
                rows = self.lane.outputs[name].load(pending.where)
                found[name] = rows.copy() if copy and rows.base is not None else rows
        except BaseException:
            self._free(pending.slots)
            raise
        if copy:
            self._free(pending.slots)
        return found

    def release(self, pending: Pending) -> None:
        """Free the slots of a finished request: its views are done with, or nobody wants it."""
        self._free(pending.slots)

    def abandon(self, pending: Pending) -> None:
        """The caller has its answer or has gone: cancel what has not been dispatched.

        The slots stay claimed until the batcher is done with them. Ring the bell after.
        """
        if pending.abandoned or pending.remaining == 0:
            return
        self.flush()  # the batcher looks for cancelled rows among those it has admitted
        pending.abandoned = True
        self._due_at[pending.slots[0]] = _NEVER_NS
        for slot in pending.slots:
            if self._owner[slot] is pending:
                self.lane.cancel[slot] = self._uses[slot]
        self.lane.cancels.set(self.lane.cancels.get() + 1)

    def in_flight(self) -> list[Pending]:
        """Every request with rows under way that is not abandoned."""
        seen: dict[int, Pending] = {}
        for pending in self._owner:
            if pending is not None and not pending.abandoned:
                seen[id(pending)] = pending
        return list(seen.values())

    def fail_all(self) -> list[Pending]:
        """The pool is gone: every request under way, to be answered with PoolStopped."""
        lost = self.in_flight()
        for pending in lost:
            pending.abandoned = True
        return lost

    def _free(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._state[slot] = _FREE
        if len(slots) == 1:
            self.map.give_back(slots[0])
        else:
            self.map.give_back_many(slots)
        self.lane.claimed.set(self.map.claimed)
        if not self.map.claimed:
            self.pace.pause()
