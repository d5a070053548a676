"""One request of a client: its slots, its deadline, and how much of it is unanswered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchpool.shm.columns import Where


class PendingRequest:
    """One request under way: n rows in n slots of one flow. `tag` is the caller's own.

    may_have_run: False once it is known that no row of it has run or will.
    """

    __slots__ = (
        "abandoned", "deadline_ns", "flow", "may_have_run", "n", "remaining", "slots", "tag",
        "where",
    )  # fmt: skip

    def __init__(
        self, slots: Sequence[int], where: Where, deadline_ns: int, flow: int, tag: Any
    ) -> None:
        self.slots = slots
        self.where = where
        self.n = len(slots)
        self.remaining = self.n
        self.deadline_ns = deadline_ns
        self.flow = flow
        self.tag = tag
        self.abandoned = False
        self.may_have_run = True
