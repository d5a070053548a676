"""Futures that bp.Client.submit returns, and the functions that resolve them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.refused_rows import with_refused
from batchpool.core.errors import PoolError


class RowsFuture(Future[dict[str, Any]]):
    """A future of outputs. Cancelling it takes back rows that have not been dispatched.

    take_back: told of a cancel; returns True the first time. check_process: raises in a process
    that was forked from the one that resolves it.
    """

    def __init__(
        self,
        take_back: Callable[[RowsFuture], bool],
        lane_client: LaneClient,
        check_process: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._check_process = check_process
        self.lane_client = lane_client
        self.pending: PendingRequest | None = None
        self.taken_back = False
        self._take_back = take_back

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """The outputs, or the error of a row raised. PoolStopped in a forked child, where nobody
        would ever resolve it, unless it was resolved before the fork."""
        if not self.done():
            self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of a row, or None; raises as `result` where there is neither."""
        if not self.done():
            self._check_process()
        return super().exception(timeout)

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self._take_back(self):
            # Without this concurrent.futures.wait and as_completed would wait for ever.
            self.set_running_or_notify_cancel()
        return True


Outcome: TypeAlias = "tuple[RowsFuture, dict[str, Any] | PoolError]"


def resolve(future: RowsFuture, outcome: dict[str, Any] | PoolError) -> None:
    """Set result or error, unless the future was cancelled meanwhile. Runs its callbacks."""
    try:
        if isinstance(outcome, PoolError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass


def failures(
    lost: Iterable[PendingRequest], error_of: Callable[[PendingRequest], PoolError]
) -> list[Outcome]:
    """Fails every future among lost requests."""
    return [(pending.tag[0], error_of(pending)) for pending in lost if pending.tag is not None]


def outcomes_of(finished: Iterable[tuple[LaneClient, PendingRequest]]) -> list[Outcome]:
    """Resolves the futures among finished requests and frees their slots."""
    outcomes: list[Outcome] = []
    for lane_client, pending in finished:
        if pending.tag is None:
            continue
        future, call = pending.tag
        # Its future refers to it: a circle would keep all of this until garbage is collected.
        pending.tag = None
        try:
            found = with_refused(call.take(lane_client, pending), call.refused)
            outcomes.append((future, found))
        except PoolError as exc:
            outcomes.append((future, exc))
    return outcomes
