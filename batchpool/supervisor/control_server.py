"""Serves the clients of the pool: local programs, operators and HTTP front ends.

It takes the messages `FromClient` and replies with `ToClient`; see `batchpool/control/edges.py`.
Only root and the user whom the pool runs as may reload and drain; the rest is open to every client.
A local program asks over the unix socket, a front end over the channel that it was started with.
The lanes of a front end are segments of the pool, those of a local client are sealed memfds.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, Protocol, assert_never

from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.edges import (
    FROM_CLIENT,
    BadPacket,
    FromClient,
    InvalidMessage,
    ToClient,
    tag_of,
)
from batchpool.control.messages import (
    Attach,
    Attached,
    Batches,
    Drain,
    DrainState,
    Facts,
    GetBatches,
    GetFacts,
    GetStatus,
    LaneOpened,
    LeaveLane,
    ModelForm,
    OpenLane,
    Refused,
    Reload,
    ReloadReply,
    StatusReply,
)
from batchpool.control.peer import peer_of, pidfd_of
from batchpool.control.stranger_channel import StrangerChannel
from batchpool.core.errors import (
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PoolError,
    StartError,
)
from batchpool.core.layout.segments import VERSION
from batchpool.shm.resource_errors import check_descriptors, is_shortage
from batchpool.supervisor.client_places import ClientPlaces
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.resources.catalog import model_form, model_forms, server_form
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.resources import PoolResources

# Not the supervisor's own, whose messages are all written: strangers must not fill the log.
_LOG = logging.getLogger("batchpool.clients")
_MOST_AT_ONCE = 16


class Operations(Protocol):
    """The requests that an operator may make of the pool."""

    def reload(self, told: Callable[[bool, str], None] | None) -> None:
        """Start a reload. told(done, text) is called at its end: text is the result, or the reason
        of the failure."""

    def cancel_reload(self) -> str:
        """Cancel the reload in progress; returns a text for the operator. InvalidRequest if there
        is none, or if it can no longer be cancelled."""

    def drain(self, on: bool | None) -> tuple[bool, bool, int]:
        """Start a drain (True), end it (False) or change nothing (None). Returns (the pool drains,
        all rows are completed, rows in progress)."""


class ControlServer:
    """Serves attached clients. `status` composes the pool's account."""

    def __init__(
        self,
        resources: PoolResources,
        process_fleet: ProcessFleet,
        status: Callable[[], dict[str, Any]],
        operations: Operations,
    ) -> None:
        self._resources = resources
        self._process_fleet = process_fleet
        self._status = status
        self._operations = operations
        self._count = 0
        self._short_of = ""
        self.local: list[ClientConnection] = []

    def accept(self) -> ClientConnection | None:
        """A new local connection; None when it went away again, or was told that there is no room.
        OSError, as `is_shortage` has it, when it cannot even be told."""
        try:
            sock, _ = self._resources.control.sock.accept()
        except BlockingIOError:
            return None
        except OSError as exc:
            if is_shortage(exc):
                raise
            return None
        sock.setblocking(False)
        self._count += 1
        channel = StrangerChannel(sock)
        try:
            peer = peer_of(sock)
        except OSError:
            channel.close()
            return None
        owner = f"client {self._count} {peer.text()}"
        try:
            unattached = [client.uid for client in self.local if not client.attached]
            if why := self._places().why_not_connect(peer.uid, unattached):
                raise StartError(why)
            # With a part of what is kept, so that those who look what is wrong are answered.
            check_descriptors("the pool can take no more clients", 0.5)
        except StartError as exc:
            self._note_refusal(owner, exc)
            sent(channel, _refusal(exc), [])
            channel.close()
            return None
        client = ClientConnection(owner, channel, peer, pidfd_of(sock), number=self._count)
        self.local.append(client)
        return client

    def _places(self) -> ClientPlaces:
        return ClientPlaces(os.geteuid(), self._resources.plan.server.max_clients)

    def hear(self, who: ClientConnection) -> bool:
        """Handle what a client sent, so far as it holds up nobody; False when it is gone."""
        for _ in range(_MOST_AT_ONCE):
            try:
                message, fds = who.channel.receive(FROM_CLIENT)
            except BlockingIOError:
                return True
            except Closed:
                return False
            except BadPacket as exc:
                _LOG.warning("%s: %s", who.owner, exc)
                replied = self._send(who, _refusal(InvalidRequest(str(exc))), [])
                if not replied or not isinstance(exc, InvalidMessage):
                    return False
                continue
            if not self.handle(who, message, fds):
                return False
        return True  # the rest is still there at the next turn of the loop

    def handle(self, who: ClientConnection, message: FromClient, fds: list[int]) -> bool:
        """Answer one message; False when the client cannot be answered."""
        try:
            answer, out = self._answer(who, message, fds)
        except StartError as exc:
            self._note_refusal(who.owner, exc)
            answer, out = _refusal(exc), []
        except PoolError as exc:
            answer, out = _refusal(exc), []
        except Exception as exc:  # whatever one client says, the others are served on
            _LOG.exception("%s: %r cannot be answered", who.owner, tag_of(type(message)))
            answer, out = _refusal(exc), []
        finally:
            close_all(fds)
        replied = answer is None or self._send(who, answer, out)
        if who.bells is not None:
            who.bells.handed_over()
        return replied

    def _note_refusal(self, owner: str, why: StartError) -> None:
        """Once for the same shortage: whoever is refused may try again and again."""
        if self._short_of != str(why):
            self._short_of = str(why)
            _LOG.error("%s is refused: %s", owner, why)

    def _send(self, who: ClientConnection, answer: ToClient, fds: list[int]) -> bool:
        return sent(who.channel, answer, fds)

    def _answer(
        self, who: ClientConnection, message: FromClient, fds: list[int]
    ) -> tuple[ToClient | None, list[int]]:
        match message:
            case Attach():
                return self._attach(who, message)
            case OpenLane():
                return self._open_lane(who, message)
            case LeaveLane():
                self._leave_lane(who, message)
                return None, []
            case GetFacts():
                return Facts(*self._facts()), []
            case GetStatus():
                return StatusReply(self._status()), []
            case GetBatches():
                return self._batches()
            case Reload():
                return self._reload(who, message), []
            case Drain():
                asked = {True: "a drain", False: "the end of a drain", None: ""}[message.on]
                _check_operator(who, "drain", asked)
                return DrainState(*self._operations.drain(message.on)), []
            case _:
                assert_never(message)

    def _reload(self, who: ClientConnection, message: Reload) -> ToClient | None:
        """Reload or cancel; None if the reply comes at the end of the reload."""
        _check_operator(who, "reload", "the end of a reload" if message.cancel else "a reload")
        if message.cancel:
            return ReloadReply(True, self._operations.cancel_reload())
        if not message.wait:
            self._operations.reload(None)
            return ReloadReply(True, "asked for")

        def told(done: bool, text: str) -> None:
            who.waits = False
            who.heard_ns = time.monotonic_ns()  # it has as long as after a question to go
            self._send(who, ReloadReply(done, text), [])

        who.waits = True
        self._operations.reload(told)
        return None

    def _attach(self, who: ClientConnection, message: Attach) -> tuple[Attached, list[int]]:
        if message.version != VERSION:
            raise InvalidRequest(
                f"this client speaks layout version {message.version}, the pool"
                f" {VERSION}; install the same batchpool on both sides"
            )
        if who.attached:
            raise InvalidRequest("attach comes once; this client is attached")
        if who.frontend is None:
            own = self._process_fleet.tasks.child
            if own is None or who.peer is None or who.peer.pid != own.pid:
                self._check_place(who, -1 if own is None else own.pid)
            check_descriptors("the pool can take no more clients")
            bells = who.bells = HeldBells.of_local_client()
            rung_by_client = bells.from_client
        else:
            bells = who.bells = HeldBells.of_frontend()
            rung_by_client = self._resources.batcher_bell.fd
        who.pinned = who.frontend is not None or message.pinned
        fds = [self._resources.state_page_read_fd, rung_by_client, bells.for_client]
        return Attached(*self._facts()), fds

    def _check_place(self, who: ClientConnection, own_pid: int) -> None:
        """Raise Overloaded where a client gets no place. own_pid: of the task process, whose place
        is none of max_clients."""
        attached = [
            client.uid
            for client in self.local
            if client.attached and (client.peer is None or client.peer.pid != own_pid)
        ]
        if why := self._places().why_not_attach(who.uid, attached):
            raise Overloaded(why)

    def _facts(self) -> tuple[tuple[ModelForm, ...], dict[str, Any], int]:
        """The models, the settings and the edition of the plan in force."""
        plan = self._resources.plan
        return model_forms(plan), server_form(plan), self._resources.state_page.edition.get()

    def _open_lane(self, who: ClientConnection, message: OpenLane) -> tuple[LaneOpened, list[int]]:
        models = {model.spec.name: model for model in self._resources.plan.models}
        model = models.get(message.model)
        if model is None:
            known = ", ".join(map(repr, models)) or "none"
            raise NotFound(f"there is no model {message.model!r}; the pool has {known}")
        if not who.attached:
            raise InvalidRequest("attach before asking for a lane")
        if who.frontend is None:
            check_descriptors("cannot open another lane")
        own = [e for e in self._resources.lanes.of_owner(who.owner) if e.model == model.entry]
        if own and own[0].handed:
            raise InvalidRequest(f"this client has a lane to model {model.spec.name!r} already")
        # One may stand already: of a model that has moved.
        entry = own[0] if own else self._process_fleet.open_lane(who, model, handed=True)
        entry.handed = True
        self._short_of = ""
        layout = entry.layout
        reply = LaneOpened(
            serial=entry.serial,
            model=entry.model,
            slots=layout.slots,
            digest=layout.digest,
            facts=model_form(model),
            arena_bytes=layout.arena_bytes,
        )
        return reply, [entry.fd]

    def _leave_lane(self, who: ClientConnection, message: LeaveLane) -> None:
        """Note that the client has left a lane; nothing happens if it has no such lane.

        The lane is found by its serial: the number of one that the client was evicted from may be
        that of another lane of its own by now."""
        for entry in self._resources.lanes.of_owner(who.owner):
            if entry.serial == message.serial and entry.moved and entry.handed:
                entry.left = True

    def _batches(self) -> tuple[Batches, list[int]]:
        """The flight recorder, and the names of the workers and models that its rows number."""
        counters = self._resources.counters
        names = Batches(tuple(counters.worker_slot_names()), tuple(counters.model_names()))
        return names, [self._resources.flight_recorder_read_fd]

    def lane_broken(self, number: int, damage: str) -> None:
        """The batcher takes no more rows from a lane: name the process whose lane it is."""
        entry = self._resources.lanes.get(number)
        if entry is not None:
            model = self._process_fleet.entries[entry.model].spec.name
            _LOG.error(
                "the lane of %s to model %r is closed as broken: %s", entry.owner, model, damage
            )

    def drop(self, who: ClientConnection) -> None:
        """A client is gone: its lanes are closed. Its descriptors are let go here."""
        left = who in self.local and who.channel.is_closed_by_peer()
        for entry in self._resources.lanes.of_owner(who.owner):
            entry.abandoned = left
            self._process_fleet.retire_lane(entry)
        if who in self.local:
            self.local.remove(who)
        who.close()


