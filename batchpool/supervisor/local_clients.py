"""Connections of local programs to the control socket, in the supervisor's event loop."""

from __future__ import annotations

import logging
import socket
import time
from functools import partial

from batchpool.shm.resource_errors import text_of
from batchpool.supervisor.control_server import ControlServer
from batchpool.supervisor.event_loop import EventLoop
from batchpool.supervisor.resources.client_connection import ClientConnection

_LOG = logging.getLogger("batchpool.supervisor")
_PAUSE_NS = 1_000_000_000  # without descriptors or memory for another client


class LocalClients:
    """Accepts connections, passes their messages to the control server, and notices their end.

    listener: the control socket. Without the means for another client it is left alone for a
    second; connections wait in it meanwhile.
    """

    def __init__(
        self, loop: EventLoop, listener: socket.socket, control_server: ControlServer
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._control_server = control_server
        self._paused_until_ns = 0
        loop.add(listener.fileno(), self._accept)

    def tick(self, now_ns: int) -> None:
        """End a pause that is over; called in each iteration of the loop."""
        if 0 < self._paused_until_ns <= now_ns:
            self._paused_until_ns = 0
            self._loop.add(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            client = self._control_server.accept()
        except OSError as exc:
            _LOG.error("no client can be taken: %s", text_of(exc))
            self._loop.remove(self._listener.fileno())
            self._paused_until_ns = time.monotonic_ns() + _PAUSE_NS
            return
        if client is not None:
            self._loop.add(client.channel.fileno(), partial(self._receive, client))
            # A forked child of the client may hold the socket open when the client has ended.
            if client.pidfd >= 0:
                self._loop.add(client.pidfd, partial(self._drop, client))

    def _receive(self, client: ClientConnection) -> None:
        if not self._control_server.hear(client):
            self._drop(client)

    def _drop(self, client: ClientConnection) -> None:
        self._loop.remove(client.channel.fileno())
        if client.pidfd >= 0:
            self._loop.remove(client.pidfd)
        self._control_server.drop(client)
