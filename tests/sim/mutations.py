"""Rings, clients and workers with one ordering rule removed at a time, for test_mutations.py.

Each function patches the real classes with a small wrong copy of one of their functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.layout.states import SlotState
from batchpool.shm.ring import Consumer, Producer
from batchpool.worker.worker import Worker
from tests.sim.memory import Process

Patch = pytest.MonkeyPatch


class Hasty:
    """A consumer that moves its head before anything is handled."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def peek(self) -> Any:
        entries = self._consumer.peek()
        if len(entries):
            self._consumer.advance(len(entries))
        return entries

    def advance(self, n: int) -> None:
        pass


class Deaf:
    """A word whose stores are lost."""

    def __init__(self, word: Any) -> None:
        self.get = word.get

    def set(self, value: int) -> None:
        pass

    def raise_by(self, n: int) -> None:
        pass


class Always:
    """A column whose every slot seems to hold the same."""

    def __init__(self, column: Any, value: int) -> None:
        self._value = value
        self._column = column

    def __getitem__(self, slot: int) -> int:
        return self._value

    def __setitem__(self, slot: int, value: int) -> None:
        self._column[slot] = value


# -- rings and fences -------------------------------------------------------------------


def tail_before_entries(patch: Patch) -> None:
    def push(self: Producer, entries: Any) -> None:
        tail = self._tail
        self._commit(len(entries))
        for i, entry in enumerate(entries):
            self._entries[(tail + i) & self._mask] = int(entry)

    patch.setattr(Producer, "push", push)
    patch.setattr(Producer, "push_few", push)


def no_fence_at_all(patch: Patch) -> None:
    patch.setattr(Process, "fence", lambda self: None)


def no_fence_before_tail(patch: Patch) -> None:
    def commit(self: Producer, n: int) -> None:
        self._tail += n
        self._cells[self._tail_at] = self._tail

    patch.setattr(Producer, "_commit", commit)


def no_fence_before_finished(patch: Patch) -> None:
    publish = Worker._publish

    def hasty(self: Worker, *args: Any) -> None:
        fence = self._worker_segment.fence
        self._worker_segment.fence = lambda: None
        try:
            publish(self, *args)
        finally:
            self._worker_segment.fence = fence

    patch.setattr(Worker, "_publish", hasty)


def _hasty(patch: Patch, owner: type, name: str) -> None:
    start = owner.__init__  # type: ignore[misc]

    def init(self: Any, *args: Any, **more: Any) -> None:
        start(self, *args, **more)
        setattr(self, name, Hasty(getattr(self, name)))

    patch.setattr(owner, "__init__", init)


def batcher_passes_submissions_before_it_admits(patch: Patch) -> None:
    _hasty(patch, AdmittedLane, "_sq")


def worker_passes_a_record_before_it_is_finished(patch: Patch) -> None:
    publish = Worker._publish

    def hasty(self: Worker, *args: Any) -> None:
        consumer = self._sq
        consumer.advance(1)
        self._sq = Hasty(consumer)  # type: ignore[assignment]
        try:
            publish(self, *args)
        finally:
            self._sq = consumer

    patch.setattr(Worker, "_publish", hasty)


# -- the client -------------------------------------------------------------------------


class WritesNothing:
    """Stands for the writer of a lane's rows, whose headers it writes."""

    def __init__(self, writer: Any) -> None:
        self.write_header = writer.write_header

    def write(self, *_: Any) -> None:
        pass


def entry_before_payload(patch: Patch) -> None:
    submit = LaneClient.submit

    def hasty(
        self: LaneClient, rows: Any, now_ns: int, deadline_ns: int, **more: Any
    ) -> PendingRequest:
        writer, self._rows = self._rows, WritesNothing(self._rows)  # type: ignore[assignment]
        try:
            pending = submit(self, rows, now_ns, deadline_ns, **more)
        finally:
            self._rows = writer
        self.flush()
        writer.write(pending.where, rows)
        return pending

    patch.setattr(LaneClient, "submit", hasty)


def entry_before_header(patch: Patch) -> None:
    submit = LaneClient.submit

    def hasty(self: LaneClient, *args: Any, **more: Any) -> PendingRequest:
        headers: list[Any] = []
        rows: Any = self._rows
        write_header = rows.write_header
        rows.write_header = lambda *header: headers.append(header)
        try:
            pending = submit(self, *args, **more)
        finally:
            rows.write_header = write_header
        self.flush()
        write_header(*headers[0])
        return pending

    patch.setattr(LaneClient, "submit", hasty)