def attached_frontend(owner: str, channel: Channel, index: int) -> ClientConnection:
    """A front end as a client: it asks over the channel it was started with."""
    return ClientConnection(owner, channel, None, -1, index)


def _refusal(exc: Exception) -> Refused:
    """The reply to a refused request. The text of an unforeseen exception stays in the log."""
    if isinstance(exc, PoolError):
        return Refused(exc.code, exc.message)
    text = str(exc) if isinstance(exc, StartError) else "internal error; the pool's log has more"
    return Refused(InternalError.code, text)


def sent(channel: Channel, answer: ToClient, fds: list[int]) -> bool:
    """Send the reply; False if the client is gone or its socket is full."""
    try:
        channel.send(answer, fds)
    except (Closed, BlockingIOError):
        return False
    except ValueError as exc:  # the message exceeds the limit of its length
        return sent(channel, _refusal(StartError(f"the answer is too long: {exc}")), [])
    return True


def _check_operator(who: ClientConnection, what: str, asked: str) -> None:
    """Raise InvalidRequest unless the peer's uid is root's or the pool's own.

    what: the verb.  asked: what is asked for, in the log; "" logs no request that is granted.
    """
    own = os.geteuid()
    peer = who.peer
    asker = "a front end" if peer is None else f"uid {peer.uid} (pid {peer.pid})"
    if peer is None or peer.uid not in (0, own):
        _LOG.warning("%s asks for a %s and may not", asker, what)
        raise InvalidRequest(
            f"you may not {what} this pool: only root and the user it runs as (uid {own}) may"
        )
    if asked:
        _LOG.info("%s asks for %s", asker, asked)
