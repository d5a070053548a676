"""Batcher and worker of a generator's lane in one, stepped from a test's loop.

The tokens of a row count up from the first element of its prompt. A token that ends in 00 is its
last; a row whose prompt begins below zero fails after two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import batchpool as bp
from batchpool.batcher.lane import AdmittedLane
from batchpool.core.errors import Status
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.stories import StoryWriter

MOST = 2000  # tokens


class Story(bp.Generator):
    """A declaration; `StoryDouble` makes its tokens."""

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(16),))
    max_tokens = MOST

    def join(self, sequences: object) -> None: ...
    def step(self) -> bp.StepTokens: ...  # type: ignore[empty-body]
    def leave(self, numbers: object) -> None: ...


@dataclass
class _Row:
    use: int
    first: int
    left: int
    made: int = 0


class StoryDouble:
    """The rows of one lane. running: by slot."""

    def __init__(self, lane: AdmittedLane) -> None:
        self.running: dict[int, _Row] = {}
        self._lane = lane
        self._writer = StoryWriter(lane.lane)

    def step(self) -> bool:
        """Take up what was submitted, and make a token for every row; False if there is none."""
        self.take()
        for slot in list(self.running):
            self._make(slot)
        if self.running:
            self._lane.ring_client()
        return bool(self.running)

    def take(self) -> None:
        """Take up what was submitted, and end what was cancelled, without a token."""
        rows, lane = self._lane.admit(), self._lane.lane
        slots = rows[QueueColumn.SLOT].tolist()
        self._writer.admit(slots)
        lane.state[slots] = int(SlotState.RUNNING)
        for slot, use in zip(slots, rows[QueueColumn.SEQUENCE].tolist(), strict=True):
            first = int(lane.inputs["prompt"].values[slot, 0])
            most = int(lane.parameters["max_tokens"].values[slot])
            self.running[slot] = _Row(use, first, max(1, min(most, MOST)))
        for slot, row in list(self.running.items()):
            if lane.cancel[slot] == row.use:
                self.end(slot, Status.CANCELLED)

    def _make(self, slot: int) -> None:
        row = self.running[slot]
        if row.first < 0 and row.made == 2:
            self.end(slot, Status.MODEL_ERROR, "the story broke off")
            return
        row.made += 1
        token = row.first + row.made
        self._writer.append(slot, token)
        if token % 100 == 0:
            self.end(slot, reason=b"stop")
        elif row.made == row.left:
            self.end(slot, reason=b"length")

    def end(
        self, slot: int, status: Status = Status.OK, text: str = "", reason: bytes = b"stop"
    ) -> None:
        """A row is over."""
        row = self.running.pop(slot)
        self._writer.end(slot, reason, status, text)
        self._lane.complete(np.array([slot]), np.array([row.use]))
        self._lane.ring_client()
