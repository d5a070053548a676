"""The supervisor's desk: what clients ask over their control connections.

    attach  {version, pinned} fds: the client's bell  -> attached {models, server}  fds: page, bell
    facts   {}                                        -> facts {models, server, edition}
    lane    {model}    -> lane {serial, model, slots, digest, facts: of the model}
                                                         fds: segment
    left    {serial}                                  -> nothing: it lets go of a lane that moved
    status  {}                                        -> status {status}
    reload  {wait}                                    -> reload {done, text}, with wait at its end
            {cancel: true}                            -> reload {done, text}, at once
    drain   {on: true, false, or null to look}        -> drain {draining, answered, rows}
    batches {}                                        -> batches {workers, models}
                                                         fds: the flight recorder

A refusal is error {code, error}. Only root and the user whom the pool runs as may reload and
drain; the rest is open to every client. A front end asks over its own channel, a local program over
the unix socket; a front end's lanes are the pool's, a local client's are sealed memfds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.peer import peer_of, pidfd_of
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
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.resources.catalog import facts_of, model_facts
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.lane_table import lane_form
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.desk")
_STRANGERS_MOST = 64  # connections that have not attached, an operator's among them
_MOST_AT_ONCE = 16


class Operations(Protocol):
    """What operators may ask of the pool."""

    def reload(self, told: Callable[[bool, str], None] | None) -> None:
        """Reload; told at the end: whether it was done, and what or why not."""

    def cancel_reload(self) -> str:
        """Give up the reload under way; what comes of that. InvalidRequest if it cannot be."""

    def drain(self, on: bool | None) -> tuple[bool, bool, int]:
        """Drain, or open again, or only look: (whether it drains, whether all is answered, rows
        under way)."""


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
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return None
        owner = f"client {self._count} (pid {peer.pid})"
        channel = Channel(sock, trusted=False)
        try:
            if sum(a.bell_fd < 0 for a in self.local) >= _STRANGERS_MOST:
                raise StartError(
                    f"{_STRANGERS_MOST} connections are open that have not attached; the pool takes"
                    " no more of them"
                )
            # With a part of what is kept, so that those who look what is wrong are answered.
            check_descriptors("the pool can take no more clients", 0.5)
        except StartError as exc:
            self._note_refusal(owner, exc)
            _sent(channel, _error(exc), [])
            channel.close()
            return None
        attached = ClientConnection(owner, channel, peer, pidfd_of(sock))
        self.local.append(attached)
        return attached

    def hear(self, who: ClientConnection) -> bool:
        """Handle what a client sent, so far as it holds up nobody; False when it is gone."""
        for _ in range(_MOST_AT_ONCE):
            try:
                message, fds = who.channel.receive()
            except BlockingIOError:
                return True
            except Closed:
                return False
            except ValueError as exc:
                _LOG.warning("%s: %s", who.owner, exc)
                self._send(who, _error(InvalidRequest(str(exc))), [])
                return False
            if not self.handle(who, message, fds):
                return False
        return True  # the rest is still there at the next turn of the loop

    def handle(self, who: ClientConnection, message: dict[str, Any], fds: list[int]) -> bool:
        """Answer one message; False when the client cannot be answered."""
        try:
            answer, out = self._answer(who, message, fds)
        except StartError as exc:
            self._note_refusal(who.owner, exc)
            answer, out = _error(exc), []
        except PoolError as exc:
            answer, out = _error(exc), []
        except Exception as exc:  # whatever one client says, the others are served on
            _LOG.exception("%s: %r cannot be answered", who.owner, message["op"][:40])
            answer, out = _error(exc), []
        finally:
            close_all(fds)
        return answer is None or self._send(who, answer, out)

    def _note_refusal(self, owner: str, why: StartError) -> None:
        """Once for the same shortage: whoever is refused may try again and again."""
        if self._short_of != str(why):
            self._short_of = str(why)
            _LOG.error("%s is refused: %s", owner, why)

    def _send(self, who: ClientConnection, answer: dict[str, Any], fds: list[int]) -> bool:
        return _sent(who.channel, answer, fds)

    def _answer(
        self, who: ClientConnection, message: dict[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any] | None, list[int]]:
        op = message["op"]
        if op == "attach":
            return self._attach(who, message, fds)
        if op == "lane":
            return self._lane(who, message)
        if op == "left":
            self._left(who, message)
            return None, []
        if op == "facts":
            return {"op": "facts", **self._facts()}, []
        if op == "status":
            return {"op": "status", "status": self._status()}, []
        if op == "batches":
            return self._batches()
        if op == "reload":
            return self._reload(who, message), []
        if op == "drain":
            on = message.get("on")
            if on not in (True, False, None):
                raise InvalidRequest("drain on or off?")
            _check_operator(who, "drain", told=on is not None)
            draining, answered, rows = self._operations.drain(on)
            return {"op": "drain", "draining": draining, "answered": answered, "rows": rows}, []
        raise InvalidRequest(f"unknown control message {op!r}")

    def _reload(self, who: ClientConnection, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer comes at the end of the reload to whoever waits for it."""
        _check_operator(who, "reload")
        if message.get("cancel") is True:
            return {"op": "reload", "done": True, "text": self._operations.cancel_reload()}
        if message.get("wait") is not True:
            self._operations.reload(None)
            return {"op": "reload", "done": True, "text": "asked for"}

        def told(done: bool, text: str) -> None:
            self._send(who, {"op": "reload", "done": done, "text": text}, [])

        self._operations.reload(told)
        return None

    def _attach(
        self, who: ClientConnection, message: dict[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any], list[int]]:
        if message.get("version") != VERSION:
            raise InvalidRequest(
                f"this client speaks layout version {message.get('version')}, the pool"
                f" {VERSION}; install the same batchpool on both sides"
            )
        if len(fds) != 1 or who.bell_fd >= 0:
            raise InvalidRequest("attach comes once, with one descriptor: the client's bell")
        server = self._resources.plan.server
        attached = sum(a.bell_fd >= 0 for a in self.local)
        if who.frontend is None and attached >= server.max_clients:
            raise Overloaded(
                f"{attached} local clients are attached, max_clients = {server.max_clients}"
            )
        if who.frontend is None:
            check_descriptors("the pool can take no more clients")
        who.bell_fd = fds.pop()
        who.pinned = who.frontend is not None or message.get("pinned") is True
        answer = {"op": "attached", **self._facts()}
        return answer, [self._resources.state_page_read_fd, self._resources.batcher_bell.fd]

    def _facts(self) -> dict[str, Any]:
        return facts_of(self._resources.plan, self._resources.state_page.edition.get())

    def _lane(
        self, who: ClientConnection, message: dict[str, Any]
    ) -> tuple[dict[str, Any], list[int]]:
        models = {model.spec.name: model for model in self._resources.plan.models}
        model = models.get(str(message.get("model", "")))
        if model is None:
            known = ", ".join(map(repr, models)) or "none"
            raise NotFound(f"there is no model {message.get('model')!r}; the pool has {known}")
        if who.bell_fd < 0:
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
        answer = {"op": "lane", **lane_form(entry), "facts": model_facts(model)}
        return answer, [entry.fd]

    def _left(self, who: ClientConnection, message: dict[str, Any]) -> None:
        """Nobody waits for an answer, so that there is none to a lane that it does not have. By
        serial: of one it was evicted from, the number may be that of another lane of its own."""
        for entry in self._resources.lanes.of_owner(who.owner):
            if entry.serial == message.get("serial") and entry.moved and entry.handed:
                entry.left = True

    def _batches(self) -> tuple[dict[str, Any], list[int]]:
        """The flight recorder itself, and the names of what its rows have numbers of."""
        counters = self._resources.counters
        answer = {
            "op": "batches",
            "workers": counters.worker_slot_names(),
            "models": counters.model_names(),
        }
        return answer, [self._resources.flight_recorder_read_fd]

    def drop(self, who: ClientConnection) -> None:
        """A client is gone: its lanes are closed. Its descriptors are let go here."""
        for entry in self._resources.lanes.of_owner(who.owner):
            self._process_fleet.retire_lane(entry)
        if who in self.local:
            self.local.remove(who)
        who.close()


