"""A generator's worker on real memories, with the batcher's side of its ring, for tests."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import Status
from batchpool.core.layout.segments import worker_layout_of
from batchpool.core.layout.states import BatchOutcome
from batchpool.generator import FINISH_REASON, Generator
from batchpool.model import spec_of
from batchpool.shm.batch_record import write_record
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.stats.tracebacks import NoteTraceback
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.sequence_loop import SequenceLoop
from batchpool.worker.sequence_table import NEVER_NS
from tests.unit.lanes import new_lane, other_side, segment_of
from tests.unit.worker.toy_generator import Toy

MAX_LANES, SLOTS = 8, 8
SERIALS = {1: 11, 4: 44}


class SequenceBench:
    """A worker with two lanes. finished: (record, outcome) of those that it has ended."""

    def __init__(
        self,
        generator: Generator | None = None,
        *,
        sequences: int = 4,
        records: int = 4,
        slots: int = SLOTS,
        run_warm_up: Callable[[], None] = lambda: None,
        note_traceback: NoteTraceback | None = None,
    ) -> None:
        self.generator = generator or Toy()
        self.generator.sequences = sequences
        self.spec = spec_of(self.generator)
        layout = worker_layout_of(self.spec, records, MAX_LANES)
        self.segment = WorkerSegment(segment_of(layout), layout)
        self.now_ns = 1000
        self.batcher_rings = 0
        self.loop = SequenceLoop(
            self.spec,
            self.segment,
            self.generator,
            self._ring_batcher,
            lambda: self.now_ns,
            number=3,
            run_warm_up=run_warm_up,
            note_traceback=note_traceback,
        )
        self.lanes: dict[int, Lane] = {}
        self.bells: dict[int, Doorbell] = {}
        for number, serial in SERIALS.items():
            self.lanes[number] = lane = new_lane(self.spec, slots)
            self.bells[number] = bell = Doorbell()
            weakref.finalize(self, bell.close)
            self.loop.add_lane(number, serial, other_side(lane), bell)
        self._sq, self._cq = self.segment.sq_producer(), self.segment.cq_consumer()
        self._tokens = 0
        self.finished: dict[int, BatchOutcome] = {}

    def _ring_batcher(self) -> None:
        self.batcher_rings += 1

    # -- the client -----------------------------------------------------------------------

    def fill(
        self, lane: int, slot: int, prompt: Sequence[int], max_tokens: int, stop_at: int = 0
    ) -> None:
        """Write a row that begins at its first token; what an earlier use left stays."""
        own = self.lanes[lane]
        own.inputs["prompt"].store(slice(slot, slot + 1), np.array([prompt], np.int32))
        own.parameters["max_tokens"].values[slot] = max_tokens
        own.parameters["stop_at"].values[slot] = stop_at
        own.sequence[slot] += 1
        self.set_length(lane, slot, 0)

    def cancel(self, lane: int, slot: int) -> None:
        own = self.lanes[lane]
        own.cancel[slot] = own.sequence[slot]
        own.cancels.set(own.cancels.get() + 1)

    def set_length(self, lane: int, slot: int, length: int) -> None:
        self._lengths(lane)[slot] = length

    def length(self, lane: int, slot: int) -> int:
        return int(self._lengths(lane)[slot])

    def _lengths(self, lane: int) -> Any:
        return self.lanes[lane].outputs["token"].sizes[:, 0]

    def tokens(self, lane: int, slot: int) -> list[int]:
        """Those that a reader sees."""
        found: list[int] = (
            self.lanes[lane].outputs["token"].values[slot, : self.length(lane, slot)].tolist()
        )
        return found

    def end(self, lane: int, slot: int) -> tuple[Status, bytes]:
        """The status of a row and its finish reason."""
        own = self.lanes[lane]
        reason = own.outputs[FINISH_REASON].load(slice(slot, slot + 1))[0]
        return Status(int(own.status[slot])), reason

    def was_rung(self, lane: int) -> bool:
        """True if a client was rung since the last look."""
        rung = bool(Waiter(self.bells[lane].fd).wait_ms(0))
        self.bells[lane].clear()
        return rung

    # -- the batcher ----------------------------------------------------------------------

    def send(
        self, lane: int, slot: int, *, reserved: int | None = None, due_ns: int = NEVER_NS
    ) -> int:
        """A row for the worker; returns its record. reserved: by default what the row says."""
        own = self.lanes[lane]
        if reserved is None:
            prompt = int(own.input_sizes[slot, 0])
            reserved = prompt + int(own.parameters["max_tokens"].values[slot])
        segment = self.segment
        record = int(np.flatnonzero(segment.token == segment.freed)[0])
        self._tokens += 1
        tickets = np.array([[lane], [slot], [own.sequence[slot]]], dtype=np.int64)
        submit_ns = int(own.submit_ns[slot])
        write_record(
            segment, record, tickets, self._tokens, 0, 0, reserved, due_ns, submit_ns, cancels=0
        )
        segment.token_of[record] = self._tokens
        self._sq.push_few([record | self._tokens << 32])
        return record

    def take_finished(self) -> list[tuple[int, BatchOutcome]]:
        """The records that the worker has ended since the last call, which are free then."""
        found = []
        for entry in self._cq.peek().tolist():
            record, token = entry & 0xFFFFFFFF, entry >> 32
            assert self.segment.finished_of[record] == self.segment.token_of[record] == token
            found.append((record, BatchOutcome(self.segment.outcome_of[record])))
            self.segment.freed[record] = token
            self._cq.advance(1)
        return found

    def run(self, steps: int = 200) -> int:
        """Steps until there is nothing to do, or so many; returns how many did something."""
        for done in range(steps):
            if not self.loop.step():
                return done
        return steps
