"""One model of an attached session, as a protocol server calls it: rows in, output rows out.

An `Endpoint` takes checked rows with their flow, priority and deadline, and gives back the outputs
that the caller wants. It knows no protocol: headers, encodings, bodies and status codes belong to
the layer above (`HttpEndpoint` for HTTP). The steps of one request:

    admit    raises why a claim of one row would be refused now; for use before the rows are there
    submit   claims slots and queues the rows; the listener is called when they end
    fetch    gives copies of the outputs and frees the slots; raises the error of a row
    abandon  takes back rows whose caller has gone

No step waits, so each runs on the event loop. Times are CLOCK_MONOTONIC in nanoseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from batchpool.client.lane_client import LaneClient
from batchpool.client.loop import ClientLoop, CompletionListener
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.running_sequence import RunningSequence
from batchpool.core.errors import Cancelled, DeadlineExceeded
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows

NO_DEADLINE_NS = 2**63 - 1


class Endpoint:
    """One model's lane client in one process. facts: the model's spec and limits."""

    def __init__(self, facts: ModelFacts, lane_client: LaneClient, client_loop: ClientLoop) -> None:
        self.lane_client = lane_client
        self._client_loop = client_loop
        self.learn(facts)

    def learn(self, facts: ModelFacts) -> None:
        """Take other limits from now on; the tensors of the model stay as they are."""
        self.facts = facts
        self._limit_ns = int(facts.request_timeout_s * 1e9)
        self.lane_client.set_watermark(facts.watermark)

    def admit(self, flow: int, priority: int, now_ns: int) -> None:
        """Raise what a claim of one row would meet now: one of the 503 errors, or Moved.

        Claims nothing; a refusal by the lane is counted. `submit` decides by itself and needs no
        `admit` before it.
        """
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        self.lane_client.check(1, now_ns, flow=flow, priority=priority)

    def check_open(self) -> None:
        """Raise why no request at all can come in now, if so; overload is no such reason."""
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        self.lane_client.check_gate(time.monotonic_ns())

    def submit(
        self,
        rows: Rows,
        listener: CompletionListener,
        *,
        now_ns: int,
        flow: int,
        priority: int = 0,
        deadline_ns: int = NO_DEADLINE_NS,
    ) -> PendingRequest:
        """Claim slots, write the rows and queue them.

        flow: rows of different flows get fair shares of the lane; 0 has no share. priority: 1
        (first) to 255; 0 is the model's default. deadline_ns: the caller's own; the model's limit,
        counted from now_ns, holds where it is sooner.

        Raises DeadlineExceeded, TooLarge, one of the 503 errors, or Moved when the model has
        another lane now. The rows are not changed.
        """
        latest_ns = now_ns + self._limit_ns
        if deadline_ns < latest_ns:
            if deadline_ns <= now_ns:
                raise DeadlineExceeded("the request's time was up before it was complete")
            latest_ns = deadline_ns
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        pending = self.lane_client.submit(
            rows, now_ns, latest_ns, priority=priority, flow=flow, tag=listener
        )
        self._client_loop.publish(self.lane_client)
        return pending

    def new_sequence(self) -> RunningSequence:
        """The listener of a row whose tokens are read while it runs. Give `submit` one, and what
        that returns to its `follow`, with nothing between."""
        return RunningSequence(self._client_loop, self.lane_client)

    def fetch(
        self, pending: PendingRequest, outputs: Iterable[str] | None = None
    ) -> dict[str, Array]:
        """Copies of the outputs {name: [n, *row shape]} of a finished request; frees its slots.

        outputs: the names wanted; all in the model's order when None. Where the rows of an output
        differ in size, `Tensor.sizes_name` has their sizes. Raises the error of the first row that
        has one.
        """
        return self.lane_client.result(pending, outputs, padded=True)

    def view(self, pending: PendingRequest, outputs: Iterable[str]) -> dict[str, Array]:
        """As `fetch`, without copies: arrays may be views of the lane, valid until `release`."""
        return self.lane_client.result(pending, outputs, copy=False, padded=True)

    def release(self, pending: PendingRequest) -> None:
        """Free the slots of a finished request."""
        self.lane_client.release(pending)

    def abandon(self, pending: PendingRequest) -> None:
        """Take back the rows that were not dispatched; the listener is not called."""
        self._client_loop.abandon(self.lane_client, pending)

    def cancel(self, pending: PendingRequest, future: asyncio.Future[PendingRequest]) -> None:
        """End a wait for `future`, the listener, with Cancelled. Does nothing once it is done."""
        if not future.done():
            future.set_exception(Cancelled("the caller closed the connection"))
            self.abandon(pending)

    def discard(self, pending: PendingRequest, future: asyncio.Future[PendingRequest]) -> None:
        """Free a request whose outputs will not be fetched. future: its listener."""
        if not future.done() or future.cancelled():
            future.cancel()
            self.abandon(pending)
        elif future.exception() is None:
            self.release(pending)
