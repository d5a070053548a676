"""Drives lane clients from one asyncio loop, without a lock or a thread.

bp.AsyncClient and the HTTP front ends are built on it; those hand it a session over their channel
to the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.session import Session
from batchpool.client.streaming_slots import StreamingSlots
from batchpool.control.edges import ToFrontend
from batchpool.core.errors import DeadlineExceeded, PoolError
from batchpool.shm.doorbell import Waiter

_LOG = logging.getLogger("batchpool.client")
_LOOK_S = 0.5  # every wait has an end: look at the counters at least this often
_SAID_SOON_MS = 100.0
_TICK_S = 0.02  # how late an expired request may be noticed


class CompletionListener(Protocol):
    """The submitter of a request: called once, in the loop, when the request has ended."""

    def finished(self, pending: PendingRequest) -> bool:
        """Its rows are done, well or not, and its slots are the listener's; False: unwanted."""

    def failed(self, error: PoolError) -> None:
        """It has no rows to come: its time is up, or the pool has gone."""


# methods: the calls of submitters, and one for each event that the loop hears of.
class ClientLoop:
    """Drives the lane clients of one attached session from one running loop.

    lost: called when the pool is gone. heard: what the pool says unasked, with descriptors, which
    it does to front ends; without it nothing is read here.
    """

    def __init__(
        self,
        session: Session,
        lost: Callable[[], None] = lambda: None,
        heard: Callable[[ToFrontend, list[int]], None] | None = None,
    ) -> None:
        self.session = session
        self.over = False
        self.given_up = 0  # requests that were under way when it was closed
        self._lost = lost
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._dirty: set[LaneClient] = set()
        self._flush_planned = False
        self._streaming: dict[LaneClient, StreamingSlots] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # in their order, quick to leave
        self._reaping = False
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False  # the next look is too late for a deadline that comes now
        self._loop.add_reader(session.bell.fd, self._on_bell)
        self._loop.add_reader(session.self_bell.fd, self._on_self_bell)
        self._loop.add_reader(session.channel.fileno(), self._on_control)
        self._plan_look()

    def publish(self, lane_client: LaneClient) -> None:
        """Publish what was submitted to a lane client, whose requests' tags are listeners.

        All submissions of one iteration of the event loop are published as one group with one ring
        of the bell.
        """
        self._publish_soon(lane_client)
        if self._resting:
            self._plan_look()

    def flush(self) -> None:
        """Publish what was submitted in this iteration, without waiting for its end."""
        if self.over or not self._dirty:
            return
        for lane_client in self._dirty:
            lane_client.flush()
        self._dirty.clear()
        self.session.ring()

    def exchange(self) -> None:
        """Publish what was submitted in this iteration, and take what is done, before the loop
        looks for the bell. It may be called within `finished` of a listener."""
        if self.over or self._reaping:
            return
        self.flush()
        self._reap()

    def abandon(self, lane_client: LaneClient, pending: PendingRequest) -> None:
        """The caller is gone: cancel what has not been dispatched."""
        if not self.over and pending.remaining:
            lane_client.abandon(pending)
            self._publish_soon(lane_client)

    def watch(self, lane_client: LaneClient, slot: int, grew: Callable[[], None]) -> None:
        """Call `grew` in the loop when the row of a generator in this slot has got tokens."""
        slots = self._streaming.get(lane_client)
        if slots is None:
            slots = self._streaming[lane_client] = StreamingSlots(lane_client.lane)
        slots.add(slot, grew)

    def unwatch(self, lane_client: LaneClient, slot: int) -> None:
        """The row has ended, or nobody reads its tokens any more."""
        slots = self._streaming[lane_client]
        slots.remove(slot)
        if not len(slots):
            del self._streaming[lane_client]

    def runs_here(self) -> bool:
        """True if the running loop is the one that drives it."""
        return self._loop is asyncio.get_running_loop()

    async def room(self) -> None:
        """Wait until completions came in, somebody wakes all, or the session is over.

        It lasts no longer than until the next look at the counters, half a second: room may also
        come with time alone, which rings nothing.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def wake_waiting(self) -> None:
        """Let all that wait for room look again."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Stop driving; everything under way fails with PoolStopped."""
        if self.over:
            return
        self.over = True
        self._loop.remove_reader(self.session.bell.fd)
        self._loop.remove_reader(self.session.self_bell.fd)
        self._loop.remove_reader(self.session.channel.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for pending in self.session.fail_all():
            self.given_up += 1
            pending.tag.failed(self.session.error_of(pending))
        self.wake_waiting()
        self.session.close()

    def _publish_soon(self, lane_client: LaneClient) -> None:
        self._dirty.add(lane_client)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_as_planned)

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self.flush()

    def _on_bell(self) -> None:
        self.session.bell.clear()
        self._reap()

    def _on_self_bell(self) -> None:
        self.session.self_bell.clear()
        self._reap()

    def _reap(self) -> None:
        self._reaping = True
        try:
            any_finished = self._reap_rows()
        finally:
            self._reaping = False
        if self._streaming:
            for slots in tuple(self._streaming.values()):  # a sequence may end meanwhile
                slots.look()
        if self.session.lane_set.moving:
            self.session.let_go()
        if any_finished or self._waiting:
            self.wake_waiting()

    def _reap_rows(self) -> bool:
        """Tell listeners that their rows are done; returns whether there were any."""
        now_ns = time.monotonic_ns()
        any_finished = False
        for lane_client in self.session.lane_set.driven:
            for pending in lane_client.reap(now_ns):
                any_finished = True
                if not pending.tag.finished(pending):
                    lane_client.release(pending)
        return any_finished

    def _on_control(self) -> None:
        if self.session.is_over():
            self.close()
            self._lost()
        elif self._heard is not None and self.session.has_word():  # or `listen` was here first
            self._hear(self._heard)

    def _hear(self, heard: Callable[[ToFrontend, list[int]], None]) -> None:
        try:
            heard(*self.session.hear())
        except (OSError, ValueError):  # descriptors or memory were short
            _LOG.exception("what the pool said could not be taken")
            self.close()  # out of date for ever; who comes next is told everything
            self._lost()

    def listen(self) -> None:
        """Take now what the pool has said, or is about to say: it may still have to hear that this
        front end serves."""
        if self._heard is None or self.over:
            return
        waiter = Waiter(self.session.channel.fileno())
        while waiter.wait_ms(_SAID_SOON_MS):
            self._on_control()
            if self.over or not self.session.has_word():
                return

    def _plan_look(self) -> None:
        self._resting = not any(
            lane_client.has_rows for lane_client in self.session.lane_set.driven
        )
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LOOK_S if self._resting else _TICK_S, self._look)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        late = False
        for lane_client in self.session.lane_set.driven:
            if lane_client.lent.any_ended:
                lane_client.lent.take_back(lane_client)
            if lane_client.next_deadline_ns() <= now_ns:
                for pending in lane_client.expire(now_ns):
                    late = True
                    pending.tag.failed(
                        DeadlineExceeded(
                            f"model {lane_client.spec.name!r} did not answer before the deadline"
                        )
                    )
        if late:
            self.session.ring()
        self._reap()
        self._plan_look()
