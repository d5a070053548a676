"""Connections of local programs to the control socket, in the supervisor's event loop."""

from __future__ import annotations

import logging
import os
import socket
import time
from functools import partial

from batchpool.control.messages import Refused
from batchpool.control.stranger_channel import CLOSERS
from batchpool.core.errors import NotReady
from batchpool.shm.resource_errors import text_of
from batchpool.supervisor.client_places import overdue_at_ns
from batchpool.supervisor.control_server import ControlServer, sent
from batchpool.supervisor.event_loop import EventLoop
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.time_shares import TimeShares

# Not the supervisor's own, whose messages are all written: strangers must not fill the log.
_LOG = logging.getLogger("batchpool.clients")
_PAUSE_NS = 1_000_000_000  # without descriptors or memory for another client
_NEVER_NS = 2**63 - 1


class LocalClients:
    """Accepts connections, passes their messages to the control server, and notices their end.

    listener: the control socket. Without the means for another client it is left alone for a
    second; connections wait in it meanwhile. A connection that neither attaches nor asks is closed
    in time, and one whose user takes too much of the supervisor's time is left unread for a while.
    """

    def __init__(
        self, loop: EventLoop, listener: socket.socket, control_server: ControlServer
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._control_server = control_server
        self._time_shares = TimeShares()
        self._trusted = (0, os.geteuid())
        self._paused_until_ns = 0
        loop.add(listener.fileno(), self._accept)

    def tick(self, now_ns: int) -> int:
        """Do what is due: end pauses, drop clients. Called in each iteration of the loop; returns
        the time of the next call at the latest."""
        due_ns = CLOSERS.reap()
        if self._paused_until_ns:
            if self._paused_until_ns <= now_ns:
                self._paused_until_ns = 0
                self._loop.add(self._listener.fileno(), self._accept)
            else:
                due_ns = self._paused_until_ns
        for client in list(self._control_server.local):
            due_ns = min(due_ns, self._check(client, now_ns))
        return due_ns

    def drop_attached(self) -> None:
        """Let the attached clients go, since the pool ends; who only asks is answered still."""
        for client in list(self._control_server.local):
            if client.attached:
                self._drop(client)

    def _check(self, client: ClientConnection, now_ns: int) -> int:
        """Drop a client, or read it again, if it is time to; returns when to look next."""
        due_ns = _NEVER_NS
        if client.resumes_ns:
            if client.resumes_ns <= now_ns:
                client.resumes_ns = 0
                self._loop.add(client.channel.fileno(), partial(self._receive, client))
            due_ns = min(due_ns, client.resumes_ns or _NEVER_NS)
        elif not client.attached and not client.waits:
            overdue_ns = overdue_at_ns(client.connected_ns, client.heard_ns)
            if overdue_ns <= now_ns:
                text = "the connection neither attached nor asked anything in time"
                _LOG.warning("%s is dropped: %s", client.owner, text)
                sent(client.channel, Refused(NotReady.code, text), [])
                self._drop(client)
                return _NEVER_NS
            due_ns = min(due_ns, overdue_ns)
        return due_ns

    def _accept(self) -> None:
        started_ns = time.monotonic_ns()
        try:
            client = self._control_server.accept()
        except OSError as exc:
            _LOG.error("no client can be taken: %s", text_of(exc))
            self._loop.remove(self._listener.fileno())
            self._paused_until_ns = time.monotonic_ns() + _PAUSE_NS
            return
        if client is None:
            return
        client.connected_ns = time.monotonic_ns()
        self._loop.add(client.channel.fileno(), partial(self._receive, client))
        # A forked child of the client may hold the socket open when the client has ended.
        if client.pidfd >= 0:
            self._loop.add(client.pidfd, partial(self._drop, client))
        self._spend(client, started_ns)

    def _receive(self, client: ClientConnection) -> None:
        started_ns = client.heard_ns = time.monotonic_ns()
        is_here = self._control_server.hear(client)
        if not is_here:
            self._drop(client)
        self._spend(client, started_ns)

    def _spend(self, client: ClientConnection, started_ns: int) -> None:
        """Count the time that a client took, and leave it unread if its user took too much."""
        if client.uid in self._trusted:
            return
        now_ns = time.monotonic_ns()
        self._time_shares.spend(client.uid, now_ns, now_ns - started_ns)
        client.resumes_ns = self._time_shares.resume_at_ns(client.uid, now_ns)
        if client.resumes_ns:
            self._loop.remove(client.channel.fileno())

    def _drop(self, client: ClientConnection) -> None:
        self._loop.remove(client.channel.fileno())
        if client.pidfd >= 0:
            self._loop.remove(client.pidfd)
        self._control_server.drop(client)
