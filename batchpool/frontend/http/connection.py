"""uvicorn's HTTP/1.1 protocol with limits on time and size, and errors in JSON.

uvicorn waits without a limit for a first request, for the rest of one, and for a caller that does
not read its response, and it takes headers of any size. `Connection.sweep`, called every `sweep_s`,
ends a connection after:

    stall_s       no byte came of a request that has begun, or none was taken of a response
    arrival_s     one request has not arrived completely, even if bytes keep coming
    keep_alive_s  no request was under way

A request that does not arrive is answered 408, unless it has a response already.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from mypy_extensions import mypyc_attr
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from batchpool.core.errors import InvalidRequest, PoolError, RequestTimeout
from batchpool.frontend.http.access_log import AccessLog, LoggedRequest, RequestOutcome
from batchpool.frontend.http.request_context import set_outcome
from batchpool.frontend.http.request_counters import NOT_HTTP, RequestCounters
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.wire.request_id import REQUEST_ID, made_id, request_id

# Bytes of chunk sizes and extensions that a chunked body may have for each byte of content;
# one-byte chunks have five.
_FRAMING_SHARE = 16
_SWEEP_LEAST_S = 0.1  # sweeping ten thousand connections takes milliseconds
_OFFER_FIELDS = (b"upgrade", b"connection", b"http2-settings")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection. head_bytes: of the request line and all headers. fields: number of
    headers."""

    stall_s: float = 30.0
    arrival_s: float = 120.0
    keep_alive_s: float = 75.0
    head_bytes: int = 64 * 1024
    fields: int = 256

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> ConnectionLimits:
        """The limits that the configuration's [server] sets."""
        return cls(arrival_s=server["receive_timeout_s"])

    @property
    def sweep_s(self) -> float:
        """The interval between sweeps.

        A wait exceeds its limit by at most a tenth of a stall, a fifth of an arrival, or a tenth of
        a second.
        """
        return min(self.stall_s / 10, max(self.arrival_s / 5, _SWEEP_LEAST_S))


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(HttpToolsProtocol):
    """One connection. A subclass sets the limits, the access log and the metrics of its front end.

    metrics: counts bytes that are no HTTP request.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    access: ClassVar[AccessLog] = AccessLog({"access_log": "off", "access_log_sample": 0})
    metrics: ClassVar[RequestCounters | None] = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._active_s = self.loop.time()  # when a byte came, or a response was complete
        self._begun_s = 0.0  # when the request's first byte came
        self._arriving = False
        self._in_head = False
        self._offers_upgrade = False
        self._read = b""  # the bytes of the current read
        self._unparsed = b""  # bytes to parse again, without an offered upgrade
        self._head_bytes = 0
        self._messages = 0
        self._chunked = False
        self._body_bytes = 0  # of a chunked body so far; its framing is counted beside it
        self._framing_bytes = 0
        self._unsent_bytes = 0
        self._sent_s = 0.0  # when the unsent bytes last got fewer

    def data_received(self, data: bytes) -> None:
        self._active_s = self.loop.time()
        while data:
            self._read, self._unparsed = data, b""
            in_head, message, body_bytes = self._in_head, self._messages, self._body_bytes
            super().data_received(data)
            if in_head and self._in_head:
                self._head_bytes += len(data)
            if self._chunked and self._arriving and message == self._messages:
                self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
            data = self._unparsed
        self._read = b""
        fields = len(self.headers or ())  # trailers of a chunked body add to them
        if self._head_bytes > self.limits.head_bytes or fields > self.limits.fields:
            self._refuse_head()
        # An endless chunk extension or trailer: the parser keeps a field until its line ends, so
        # the bytes are counted here.
        most = self.limits.head_bytes + _FRAMING_SHARE * self._body_bytes
        if self._framing_bytes > most and not self.transport.is_closing():
            self._refuse_head()

    def _refuse_head(self) -> None:
        self.send_400_response(
            f"the request's headers are too large: at most {self.limits.head_bytes} bytes"
            f" and {self.limits.fields} fields are taken"
        )

    def send_400_response(self, msg: str) -> None:
        self.end_with(InvalidRequest(msg))

    def end_with(self, error: PoolError) -> None:
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
        response = error_response(error)
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
            peer=self.client[0] if self.client else "",
            method="-",
            path=(self.url if self._arriving else b"") or b"-",
            headers=headers,
            begun_ns=int(self._begun_s * 1e9) if self._arriving else now_ns,
            request_id=name,
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Parse a request again that offered an upgrade, without the offer.

        uvicorn calls this when the parser stopped because of an upgrade. HTTP wants such an offer
        ignored, and some libraries make one with every first request (h2c). The parser would lose
        the request's body, so it gets the head once more and then the bytes behind it.
        """
        stop = sys.exception()
        if not self._offers_upgrade or stop is None:
            return
        rest = self._read[stop.args[0] :]
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] not in _OFFER_FIELDS]
        self._offers_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self._unparsed = b"\r\n".join([*lines, b"", rest])

    # -- parser callbacks --------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def _begin(self) -> None:
        self._begun_s = self._active_s
        self._arriving = self._in_head = True
        self._messages += 1
        self._chunked = False
        self._head_bytes = self._body_bytes = self._framing_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._offers_upgrade = (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        )
        self._chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if not self._offers_upgrade:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()
            self._arriving = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            # The application has discarded as much of a refused body as it accepts.
            self.transport.close()
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._active_s = self.loop.time()
        super().on_response_complete()

    # -- limits on waiting --------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close this connection if a wait exceeds its limit. now_s: the loop's time."""
        unsent_bytes = self.unsent_bytes()
        if unsent_bytes < self._unsent_bytes or self._unsent_bytes == 0:
            self._sent_s = now_s
        self._unsent_bytes = unsent_bytes
        if unsent_bytes:
            if now_s - self._sent_s > self.limits.stall_s:
                self.transport.abort()
        elif not self.transport.is_closing():
            self._end_wait(now_s)

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
        if self.flow.read_paused:  # the server keeps the caller from sending
            self._begun_s += now_s - self._active_s
            self._active_s = now_s
        quiet_s = now_s - self._active_s
        if self._arriving:
            if now_s - self._begun_s > limits.arrival_s:
                text = f"the request was not complete within {limits.arrival_s:g} s"
                self.end_with(RequestTimeout(text))
            elif quiet_s > limits.stall_s:
                self.end_with(RequestTimeout(f"no more of it came for {limits.stall_s:g} s"))
        elif quiet_s > limits.keep_alive_s and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def sweep_all(connections: Iterable[object], now_s: float) -> None:
    """Sweep all connections of a server. now_s: the loop's time."""
    for connection in list(connections):
        assert isinstance(connection, Connection)
        connection.sweep(now_s)
