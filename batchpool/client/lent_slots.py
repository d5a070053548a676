"""Outputs of copy=False: arrays that are views of a lane, whose slots stay claimed as long.

Every such array has a base of its own, which holds the lease of its request's slots, and what is
made of the array (a slice, a memoryview, a tensor) holds that base. So the lease ends when nothing
refers to any of them: no array ever shows another request's rows, whether it was released or not.

A lease may end in any thread and within any step of the client, as garbage is collected anywhere.
It only says so; the client takes the slots back when it needs room, or when it reaps.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Overloaded
from batchpool.core.layout.admission import SlotAllocator
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.lane import Lane
from batchpool.shm.private_pages import make_private


class LendingLane(Protocol):
    """The lane client whose slots are lent, as it is used here."""

    lane: Lane
    spec: ModelSpec
    allocator: SlotAllocator

    def result(
        self,
        pending: PendingRequest,
        outputs: Iterable[str] | None = None,
        *,
        copy: bool = True,
        padded: bool = False,
    ) -> dict[str, Any]:
        """A finished request's outputs; raises the error of a row, with the slots freed."""

    def release(self, pending: PendingRequest) -> None:
        """Free the slots of a finished request."""


class _Lease:
    """The slots of one finished request, until nobody refers to this."""

    __slots__ = ("__weakref__", "_ended", "_pending")

    def __init__(self, pending: PendingRequest, ended: deque[PendingRequest]) -> None:
        self._pending = pending
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(self._pending)  # which no other thread can come between


class _Owner:
    """The base of one array, and so of all that is made of it. Keeps the lane mapped too."""

    __slots__ = ("__array_interface__", "_lane_array", "_lease")

    def __init__(self, lane_array: Array, lease: _Lease) -> None:
        self.__array_interface__ = lane_array.__array_interface__
        self._lane_array = lane_array
        self._lease = lease


def _leased(array: Array, lease: _Lease) -> Array:
    found: Array = np.asarray(_Owner(array, lease))
    return found if found.dtype == array.dtype else found.view(array.dtype)


class OutputViews(dict[str, Any]):
    """The outputs {name: array [n, *row shape]} of a call with copy=False.

    Arrays of fixed shape are views of this client's lane where that is possible, all others are
    copies. The slots of the views stay claimed, so that other rows cannot have them, until nothing
    refers to these arrays or to what was made of them. Used as a context manager it is released at
    the end. Views stay right when the pool replaces the lane or stops, and when the client closes:
    what they show is then this process's own.
    """

    def __init__(self, outputs: Mapping[str, Any], lease: _Lease) -> None:
        super().__init__(outputs)
        self._lease = weakref.ref(lease)

    def release(self) -> bool:
        """Let go of the arrays; True if that frees their slots, False while they are in use."""
        self.clear()
        return self._lease() is None

    def __enter__(self) -> OutputViews:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class LentSlots:
    """The slots of one lane that views of its outputs keep. n: their number."""

    __slots__ = ("_ended", "_held", "n")

    def __init__(self) -> None:
        self.n = 0
        self._ended: deque[PendingRequest] = deque()
        self._held: set[PendingRequest] = set()

    def lend(
        self, lane_client: LendingLane, pending: PendingRequest, names: Iterable[str] | None
    ) -> OutputViews:
        """A finished request's outputs without copies. Raises the error of the first row that has
        one, with its slots freed."""
        found = lane_client.result(pending, names, copy=False)
        lease = _Lease(pending, self._ended)
        self._count(lane_client, pending.n)
        self._held.add(pending)
        outputs = {
            name: _leased(rows, lease) if isinstance(rows, np.ndarray) and rows.base is not None
            else rows
            for name, rows in found.items()
        }  # fmt: skip
        return OutputViews(outputs, lease)

    def take_back(self, lane_client: LendingLane) -> None:
        """Free the slots whose views are gone."""
        ended = self._ended
        while ended:
            pending = ended.popleft()
            self._count(lane_client, -pending.n)
            self._held.remove(pending)
            lane_client.release(pending)

    def _count(self, lane_client: LendingLane, more: int) -> None:
        self.n += more
        lane_client.lane.lent.set(self.n)

    @property
    def any_ended(self) -> bool:
        """True if there are slots to take back."""
        return bool(self._ended)

    def keep(self, lane_client: LendingLane) -> None:
        """Keep what the views show, before this client leaves the lane: the pool then frees it.

        Raises OSError where there is no memory for it.
        """
        self.take_back(lane_client)
        for pending in self._held:
            if isinstance(pending.where, slice):
                for column in lane_client.lane.outputs.values():
                    make_private(column.values[pending.where])

    def check_room(self, lane_client: LendingLane, n: int) -> None:
        """Raise Overloaded where n rows cannot come in whatever becomes of the rows under way, and
        could if nothing were held."""
        allocator = lane_client.allocator
        shut = allocator.shut and self.n >= allocator.reopen_below
        if self.n and n <= allocator.bound and (shut or self.n + n > allocator.bound):
            raise Overloaded(
                f"{self.n} of the {allocator.bound} slots that this client may claim of model"
                f" {lane_client.spec.name!r} are held by results of calls with copy=False, and"
                f" {n} more were wanted; release those results and let go of their arrays, or copy"
                " what has to stay"
            )
