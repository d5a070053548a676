"""A client's session with the pool: attaches over the control socket and opens lanes.

Serves a local program, which connects to the pool's unix socket, and an HTTP front end, which
gets its end of a socket pair from the supervisor. Nothing here needs an HTTP library, and no call
but `attach`, `ask` and `open_lane_client` waits.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from batchpool.client.arena_lane_client import lane_client_of
from batchpool.client.connection import Connection, cannot_connect
from batchpool.client.lane_client import LaneClient
from batchpool.client.lane_set import LaneSet
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.process_id import this_process
from batchpool.client.server_trust import why_not_trusted
from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.messages import (
    Attach,
    Attached,
    Facts,
    GetFacts,
    LaneForm,
    LaneOpened,
    LeaveLane,
    OpenLane,
    PlanChanged,
)
from batchpool.control.peer import peer_of
from batchpool.core.errors import (
    InternalError,
    NotFound,
    NotReady,
    PoolError,
    PoolStopped,
)
from batchpool.core.layout.arena import arena_of
from batchpool.core.layout.segments import VERSION, lane_layout
from batchpool.core.layout.states import LaneGate, PoolState
from batchpool.shm.client_bells import HeardBell
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.resource_errors import is_shortage, text_of
from batchpool.shm.ring import require_memory_order
from batchpool.shm.segment import map_checked


class Session(Connection):
    """One attached client. `where` names the pool in error messages.

    bell: rung by the pool; there is none before `attach`. self_bell: by which one thread of this
    client wakes another one that waits for the pool's.
    """

    closed = True  # until there is something to close

    def __init__(self, channel: Channel, where: str) -> None:
        require_memory_order()
        super().__init__(channel, where)
        self.pid = this_process()
        self.bell: Doorbell | HeardBell = Doorbell(-1)
        self.self_bell = Doorbell()
        self.models: dict[str, ModelFacts] = {}
        self.server: dict[str, Any] = {}
        self.edition = 0  # of models and server
        self.lane_set = LaneSet()
        self._state_page: PoolStatePage | None = None
        self._batcher_bell: Doorbell | None = None
        self.closed = False

    @classmethod
    def connect(
        cls, path: str, timeout_s: float = 10.0, *, attach: bool = True, pinned: bool = False
    ) -> Session:
        """Connect to a pool's unix socket and attach; PoolStopped says why it cannot.

        Without `attach` it can only `ask`, and takes no place among max_clients.
        """
        with ExitStack() as undo:
            try:
                sock = undo.enter_context(
                    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
                )
                sock.connect(path)
                if why := why_not_trusted(path, peer_of(sock).uid, os.geteuid()):
                    raise PoolStopped(why)
                session = cls(Channel(sock), path)
                undo.callback(session.close)
                if attach:
                    session.attach(timeout_s, pinned=pinned)
            except PoolError:
                raise
            except OSError as exc:
                if is_shortage(exc):
                    raise NotReady(f"no room here for the pool at {path}: {text_of(exc)}") from exc
                raise PoolStopped(cannot_connect(path, exc)) from exc
            undo.pop_all()
        return session

    @property
    def state_page(self) -> PoolStatePage:
        assert self._state_page is not None, "attach first"
        return self._state_page

    @property
    def batcher_ended(self) -> bool:
        """True if the pool has ended all its processes, and closed this session after that."""
        return self.is_over() and self.state_page.state.get() == PoolState.STOPPED

    def ring(self) -> None:
        """Wake the batcher."""
        assert self._batcher_bell is not None, "attach first"
        self._batcher_bell.ring()

    def attach(
        self,
        timeout_s: float = 10.0,
        *,
        pinned: bool = False,
        bell: type[Doorbell | HeardBell] = HeardBell,
    ) -> None:
        """Sends the Attach message; takes the models, the state page and the bells.

        pinned: GPUs are to read and write this client's lanes by themselves. bell: what the pool
        rings; front ends share a Doorbell with it.
        """
        attach = Attach(VERSION, pinned)
        reply, fds = self.ask_for_fds(attach, Attached, timeout_s)
        self.learn(reply)
        state_page_fd, batcher_bell_fd, bell_fd = fds
        self._batcher_bell, self.bell = Doorbell(batcher_bell_fd), bell(bell_fd)
        try:
            self._state_page = PoolStatePage(state_page_fd)
        finally:
            os.close(state_page_fd)

    def learn(self, facts: Attached | Facts | PlanChanged) -> None:
        """Takes the models and settings that the pool has from now on."""
        models = map(ModelFacts.of, facts.models)
        self.models = {model.spec.name: model for model in models}
        self.edition = facts.edition
        self.server = facts.server

    def refresh(self, timeout_s: float = 10.0) -> None:
        """Learn again, if a reload has changed something."""
        if self.state_page.edition.get() != self.edition:
            self.learn(self.ask(GetFacts(), Facts, timeout_s))

    def facts(self, model: str) -> ModelFacts:
        """A model's facts; NotFound names the models there are."""
        facts = self.models.get(model)
        if facts is None:
            known = ", ".join(map(repr, self.models)) or "none"
            raise NotFound(f"there is no model {model!r}; the pool has {known}")
        return facts

    def open_lane_client(self, model: str, timeout_s: float = 10.0) -> LaneClient:
        """The lane client of a model; the first use asks for its lane. Waits for the gate."""
        lane_client = self.lane_set.get(model)
        if lane_client is None:
            lane_client = self.lane_set[model] = self.new_lane_client(model, timeout_s)
        return lane_client

    def new_lane_client(self, model: str, timeout_s: float = 10.0) -> LaneClient:
        """A lane client on a new lane; the caller puts it into `lane_set`, in its own thread."""
        self.refresh(timeout_s)
        self.facts(model)
        until_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        reply, fds = self.ask_for_fds(OpenLane(model), LaneOpened, timeout_s)
        facts = ModelFacts.of(reply.facts)  # it may have changed between the two questions
        try:
            lane_client = self._map_lane(facts, reply, fds)
            self.models = {**self.models, model: facts}
            self._await_gate(lane_client.lane, until_ns)
        except PoolError:
            self._leave()
            raise
        except OSError as exc:
            if self.closed:
                raise self.stopped() from exc
            self._leave()
            raise NotReady(f"the lane cannot be mapped here: {text_of(exc)}") from exc
        return lane_client

    def take_lanes(self, forms: Sequence[LaneForm], fds: list[int]) -> None:
        """Lane clients for lanes that the pool sends unasked, already open, of known models."""
        models = {facts.index: facts for facts in self.models.values()}
        left = deque(fds)
        try:
            for form in forms:
                facts = models[form.model]
                self.lane_set[facts.spec.name] = self._map_lane(facts, form, [left.popleft()])
        finally:
            close_all(left)

    def _map_lane(
        self, facts: ModelFacts, form: LaneForm | LaneOpened, fds: list[int]
    ) -> LaneClient:
        layout = lane_layout(facts.spec, form.slots, arena_of(facts.spec, form.arena_bytes))
        try:
            if layout.digest != form.digest:
                raise InternalError(f"{self.pool_name} sent a lane of another layout")
            lane = Lane(facts.spec, map_checked(fds[0], layout), layout)
        finally:
            close_all(fds)
        state_page, index = self.state_page, facts.index  # not self, which has the lane client
        return lane_client_of(
            lane,
            watermark=facts.watermark,
            accepting=partial(state_page.accepts, index),
            serial=form.serial,
            moved=self.lane_set.note_move,
        )

    def let_go(self) -> None:
        """Tells the pool, once for each moved lane, that this client has no request left in it."""
        for lane_client in self.lane_set.part():
            try:
                self.channel.send(LeaveLane(lane_client.serial))
            except (Closed, BlockingIOError):
                return  # the pool has gone, or will do without the word

    def fail_all(self) -> list[PendingRequest]:
        """The session is over: every request under way in it, which no answer reaches any more."""
        ended = self.batcher_ended
        return [
            pending
            for lane_client in self.lane_set.driven
            for pending in lane_client.fail_all(batcher_ended=ended)
        ]

    def error_of(self, lost: PendingRequest) -> PoolStopped:
        """The error of a request that was under way when the session ended."""
        if lost.may_have_run:
            fate = "a request that was under way may or may not have run"
        else:
            fate = "it had not taken this request, which did not run"
        return PoolStopped(f"{self.stopped().message}; {fate}")

    def _await_gate(self, lane: Lane, until_ns: int) -> None:
        """The batcher rings when it has mapped the lane and opened it."""
        waiter = Waiter(self.bell.fd, self.channel.fileno())
        while lane.gate.get() == LaneGate.CLOSED:
            if self.closed:  # by another thread, and with it the descriptors that are waited for
                raise self.stopped()
            if time.monotonic_ns() >= until_ns:
                raise NotReady(f"{self.pool_name} did not open the lane in time")
            ready = waiter.wait_until(min(until_ns, time.monotonic_ns() + 100_000_000))
            if self.bell.fd in ready:
                self.bell.clear()
            if self.channel.fileno() in ready and self.is_over():
                raise self.stopped()
        self.self_bell.ring()  # what was cleared here may have been meant for another thread

    def __del__(self) -> None:
        # A client that was forgotten instead of closed.
        self.close()

    def close(self) -> None:
        """End the session: the pool takes the lanes back. Results already taken stay valid."""
        if self.closed:
            return
        self.lane_set.keep_views()
        self.closed = True
        self.channel.close()
        self.bell.close()
        self.self_bell.close()
        if self._batcher_bell is not None:
            self._batcher_bell.close()
        self.lane_set.clear()