def entry_before_submitted(patch: Patch) -> None:
    submit = LaneClient.submit

    def hasty(self: LaneClient, *args: Any, **more: Any) -> PendingRequest:
        real = self._state
        self._state = {}
        try:
            pending = submit(self, *args, **more)
        finally:
            self._state = real
        for slot in pending.slots:
            self._state[slot] = SlotState.FILLING
        self.flush()
        for slot in pending.slots:
            self._state[slot] = SlotState.SUBMITTED
        return pending

    patch.setattr(LaneClient, "submit", hasty)


def cancel_counted_before_its_words(patch: Patch) -> None:
    abandon = LaneClient.abandon

    def hasty(self: LaneClient, pending: PendingRequest) -> None:
        self.flush()
        cancels = self.lane.cancels
        cancels.set(cancels.get() + 1)
        self.lane.cancels = Deaf(cancels)  # type: ignore[assignment]
        try:
            abandon(self, pending)
        finally:
            self.lane.cancels = cancels

    patch.setattr(LaneClient, "abandon", hasty)


def cancel_before_its_row_is_published(patch: Patch) -> None:
    abandon = LaneClient.abandon

    def hasty(self: LaneClient, pending: PendingRequest) -> None:
        queued, self._queued = self._queued, []
        try:
            abandon(self, pending)
        finally:
            self._queued = queued

    patch.setattr(LaneClient, "abandon", hasty)


def client_trusts_completion_entries(patch: Patch) -> None:
    """Neither the slot's state nor its use is compared with the entry."""
    complete = LaneClient._complete

    def trusting(self: LaneClient, tickets: Any, finished: list[PendingRequest]) -> None:
        real, self._state = self._state, Always(self._state, SlotState.DONE)
        try:
            complete(self, ((slot, self._uses[slot]) for slot, _ in tickets), finished)
        finally:
            self._state = real

    def done_slots_only(self: LaneClient, finished: list[PendingRequest]) -> None:
        self._generation = self.lane.generation.get()
        mine = [
            s for s, owner in enumerate(self._owner) if owner and self._state[s] == SlotState.DONE
        ]
        complete(self, ((slot, self._uses[slot]) for slot in mine), finished)

    patch.setattr(LaneClient, "_complete", trusting)
    patch.setattr(LaneClient, "_look_again", done_slots_only)


def client_looks_for_no_done_slots(patch: Patch) -> None:
    patch.setattr(LaneClient, "_look_again", lambda self, finished: None)


# -- the worker -------------------------------------------------------------------------


def finished_before_outputs(patch: Patch) -> None:
    finish = Worker._finish_oldest

    def hasty(self: Worker) -> None:
        flight = self._in_flight[0]
        self._worker_segment.outcome[flight.record] = 1
        self._worker_segment.finished[flight.record] = flight.token
        finish(self)

    patch.setattr(Worker, "_finish_oldest", hasty)


def record_entry_before_outputs(patch: Patch) -> None:
    finish = Worker._finish_oldest
    publish = Worker._publish

    def hasty(self: Worker) -> None:
        publish(self, self._in_flight[0], 1, 0, 0)  # type: ignore[arg-type]
        self._in_flight.appendleft(hasty.flight)  # type: ignore[attr-defined]
        finish(self)

    def once(self: Worker, flight: Any, *args: Any) -> None:
        self._in_flight.popleft()

    def remember(self: Worker) -> None:
        hasty.flight = self._in_flight[0]  # type: ignore[attr-defined]
        hasty(self)

    patch.setattr(Worker, "_finish_oldest", remember)
    patch.setattr(Worker, "_publish", once)


def record_entry_before_finished(patch: Patch) -> None:
    publish = Worker._publish

    def hasty(self: Worker, flight: Any, *args: Any) -> None:
        segment = self._worker_segment
        real, segment.finished_of = segment.finished_of, {}
        try:
            publish(self, flight, *args)
        finally:
            segment.finished_of = real
        segment.finished[flight.record] = flight.token

    patch.setattr(Worker, "_publish", hasty)


def no_bell(owner: type, method: str, bell: str) -> Callable[[Patch], None]:
    """`method` does all but ring."""
    real = getattr(owner, method)

    def quietly(self: Any, *args: Any) -> Any:
        ring = getattr(self, bell)
        setattr(self, bell, lambda: None)
        try:
            return real(self, *args)
        finally:
            setattr(self, bell, ring)

    return lambda patch: patch.setattr(owner, method, quietly)
