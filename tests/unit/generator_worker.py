"""A generator's worker as the batcher and the clients see it, without the process around it.

The tokens of a row follow from its prompt: `token_of(first, index)`, so that a token that is lost,
doubled or another row's shows itself. Its stores are in the order that workers keep: `launched`,
then the head of its ring; tokens, fence, length; status and reason, `finished`, the ring entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.generator import Generator, JoiningSequence, StepTokens
from batchpool.model import spec_of
from batchpool.shm.lane import Lane
from batchpool.shm.worker_segment import WorkerSegment

MOST_PROMPT, MOST_TOKENS = 8, 40


class Story(Generator):
    """The declaration only; `FakeGeneratorWorker` is what runs."""

    prompt = Tensor("prompt", "int64", (Dim(max=MOST_PROMPT),))
    token = Tensor("token", "int64")
    max_tokens = MOST_TOKENS

    def join(self, sequences: Sequence[JoiningSequence]) -> None:
        raise NotImplementedError

    def step(self) -> StepTokens:
        raise NotImplementedError

    def leave(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError


STORY: ModelSpec = spec_of(Story)


def token_of(first: int, index: int) -> int:
    """The token with this index of the row whose prompt begins with this number."""
    return 1000 * first + index


@dataclass
class RunningSequence:
    """A sequence that runs. length: its tokens; room: the most that it may have."""

    record: int
    token: int
    lane: Lane
    slot: int
    sequence: int
    first: int
    length: int
    room: int


class FakeGeneratorWorker:
    """The worker's side of a segment. lanes: mapped lanes by number."""

    def __init__(
        self,
        segment: WorkerSegment,
        lanes: dict[int, Lane],
        ring_batcher: Callable[[], None] = lambda: None,
        *,
        sequences: int = 0,
        kv_tokens: int = 0,
    ) -> None:
        self.segment = segment
        self.lanes = lanes
        self.running: dict[int, RunningSequence] = {}  # by record
        self._ring_batcher = ring_batcher
        self._sq, self._cq = segment.sq_consumer(), segment.cq_producer()
        if sequences or kv_tokens:
            segment.sequences.set(sequences)
            segment.kv_tokens.set(kv_tokens)

    def join(self, now_ns: int = 1) -> list[RunningSequence]:
        """Take all records of the ring."""
        segment, joined = self.segment, []
        entries = self._sq.peek().tolist()
        for record in [entry & 0xFFFFFFFF for entry in entries]:
            segment.start_ns_of[record] = now_ns
            segment.made_of[record] = 0
            segment.launched.set(segment.token_of[record])
            joined.append(self._read(record))
        if entries:
            self._sq.advance(len(entries))
        self.running.update({sequence.record: sequence for sequence in joined})
        return joined

    def _read(self, record: int) -> RunningSequence:
        segment = self.segment
        lane = self.lanes[int(segment.tickets[record, 0, 0])]
        slot, use = int(segment.tickets[record, 1, 0]), int(segment.tickets[record, 2, 0])
        prompt = min(int(lane.input_sizes[slot, 0]), MOST_PROMPT)
        length = int(lane.memory.array(lane.layout.columns["size.out"])[slot, 0])
        first = int(lane.inputs["prompt"].values[slot, 0])
        room = segment.tokens_of[record] - prompt
        return RunningSequence(
            record, segment.token_of[record], lane, slot, use, first, length, room
        )

    def make(self, sequence: RunningSequence, n: int = 1) -> None:
        """Make n tokens and publish them."""
        lane, start = sequence.lane, sequence.length
        for index in range(start, start + n):
            lane.outputs["token"].values[sequence.slot, index] = token_of(sequence.first, index)
        self.segment.fence()
        sequence.length = start + n
        lane.memory.array(lane.layout.columns["size.out"])[sequence.slot, 0] = sequence.length
        self.segment.made_of[sequence.record] += n

    def end(
        self,
        *sequences: RunningSequence,
        status: Status = Status.OK,
        outcome: BatchOutcome = BatchOutcome.OK,
        text: str = "of the worker",
        told: bool = True,
    ) -> None:
        """End sequences at once. told: it lives until the ring entries are there."""
        segment, entries = self.segment, []
        for sequence in sequences:
            record, slots = sequence.record, np.array([sequence.slot])
            del self.running[record]
            if outcome is not BatchOutcome.RETURNED:
                self._write_end(sequence, slots, status, text)
            segment.outcome_of[record] = int(outcome)
            segment.fence()
            segment.finished_of[record] = sequence.token
            entries.append(record | (sequence.token & 0xFFFFFFFF) << 32)
        if told and entries:
            self._cq.push(np.array(entries, dtype=np.uint64))
            self._ring_batcher()

    def _write_end(
        self, sequence: RunningSequence, slots: Array, status: Status, text: str
    ) -> None:
        lane = sequence.lane
        if status is Status.OK:
            reason = b"length" if sequence.length >= sequence.room else b"stop"
            column = lane.outputs["finish_reason"]
            assert column.lengths is not None
            column.values[sequence.slot, : len(reason)] = np.frombuffer(reason, np.uint8)
            column.lengths[sequence.slot] = len(reason)
        lane.write_status(slots, status, "" if status is Status.OK else text)
