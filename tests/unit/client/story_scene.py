"""A scene whose model is a generator, of whose rows the test is the worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client import thread_sequence
from batchpool.core.errors import Status
from batchpool.core.layout.states import SlotState
from tests.unit.client.scene import Scene
from tests.unit.specs import STORY
from tests.unit.stories import StoryWriter


class StoryScene(Scene):
    """slots: of the rows that were admitted and have not ended, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, STORY)
        monkeypatch.setattr(thread_sequence, "monotonic_ns", self.clock)
        self.slots: list[int] = []

    @property
    def writer(self) -> StoryWriter:
        return StoryWriter(self.pool.lane.lane)

    def admit(self) -> None:
        """The batcher takes what was submitted, and a worker begins with it."""
        self.pool.admit()
        new = [slot for slot, _ in self.pool.rows if slot not in self.slots]
        self.slots += new
        self.writer.admit(new)
        self.pool.lane.lane.state[new] = int(SlotState.RUNNING)

    def append(self, *tokens: Any, row: int = 0) -> None:
        """The worker has made tokens for a row, and rings the client's bell."""
        self.admit()
        self.writer.append(self.slots[row], *tokens)
        self.session.batchers_end.ring()

    def end(
        self, reason: bytes = b"stop", status: Status = Status.OK, text: str = "", row: int = 0
    ) -> None:
        """A row is done and completed."""
        self.admit()
        slot = self.slots.pop(row)
        uses = dict(self.pool.rows)
        self.pool.rows.remove((slot, uses[slot]))
        self.writer.end(slot, reason, status, text)
        self.pool.lane.complete(np.array([slot]), np.array([uses[slot]]))
        self.session.batchers_end.ring()

    @property
    def cancelled(self) -> list[int]:
        """The slots whose rows have been taken back."""
        lane = self.lane_client.lane
        found: list[int] = np.flatnonzero(lane.cancel == lane.sequence).tolist()
        return [slot for slot in found if lane.sequence[slot]]
