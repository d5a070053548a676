"""Connection: uvicorn's HTTP/1.1 protocol with an end to every wait, and errors in JSON.

uvicorn waits for ever for a first request, for the rest of one, and for a caller to read its
answer, and takes headers of any size. `sweep`, called every `sweep_s`, ends:

    stall_s       no byte came of a request that has begun; none was taken of an answer
    arrival_s     one request took this long to arrive, however it trickled
    keep_alive_s  nothing was asked

A request that does not arrive is answered 408, if it has no answer yet.
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
from batchpool.frontend.http.access_log import AccessLog, RequestOutcome
from batchpool.frontend.http.metrics import NO_ROAD, EndpointMetrics
from batchpool.frontend.http.request_context import end
from batchpool.frontend.http.response import refusal
from batchpool.wire.request_id import REQUEST_ID, made_id, request_id

# Bytes of chunk sizes and extensions a chunked body may have for each of its own: one-byte chunks
# have five.
_FRAMING_SHARE = 16
_SWEEP_LEAST_S = 0.1  # a look at ten thousand connections takes milliseconds
_OFFER_FIELDS = (b"upgrade", b"connection", b"http2-settings")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may take. head_bytes: request line and headers; fields: headers."""

    stall_s: float = 30.0
    arrival_s: float = 120.0
    keep_alive_s: float = 75.0
    head_bytes: int = 64 * 1024
    fields: int = 256

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> ConnectionLimits:
        """As these keys of [server] have them."""
        return cls(arrival_s=server["receive_timeout_s"])

    @property
    def sweep_s(self) -> float:
        """How often to look, so that no wait lasts much longer than its limit: by a tenth of a
        stall, by a fifth of an arrival, or by a tenth of a second."""
        return min(self.stall_s / 10, max(self.arrival_s / 5, _SWEEP_LEAST_S))


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(HttpToolsProtocol):
    """One connection. A subclass may set other limits, and says whose access log and meter these
    are."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    access: ClassVar[AccessLog] = AccessLog({"access_log": "off", "access_log_sample": 0})
    meter: ClassVar[EndpointMetrics | None] = None  # of what is no request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stirred_s = self.loop.time()  # a byte came, or an answer was complete
        self._begun_s = 0.0  # the request's first byte
        self._arriving = False
        self._in_head = False
        self._offer = False
        self._piece = b""
        self._head_bytes = 0
        self._messages = 0
        self._chunked = False
        self._body_bytes = 0  # of a chunked body so far, and what came around it
        self._framing_bytes = 0
        self._unsent_bytes = 0
        self._sent_s = 0.0  # the unsent bytes got fewer

    def data_received(self, data: bytes) -> None:
        self._stirred_s = self.loop.time()
        while data:
            self._piece, self._again = data, b""
            in_head, message, body_bytes = self._in_head, self._messages, self._body_bytes
            super().data_received(data)
            if in_head and self._in_head:
                self._head_bytes += len(data)
            if self._chunked and self._arriving and message == self._messages:
                self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
            data = self._again
        self._piece = b""
        fields = len(self.headers or ())  # trailers of a chunked body add to them
        if self._head_bytes > self.limits.head_bytes or fields > self.limits.fields:
            self._refuse_head()
        # An endless chunk extension or trailer: the parser keeps a field until its line ends.
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
        """Answer with this error what is arriving, unless it has an answer, and end."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        # Its headers are complete: the application has it.
        begun = self._arriving and not self._in_head and isinstance(cycle, RequestResponseCycle)
        if cycle is not None:
            cycle.disconnected = True  # nothing may follow the last answer
        if begun and cycle.response_started:
            self.transport.close()
            return
        headers = dict(self.headers) if self._arriving else {}
        name = request_id(headers) or made_id()
        answer = refusal(error)
        lines = [STATUS_LINE[answer.status].rstrip()]
        lines += [b"%s: %s" % field for field in (*answer.headers, (REQUEST_ID, name))]
        lines += [b"connection: close", b"", answer.body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
        outcome = RequestOutcome(answer.status, answer.code, answer.error, len(answer.body))
        if begun:
            end(cycle.scope, outcome, name)
            return
        if self.meter is not None:
            self.meter.refused(NO_ROAD, answer.code)
        if self.access.wants(answer.status, name):
            now_ns = int(self.loop.time() * 1e9)
            self.access.tell(
                outcome,
                road="none",
                peer=self.client[0] if self.client else "",
                method="-",
                path=(self.url if self._arriving else b"") or b"-",
                headers=headers,
                begun_ns=int(self._begun_s * 1e9) if self._arriving else now_ns,
                ended_ns=now_ns,
                name=name,
            )

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade was offered; uvicorn calls this when the parser gave up because of it.

        HTTP wants such an offer ignored, and some libraries make one with every first request
        (h2c). The parser would lose the request's body, so it gets the request once more
        without the offer, and then what came behind the head.
        """
        stop = sys.exception()
        if not self._offer or stop is None:
            return
        rest = self._piece[stop.args[0] :]
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] not in _OFFER_FIELDS]
        self._offer = False
        self.parser = httptools.HttpRequestParser(self)
        self._again = b"\r\n".join([*lines, b"", rest])

    # -- the parser's calls -------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def _begin(self) -> None:
        self._begun_s = self._stirred_s
        self._arriving = self._in_head = True
        self._messages += 1
        self._chunked = False
        self._head_bytes = self._body_bytes = self._framing_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        self._chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if not self._offer:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offer:
            super().on_message_complete()
            self._arriving = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            # The application has taken and dropped as much of a refused body as it wants.
            self.transport.close()
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._stirred_s = self.loop.time()
        super().on_response_complete()

    # -- ends of waits ------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """End this connection if it has waited too long. now_s: the loop's time."""
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
        """What the caller has yet to take of answers that wait here; 0 if none waits here.

        What waits in the kernel counts with it: the kernel asks for more only when a good
        part of its own buffer is free, which a slow reader takes long to achieve.
        """
        here: int = self.transport.get_write_buffer_size()
        if here == 0:
            return 0
        sock = self.transport.get_extra_info("socket")
        raw = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return here + int.from_bytes(raw, sys.byteorder)

    def _end_wait(self, now_s: float) -> None:
        limits = self.limits
        if self.flow.read_paused:  # it is us who keep the caller from sending
            self._begun_s += now_s - self._stirred_s
            self._stirred_s = now_s
        quiet_s = now_s - self._stirred_s
        if self._arriving:
            if now_s - self._begun_s > limits.arrival_s:
                text = f"the request was not complete within {limits.arrival_s:g} s"
                self.end_with(RequestTimeout(text))
            elif quiet_s > limits.stall_s:
                self.end_with(RequestTimeout(f"no more of it came for {limits.stall_s:g} s"))
        elif quiet_s > limits.keep_alive_s and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def sweep_all(connections: Iterable[object], now_s: float) -> None:
    """Sweep a server's connections."""
    for connection in list(connections):
        assert isinstance(connection, Connection)
        connection.sweep(now_s)