def attached_frontend(owner: str, channel: Channel, index: int) -> ClientConnection:
    """A front end as a client: it asks over the channel it was started with."""
    return ClientConnection(owner, channel, None, -1, index)


def _error(exc: Exception) -> dict[str, Any]:
    """A refusal in words; of a fault of ours no more than that there is one."""
    if isinstance(exc, PoolError):
        return {"op": "error", "code": exc.code, "error": exc.message}
    text = str(exc) if isinstance(exc, StartError) else "internal error; the pool's log has more"
    return {"op": "error", "code": InternalError.code, "error": text}


def _sent(channel: Channel, answer: dict[str, Any], fds: list[int]) -> bool:
    """Whether the client could be answered."""
    try:
        channel.send(answer, fds)
    except (Closed, BlockingIOError):
        return False
    except ValueError as exc:  # too long, whatever it is
        return _sent(channel, _error(StartError(f"the answer is too long: {exc}")), [])
    return True


def _check_operator(who: ClientConnection, what: str, *, told: bool = True) -> None:
    """Raise unless the caller may tell the pool what to do, as the kernel knows him.

    told: it stands in the log who asked; of a refusal it always does.
    """
    own = os.geteuid()
    peer = who.peer
    asker = "a front end" if peer is None else f"uid {peer.uid} (pid {peer.pid})"
    if peer is None or peer.uid not in (0, own):
        _LOG.warning("%s asks for a %s and may not", asker, what)
        raise InvalidRequest(
            f"you may not {what} this pool: only root and the user it runs as (uid {own}) may"
        )
    if told:
        _LOG.info("%s asks for a %s", asker, what)
