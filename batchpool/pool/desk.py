"""The supervisor's desk: what clients ask over their control connections.

    attach  {version, pinned} fds: the client's bell  -> attached {models, server}  fds: board, bell
    lane    {model}                                   -> lane {lane, slots, digest} fds: segment
    status  {}                                        -> status {status}, within about a second

A refusal is error {code, error}. A front end asks over its own channel, a local program over
the unix socket; a front end's lanes are the pool's, a local client's are sealed memfds.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from batchpool.core.errors import (
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PoolError,
    StartError,
)
from batchpool.core.layout import VERSION
from batchpool.pool.clients import Attached
from batchpool.pool.holdings import Holdings
from batchpool.pool.staff import Staff
from batchpool.shm.channel import Channel, Closed, close_all
from batchpool.shm.lease import peer_of, pidfd_of

_LOG = logging.getLogger("batchpool.supervisor")
_TALLY_NS = 1_000_000_000  # how long the batcher gets to say its counts


class Desk:
    """Serves attached clients. `status` composes the pool's account from a batcher's tally: {}
    while there is no batcher, None if it does not answer."""

    def __init__(
        self,
        holdings: Holdings,
        staff: Staff,
        status: Callable[[dict[str, Any] | None], dict[str, Any]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._holdings = holdings
        self._staff = staff
        self._status = status
        self._clock_ns = clock_ns
        self._count = 0
        self.local: list[Attached] = []
        self._questions: dict[int, tuple[Attached, int]] = {}  # who asked, and until when he waits
        self._silent = False  # the batcher owes an answer that is overdue

    def accept(self) -> Attached | None:
        """A new local connection; None when it went away again."""
        try:
            sock, _ = self._holdings.control.sock.accept()
        except OSError:
            return None
        sock.setblocking(False)
        self._count += 1
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return None
        owner = f"client {self._count} (pid {peer.pid})"
        attached = Attached(owner, Channel(sock), peer, pidfd_of(sock))
        self.local.append(attached)
        return attached

    def hear(self, who: Attached) -> bool:
        """Handle what a client sent; False when it is gone."""
        while True:
            try:
                message, fds = who.channel.receive()
            except BlockingIOError:
                return True
            except Closed:
                return False
            except ValueError as exc:
                _LOG.warning("%s: %s", who.owner, exc)
                return False
            if not self.handle(who, message, fds):
                return False

    def handle(self, who: Attached, message: dict[str, Any], fds: list[int]) -> bool:
        """Answer one message; False when the client cannot be answered."""
        try:
            answer, out = self._answer(who, message, fds)
        except PoolError as exc:
            answer, out = {"op": "error", "code": exc.code, "error": exc.message}, []
        except StartError as exc:
            answer, out = {"op": "error", "code": InternalError.code, "error": str(exc)}, []
        finally:
            close_all(fds)
        return answer is None or self._send(who, answer, out)

    def _send(self, who: Attached, answer: dict[str, Any], fds: list[int]) -> bool:
        try:
            who.channel.send(answer, fds)
        except (Closed, BlockingIOError):
            return False
        return True

    def _answer(
        self, who: Attached, message: dict[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any] | None, list[int]]:
        op = message["op"]
        if op == "attach":
            return self._attach(who, message, fds)
        if op == "lane":
            return self._lane(who, message)
        if op == "status":
            return self._ask_status(who), []
        raise InvalidRequest(f"unknown control message {op!r}")

    def _attach(
        self, who: Attached, message: dict[str, Any], fds: list[int]
    ) -> tuple[dict[str, Any], list[int]]:
        if message.get("version") != VERSION:
            raise InvalidRequest(
                f"this client speaks layout version {message.get('version')}, the pool"
                f" {VERSION}; install the same batchpool on both sides"
            )
        if len(fds) != 1 or who.bell_fd >= 0:
            raise InvalidRequest("attach comes once, with one descriptor: the client's bell")
        server = self._holdings.plan.server
        attached = sum(a.bell_fd >= 0 for a in self.local)
        if who.frontend is None and attached >= server.max_clients:
            raise Overloaded(
                f"{attached} local clients are attached, max_clients = {server.max_clients}"
            )
        who.bell_fd = fds.pop()
        who.pinned = who.frontend is not None or message.get("pinned") is True
        models = [
            {
                "spec": model.spec.to_wire(),
                "watermark": model.config.watermark,
                "request_timeout_s": model.config.request_timeout_s,
                "max_batch": model.config.max_batch,
                "batch_sizes": list(model.config.batch_sizes),
                "max_wait_ms": model.config.max_wait_ms,
            }
            for model in self._holdings.plan.models
        ]
        answer = {"op": "attached", "models": models, "server": asdict(server)}
        return answer, [self._holdings.board_read_fd, self._holdings.batcher_bell.fd]

    def _lane(self, who: Attached, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        plans = self._holdings.plan.models
        name = message.get("model")
        index = next((i for i, m in enumerate(plans) if m.spec.name == name), None)
        if index is None:
            raise NotFound(f"there is no model {name!r}")
        if who.bell_fd < 0:
            raise InvalidRequest("attach before asking for a lane")
        if any(e.model == index for e in self._holdings.lanes.of_owner(who.owner)):
            raise InvalidRequest(f"this client has a lane to model {name!r} already")
        local = who.frontend is None
        layout = plans[index].client_lane if local else plans[index].lane
        entry = self._holdings.lanes.add(
            index, who.owner, layout, who.bell_fd, local=local, pinned=who.pinned
        )
        self._staff.announce_lane(entry)
        answer = {
            "op": "lane",
            "lane": entry.number,
            "slots": layout.slots,
            "digest": layout.digest,
        }
        return answer, [entry.fd]

    def drop(self, who: Attached) -> None:
        """A client is gone: its lanes are closed. Its descriptors are let go here."""
        for entry in self._holdings.lanes.of_owner(who.owner):
            self._staff.retire_lane(entry)
        if who in self.local:
            self.local.remove(who)
        for number, (asker, _) in list(self._questions.items()):
            if asker is who:
                del self._questions[number]
        who.close()

    # -- status -------------------------------------------------------------------------

    def _ask_status(self, who: Attached) -> dict[str, Any] | None:
        """The batcher's counts come first; the answer follows when they are there.

        One that has not answered yet is asked nothing more: it would pile up before it.
        """
        if self._staff.batcher is None:
            return {"op": "status", "status": self._status({})}
        if self._silent:
            return {"op": "status", "status": self._status(None)}
        self._count += 1
        self._questions[self._count] = who, self._clock_ns() + _TALLY_NS
        self._staff.batcher.tell({"op": "tally", "id": self._count})
        return None

    def tick(self) -> int:
        """Answer without counts who waited too long; returns when it is next due, as Staff.tick."""
        now_ns = self._clock_ns()
        for number, (_, until_ns) in list(self._questions.items()):
            if until_ns <= now_ns:
                self._silent = True
                self._tell_status(number, None)
        dues_ns = [until_ns for _, until_ns in self._questions.values()]
        return min(dues_ns, default=now_ns + _TALLY_NS)

    def tally_came(self, message: dict[str, Any]) -> None:
        self._silent = False
        if message["id"] in self._questions:
            self._tell_status(message["id"], message["models"])

    def batcher_gone(self) -> None:
        """Answer whoever waits for its counts without them."""
        self._silent = False
        for number in list(self._questions):
            self._tell_status(number, {})

    def _tell_status(self, number: int, tallies: dict[str, Any] | None) -> None:
        who, _ = self._questions.pop(number)
        self._send(who, {"op": "status", "status": self._status(tallies)}, [])


def attached_frontend(owner: str, channel: Channel, index: int) -> Attached:
    """A front end as a client: it asks over the channel it was started with."""
    duplicate = socket.socket(fileno=socket.dup(channel.fileno()))
    duplicate.setblocking(False)
    return Attached(owner, Channel(duplicate), None, -1, index)
