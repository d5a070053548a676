"""uvicorn on an inherited listening socket, with a stop that ends within a given time.

The steps of a stop, by the time since `Server.stop`:

    0                        no new connections; idle ones are closed; requests under way go on
    shortly before drain_s   requests that still wait for rows are answered 503, `pool_stopped`
    drain_s                  the remaining connections, whose callers do not read or send, are cut

A second `stop` takes the last two steps at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, ClassVar, cast

import uvicorn
from starlette.types import ASGIApp

from batchpool.frontend.http.acceptor import Accepted, Acceptor
from batchpool.frontend.http.connection import Connection, sweep_all
from batchpool.frontend.http.scheduled_app import ScheduledApp
from batchpool.shm.resource_errors import descriptor_limit, open_descriptors, text_of

_LOG = logging.getLogger("batchpool.frontend")
_BACKLOG = 4096
_HANDSHAKE_S = 10.0
_SHUTDOWN_S = 2.0  # for the other side's word that TLS ends
_CATCH_UP_S = 0.02
_KEPT_FREE = 16  # this part of all descriptors is kept free for connections to come
_WRITE_OUT_S = 0.5  # for writing the responses of requests that are given up


class Server(uvicorn.Server):
    """The server of one front end. give_up: answers every request under way with an error. tls: for
    its TCP sockets."""

    _acceptor_class: ClassVar[type[Acceptor]] = Acceptor

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_s: float,
        give_up: Callable[[], None],
        protocol: type[Connection] = Connection,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                ScheduledApp(app, protocol.scheduler),
                http=protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=math.ceil(protocol.limits.keep_alive_s),
            )
        )
        self.drain_s = drain_s
        self._give_up = give_up
        self._protocol = protocol
        self._tls = tls
        self._timers: list[asyncio.TimerHandle] = []
        self._other_files = -1  # open descriptors besides connections
        self.cut = 0  # connections that were cut at the end of a stop

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the caller; uvicorn would raise SIGTERM again after a clean end."""
        yield

    async def run_on(self, *listeners: socket.socket) -> None:
        """Serve until `stop`; returns when every connection has ended."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self.serve(list(listeners))
        finally:
            sweeper.cancel()
            for timer in self._timers:
                timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        for listener in sockets or []:
            listener.listen(_BACKLOG)
        self.acceptor = self._acceptor_class(
            list(sockets or []), self._connect, self._silent_s, self._is_alone
        )
        self.servers = [cast(asyncio.Server, self.acceptor)]
        self.started = True

    def _connect(self, accepted: Accepted) -> None:
        """Give a connection its protocol. TLS begins and ends in less time than asyncio gives it:
        meanwhile a connection is none of those that `sweep_all` looks after."""
        tls = self._tls_of(accepted.listener)
        connecting = asyncio.get_running_loop().connect_accepted_socket(
            self._connection,
            accepted.sock,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
            ssl_shutdown_timeout=_SHUTDOWN_S if tls else None,
        )
        # Without a task, which would begin only in the next turn of the loop.
        try:
            waiter = connecting.send(None)
        except OSError:  # it was reset
            accepted.sock.close()
            return
        waiter.add_done_callback(partial(_connected, connecting))

    def _tls_of(self, listener: socket.socket) -> ssl.SSLContext | None:
        return None if listener.family == socket.AF_UNIX else self._tls

    def _silent_s(self, listener: socket.socket) -> float:
        """The time for which a connection may send nothing before its first request."""
        keep_alive_s = self._protocol.limits.keep_alive_s
        return keep_alive_s if self._tls_of(listener) is None else min(_HANDSHAKE_S, keep_alive_s)

    def _is_alone(self, origin: str) -> bool:
        """True if nobody has had work of late but the callers of this origin."""
        scheduler = self._protocol.scheduler
        return scheduler.alone is not None and scheduler.alone is scheduler.share_of(origin)

    def _connection(self) -> asyncio.Protocol:
        return self._protocol(self.config, self.server_state, self.lifespan.state)

    def learn(self) -> None:
        """Let every connection follow what a reload has changed."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.learn()

    def stop(self) -> None:
        """Drain and stop; a second call stops at once."""
        if self.should_exit:
            self._end()
            return
        self.should_exit = True
        # At once, not at uvicorn's next tick: until then more connections and requests would come
        # in, only to be answered 503.
        for listening in getattr(self, "servers", ()):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        write_out_s = min(_WRITE_OUT_S, self.drain_s / 2)
        self._timers = [
            loop.call_later(self.drain_s - write_out_s, self._give_up),
            loop.call_later(self.drain_s, self._end),
        ]

    def _end(self) -> None:
        self._give_up()
        # The responses of the requests that were given up are written first.
        asyncio.get_running_loop().call_later(min(0.05, self.drain_s), self._cut)

    def _cut(self) -> None:
        connections = list(self.server_state.connections)
        if connections:
            self.cut += len(connections)
            _LOG.warning("%d connections were cut: the time to drain was up", len(connections))
        for connection in connections:
            connection.transport.abort()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sweep_s = self._protocol.limits.sweep_s  # a reload may have changed it
            due_s = loop.time() + sweep_s
            await asyncio.sleep(sweep_s)
            # A loop that was held up has yet to read what came meanwhile, which would otherwise
            # count against the callers.
            if loop.time() - due_s > sweep_s:
                await asyncio.sleep(_CATCH_UP_S)
            sweep_all(self.server_state.connections, loop.time())
            self.acceptor.sweep(loop.time())
            self.keep_room()

    def keep_room(self) -> None:
        """Close idle connections of the address that has most of them while descriptors for others
        run out. Log an error when there are none at all.

        uvicorn and asyncio meet the kernel's refusal below this class and say nothing.
        """
        connections = len(self.server_state.connections) + self.acceptor.size
        if self._other_files < 0 or self._tls is not None:  # handshakes hold some too
            self._other_files = open_descriptors() - connections
        limit = descriptor_limit()
        spare = limit - 1 - connections - self._other_files
        if spare <= 0:
            reason = text_of(OSError(errno.EMFILE, ""))
            _LOG.error("connections are turned away, %d are open: %s", connections, reason)
        if spare < limit // _KEPT_FREE:
            self._close_idle()

    def _close_idle(self) -> None:
        idle = [
            found
            for found in self.server_state.connections
            if isinstance(found, Connection) and found.is_idle()
        ]
        by_address = Counter(found.peer for found in idle) + self.acceptor.silent_by_address()
        if not by_address:
            return
        ((address, most),) = by_address.most_common(1)
        to_close = max(1, most // 2)
        closed = self.acceptor.close_silent(address, to_close)
        of_address = [found for found in idle if found.peer == address]
        of_address.sort(key=Connection.quiet_since_s)
        _LOG.warning(
            "descriptors run out: %d of %d idle connections of %s are closed",
            to_close, most, address,
        )  # fmt: skip
        for connection in of_address[: to_close - closed]:
            connection.transport.close()


def _connected(connecting: Coroutine[Any, Any, object], _: asyncio.Future[None]) -> None:
    """Let asyncio close a connection whose TLS has failed, of which nobody else need know."""
    with contextlib.suppress(StopIteration, OSError, asyncio.CancelledError):
        connecting.send(None)
