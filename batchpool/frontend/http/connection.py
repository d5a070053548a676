"""One HTTP connection with limits on time, size and memory, and errors in JSON.

uvicorn waits without a limit for a first request, for the rest of one, and for a caller that does
not read its response, and it takes headers of any size. `Connection.sweep`, called every `sweep_s`,
ends a connection after:

    stall_s       no byte came of a request that has begun, or none was taken of a response
    arrival_s     one request has not arrived completely, even if bytes keep coming
    keep_alive_s  no request was under way

A request that does not arrive is answered 408, unless it has a response already. Time in which the
server itself does not read is not the caller's. If that lasts for `_PAUSED_ARRIVALS` times the
limit of an arrival, without a byte and with no request that the server works on, whoever was to
resume reading has not: the connection is cut, and the log says so.

All that a connection holds counts in the front end's `MemoryBudget`. While that is used up, callers
that are behind with reading are cut.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import termios
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from batchpool.core.errors import Overloaded, RequestTimeout
from batchpool.frontend.http.access_log import AccessLog, LoggedRequest, RequestOutcome
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_context import set_outcome
from batchpool.frontend.http.request_counters import NOT_HTTP, RequestCounters
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.frontend.http.scheduled_connection import ScheduledConnection
from batchpool.wire.request_id import REQUEST_ID, made_id, request_id

_LOG = logging.getLogger("batchpool.frontend")
_PAUSED_ARRIVALS = 4.0
_BEHIND_S = 1.0  # a caller that is behind for longer may be cut while memory is short


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(ScheduledConnection):
    """One connection. A subclass sets the limits, the access log and the metrics of its front end.

    metrics: counts bytes that are no HTTP request.
    """

    access: ClassVar[AccessLog] = AccessLog({"access_log": "off", "access_log_sample": 0})
    metrics: ClassVar[RequestCounters | None] = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unsent = MemoryReservation(self.memory, self._waiting.flow)
        self._waiting.give_up, self._unsent.give_up = self._give_head_up, self._cut_if_behind
        self._behind_s = 0.0  # when the caller fell behind with reading
        self._unsent_bytes = 0
        self._sent_s = 0.0  # when the unsent bytes last got fewer
        self._paused_s = 0.0  # when nothing was read, and nothing else happened, for the first time
        self._excused_s = 0.0  # when time without reading was last not counted

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unsent.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._behind_s = self.loop.time()
        self._unsent.count(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._unsent.release()
        super().resume_writing()

    def check_response(self, size: int) -> None:
        """Raise Overloaded for a long response that the caller may not take just now, since it has
        not read others."""
        self.memory.check_response(self._unsent.flow, size)

    def learn(self) -> None:
        """Follow what a reload has changed."""

    # -- errors -------------------------------------------------------------------------

    def end_with(self, error: BaseException) -> None:
        """Answer the arriving request with an error, unless it has a response, and close."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        # With complete headers the request belongs to the application's task.
        begun = self._arriving and not self._in_head and isinstance(cycle, RequestResponseCycle)
        if cycle is not None:
            cycle.disconnected = True  # nothing may follow this response
        if begun and cycle.response_started:
            self.transport.close()
            return
        headers = dict(self.headers) if self._arriving else {}
        name = request_id(headers) or made_id()
        path = cycle.scope["path"].removeprefix(cycle.scope["root_path"]) if begun else ""
        if not begun and self._arriving:
            path = self.url.decode("latin-1")
        response = error_response(error, request_id=name, path=path)
        self._write_last(response, name)
        outcome = RequestOutcome(response.status, response.code, response.error, len(response.body))
        if begun:
            set_outcome(cycle.scope, outcome, name)
            return
        if self.metrics is not None:
            self.metrics.count_error(NOT_HTTP, response.code)
        if self.access.wants(response.status, name):
            now_ns = int(self.loop.time() * 1e9)
            self.access.write(self._logged_request(headers, name, now_ns), outcome, now_ns)

    def _write_last(self, response: HttpResponse, name: bytes) -> None:
        lines = [STATUS_LINE[response.status].rstrip()]
        lines += [b"%s: %s" % field for field in (*response.headers, (REQUEST_ID, name))]
        lines += [b"connection: close", b"", response.body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

    def _logged_request(
        self, headers: Mapping[bytes, bytes], name: bytes, now_ns: int
    ) -> LoggedRequest:
        """A request whose headers did not come completely."""
        return LoggedRequest(
            road="none",
            peer=self.peer,
            method="-",
            path=(self.url if self._arriving else b"") or b"-",
            headers=headers,
            begun_ns=int(self._begun_s * 1e9) if self._arriving else now_ns,
            request_id=name,
        )

    # -- limits on waiting --------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close this connection if a wait exceeds its limit. now_s: the loop's time."""
        unsent_bytes = self.unsent_bytes()
        if unsent_bytes < self._unsent_bytes or self._unsent_bytes == 0:
            self._sent_s = now_s
        self._unsent_bytes = unsent_bytes
        if self._unsent.size:
            self._unsent.count(self.transport.get_write_buffer_size())
        if unsent_bytes:
            if now_s - self._sent_s > self.limits.stall_s:
                self.transport.abort()
        elif not self.transport.is_closing():
            self._end_wait(now_s)

    def behind_bytes(self, now_s: float) -> int:
        """Bytes of a response that the caller should have taken by now; 0 if it is not behind."""
        is_behind = self.flow.write_paused and now_s - self._behind_s > _BEHIND_S
        return self._unsent.size if is_behind else 0

    def _give_head_up(self, error: Overloaded) -> bool:
        """End with an error, if what waits is a part of a head."""
        if not self._in_head or self._parsing or not self._may_begin():
            return False
        self.end_with(error)
        return True

    def _cut_if_behind(self, error: Overloaded) -> bool:
        if not self.behind_bytes(self.loop.time()):
            return False
        self.cut()
        return True

    def is_idle(self) -> bool:
        """True while the caller has no request under way or arriving."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not (self._arriving or self.awaits_turn)

    def quiet_since_s(self) -> float:
        """The loop's time when the caller last sent something."""
        return self._active_s

    def cut(self) -> None:
        """End the connection at once, and drop what its caller has not taken."""
        self._unsent.release()
        self.transport.abort()

    def unsent_bytes(self) -> int:
        """Bytes of responses that the caller has yet to take; 0 if the transport's buffer is empty.

        Bytes in the kernel's buffer are added: the kernel takes more only when a good part of its
        own buffer is free, which takes a slow reader long to achieve.
        """
        here: int = self.transport.get_write_buffer_size()
        if here == 0:
            return 0
        sock = self.transport.get_extra_info("socket")
        raw = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return here + int.from_bytes(raw, sys.byteorder)

    def _end_wait(self, now_s: float) -> None:
        limits = self.limits
        if self.flow.read_paused or self.awaits_turn:  # the server keeps the caller waiting
            if self._active_s != self._excused_s:
                self._paused_s = now_s
            elif self._is_forgotten(now_s):
                _LOG.error(
                    "a connection of %s was not read from for %.0f s, although nothing was under"
                    " way: it is closed",
                    self.peer,
                    now_s - self._paused_s,
                )
                self.cut()
                return
            self._begun_s += now_s - self._active_s
            self._active_s = self._excused_s = now_s
        quiet_s = now_s - self._active_s
        if self._arriving:
            if now_s - self._begun_s > limits.arrival_s:
                text = f"the request was not complete within {limits.arrival_s:g} s"
                self.end_with(RequestTimeout(text))
            elif quiet_s > limits.stall_s:
                self.end_with(RequestTimeout(f"no more of it came for {limits.stall_s:g} s"))
        elif quiet_s > limits.keep_alive_s and self.is_idle():
            self.transport.close()

    def _is_forgotten(self, now_s: float) -> bool:
        most_s = _PAUSED_ARRIVALS * self.limits.arrival_s
        return now_s - self._paused_s > most_s and (self._arriving or self.is_idle())


def sweep_all(connections: Iterable[object], now_s: float) -> None:
    """Sweep all connections of a server. now_s: the loop's time.

    While the memory budget is used up, callers that are behind with reading are cut, the one with
    the most bytes first.
    """
    swept = list(connections)
    for connection in swept:
        assert isinstance(connection, Connection)
        connection.sweep(now_s)
    if any(isinstance(found, Connection) and found.memory.is_full for found in swept[:1]):
        _cut_behind(swept, now_s)


def _cut_behind(connections: list[Any], now_s: float) -> None:
    behind = [(found.behind_bytes(now_s), found) for found in connections]
    behind.sort(key=lambda pair: pair[0], reverse=True)
    for held_bytes, connection in behind:
        if not held_bytes or not connection.memory.is_full:
            return
        connection.cut()
