"""The running sequences of a worker, as one array for each of their facts."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

NEVER_NS = 2**63 - 1


class SequenceTable:
    """The facts of up to n sequences, each [n], by the number that a sequence has while it runs.

    active: it runs.  record, token: its batch record and the record's token.  lane, slot, use:
    where its row stands; `use` is the slot's sequence number.  due_ns: its deadline, NEVER_NS for a
    number that is free.  length: the tokens that it has.  most: those that it may have.  reserved:
    those that the batcher set aside for it, its prompt among them.  submit_ns: of its row.
    last_ns: when its last token was made; 0 before the first, now where it joined with some.
    """

    def __init__(self, n: int) -> None:
        self.active = np.zeros(n, dtype=np.bool_)
        self.due_ns = np.full(n, NEVER_NS, dtype=np.int64)
        self.record = _zeros(n)
        self.token = _zeros(n)
        self.lane = _zeros(n)
        self.slot = _zeros(n)
        self.use = _zeros(n)
        self.length = _zeros(n)
        self.most = _zeros(n)
        self.reserved = _zeros(n)
        self.submit_ns = _zeros(n)
        self.last_ns = _zeros(n)
        self._free = list(range(n))  # a heap: low numbers keep a generator's batch short
        self._n = n

    def __len__(self) -> int:
        """The sequences that run."""
        return self._n - len(self._free)

    @property
    def free(self) -> int:
        """The numbers that are free."""
        return len(self._free)

    def take(self) -> int:
        """A number for a sequence, the lowest that is free; its facts are still to be written."""
        number = heapq.heappop(self._free)
        self.active[number] = True
        self.last_ns[number] = 0
        return number

    def give_back(self, numbers: npt.NDArray[np.int64]) -> None:
        """These sequences run no more."""
        self.active[numbers] = False
        self.due_ns[numbers] = NEVER_NS
        self.reserved[numbers] = 0
        for number in numbers.tolist():
            heapq.heappush(self._free, number)

    def running(self) -> npt.NDArray[np.int64]:
        """The numbers of all running sequences."""
        return np.flatnonzero(self.active)

    def of_lane(self, lane: int) -> npt.NDArray[np.int64]:
        """The numbers of the sequences of a lane."""
        return np.flatnonzero(self.active & (self.lane == lane))

    def late(self, now_ns: int) -> npt.NDArray[np.int64]:
        """The numbers of the sequences whose deadlines have passed."""
        return np.flatnonzero(self.due_ns <= now_ns)


def _zeros(n: int) -> npt.NDArray[np.int64]:
    return np.zeros(n, dtype=np.int64)
