"""The other side of a generator's lane: tokens appended to rows by the rules of a worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.core.errors import Status
from batchpool.shm.lane import Lane


class StoryWriter:
    """Appends tokens to the rows of one lane, the slots of which another process would map."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._tokens, self._reasons = lane.outputs.values()

    def admit(self, slots: Any) -> None:
        """As the batcher does with rows that it takes."""
        self._tokens.sizes[slots, 0] = 0

    def append(self, slot: int, *tokens: Any) -> None:
        """First the tokens, then their number."""
        length = int(self._tokens.sizes[slot, 0])
        self._tokens.values[slot, length : length + len(tokens)] = tokens
        self._tokens.sizes[slot, 0] = length + len(tokens)

    def end(
        self, slot: int, reason: bytes = b"stop", status: Status = Status.OK, text: str = ""
    ) -> None:
        """The words of a row that is done, without the completion."""
        if status is Status.OK:
            self._reasons.store(slice(slot, slot + 1), np.array([reason], dtype=object))
        self._lane.write_status(np.array([slot]), status, text)
