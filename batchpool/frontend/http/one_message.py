"""uvicorn's HTTP/1.1 protocol, fed one message at a time.

What comes behind a request is not parsed before that request's response is complete and the caller
has taken it, but for what the transport's buffer may hold. So a connection holds one parsed
request, one response, and bytes that wait, of which no more are read above `_WAITING_BYTES`.

No response depends on how the bytes were cut into reads: sizes are compared with their limits at
places of the byte stream, never at the end of a read.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httptools
from mypy_extensions import mypyc_attr
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import is_ssl

from batchpool.core.errors import InvalidRequest, Overloaded
from batchpool.frontend.http.caller import caller_at
from batchpool.frontend.http.chunk_places import FRAMING_SHARE, ChunkPlaces
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.framing import body_length
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from batchpool.frontend.http.proxies import peer_address, unix_client
from batchpool.frontend.http.read_flow import ReadFlow
from batchpool.frontend.http.read_turns import ReadTurns
from batchpool.frontend.http.unparsed import END, UnparsedBytes

_CHECKED_BYTES = 1024  # of the trailers of a message, between two comparisons with their limits
_WAITING_BYTES = 64 * 1024  # behind a request under way; above it nothing more is read
_TURN_PIECES = 4  # fed to the parser in one turn of the loop, so that others have their turn
_OFFER_FIELDS = (b"upgrade", b"connection", b"http2-settings")
_STOPPED = (httptools.HttpParserError, httptools.HttpParserUpgrade)
_NO_BUDGET = MemoryBudget(2**63)


class TooManyFieldsError(Exception):
    """Stops the parser within a head, whose other fields nobody needs."""


# methods: the callbacks of the parser and of the transport share the state of one message.
@mypyc_attr(allow_interpreted_subclasses=True)
class OneMessageConnection(HttpToolsProtocol):
    """One connection whose parser gets one message at a time. A subclass writes the errors.

    limits: of the size of heads, and of waits. memory: counts the bytes held for all connections.
    turns: whose body is read next; they are of one loop, so that the class that a server serves has
    its own. peer: the remote address. own_caller: who sends its requests, unless a trusted proxy
    says another.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    memory: ClassVar[MemoryBudget] = _NO_BUDGET
    turns: ClassVar[ReadTurns]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        if isinstance(peer, tuple) and isinstance(own, tuple):
            # As uvicorn does, but that it makes two objects of the socket to ask for these.
            self.connections.add(self)
            self.transport = transport
            self.server = own[0], own[1]
            self.client = peer_address(peer[0]), peer[1]
            self.scheme = "https" if is_ssl(transport) else "http"
        else:
            super().connection_made(transport)
            self.client = unix_client(self.client, transport.get_extra_info("socket"))
        self.flow: ReadFlow = ReadFlow(transport)
        self.peer = self.client[0] if self.client else ""
        self.own_caller = caller_at(self.peer)
        self._unparsed = UnparsedBytes()
        # Of unparsed bytes, or of a part of a head.
        self._waiting = MemoryReservation(self.memory, self.own_caller.flow)
        self._parsing = False
        self._stops = False  # ends when the requests that have come are answered
        self._active_s = self.loop.time()  # when a byte came, or a response was complete
        self._begun_s = 0.0  # when the request's first byte came
        self._arriving = False
        self._in_head = False
        self._offers_upgrade = False
        self._head_bytes = 0  # of a head that is not complete, with empty lines before it
        self._whole_head: bytes | None = None  # as the parser got it, if in one piece
        self._body_left = 0  # of a body with Content-Length; negative if it is chunked
        self._places: ChunkPlaces | None = None  # of a chunked body, while it may be sure of some
        self._chunked_bytes = 0  # of a chunked message so far, its framing included
        self._body_bytes = 0  # of a body so far
        self._trailers = 0  # fields behind a chunked body, which are dropped

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.turns.leave(self.flow)
        self._unparsed.clear()
        self._waiting.close()
        self._whole_head = None
        # The last request refers to its connection: without this, each connection would leave a
        # circle of references, and so all that they refer to, to the garbage collector.
        self.cycle = None  # type: ignore[assignment]

    def receive(self, data: bytes) -> None:
        """Parse the bytes of one read."""
        self._active_s = self.loop.time()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        unparsed, taken = self._unparsed, 0
        if not (unparsed.size or self._arriving or self._head_bytes or self._stops):
            taken = self._parse_first(data)
            if taken == len(data) and not self._arriving:
                return
        unparsed.append(data, taken)
        self._parse()
        self._took(len(data))

    def _took(self, size: int) -> None:
        """Let others be read first if so many bytes of a body that has not ended were read."""
        if self._arriving and not self.transport.is_closing():
            self.turns.took(self.loop, self.flow, size, is_dropped=self._drops_body())

    def _drops_body(self) -> bool:
        """True if the arriving request has its response: it was refused before its body came."""
        return not self._in_head and self.cycle.response_started

    def _parse_first(self, data: bytes) -> int:
        """Feed the head that this read begins with, and its body if that ends with the read; return
        the number of bytes fed.

        It does what `_parse` would do, for most reads are one message. The parser is at rest.
        """
        length = data.find(END) + len(END)
        if length < len(END) or length > self.limits.head_bytes or not self._may_begin():
            return 0
        self._parsing = True
        try:
            self._head_bytes = length
            self._whole_head = head = data[:length]
            self.parser.feed_data(head)
            left = len(data) - length
            if left and left == self._body_left and self._arriving:
                self._body_left = 0
                length += left
                self.parser.feed_data(memoryview(data)[-left:])
        except _STOPPED as exc:
            self._after_stop(exc)
        finally:
            self._parsing = False
        return length

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unparsed.size:
            self._go_on()

    def shutdown(self) -> None:
        """End when the requests that have come are answered."""
        self._stops = True
        if not self._unparsed.size:
            super().shutdown()

    def end_with(self, error: BaseException) -> None:
        """Answer the arriving request with an error, unless it has a response, and close."""
        raise NotImplementedError

    def send_400_response(self, msg: str) -> None:
        self.end_with(InvalidRequest(msg))

    # -- parsing ------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Parse what waits, when its turn comes."""
        raise NotImplementedError

    def _parse(self) -> None:
        """Feed the parser until all bytes are used up, or a response has to be waited for."""
        if self._parsing:
            return  # a request was answered while it was fed
        self._parsing = True
        unparsed = self._unparsed
        pieces = 0
        try:
            while unparsed.size:
                if self.transport.is_closing():
                    unparsed.clear()
                    break
                if not (self._arriving or self._may_begin()):
                    break
                if pieces == _TURN_PIECES:
                    self.loop.call_soon(self._go_on)
                    break
                pieces += 1
                self._parse_piece(unparsed)
        finally:
            self._parsing = False
        self._count_held()
        if self._stops and not unparsed.size:
            super().shutdown()

    def _may_begin(self) -> bool:
        """True if the next request may be parsed."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _parse_piece(self, unparsed: UnparsedBytes) -> None:
        """Feed the parser up to the next place where a head or a message may end."""
        most = unparsed.contiguous()
        if self._in_head or not self._arriving:
            self._parse_head(unparsed, most)
        elif self._body_left >= 0:
            length = min(self._body_left, most) or most
            self._body_left -= length
            self._feed(unparsed.take(length, is_end=True))
        elif not self._feed_sure(unparsed, most):
            most = min(most, _CHECKED_BYTES - self._chunked_bytes % _CHECKED_BYTES)
            length = unparsed.to_end(most)
            piece = unparsed.take(length or most, is_end=length > 0)
            self._chunked_bytes += len(piece)
            self._feed(piece)
            if self._arriving and (length or self._chunked_bytes % _CHECKED_BYTES == 0):
                self._check_framing()
            elif self._arriving and self._trailers:
                self._check_trailers()

    def _feed_sure(self, unparsed: UnparsedBytes, most: int) -> bool:
        """Feed the bytes of a chunked body within which no message ends; False if there are none
        next."""
        places = self._places
        if places is None:
            return False
        length = places.sure_bytes(unparsed.data, unparsed.at, unparsed.at + most)
        if not length:
            self._places = None
            return False
        self._chunked_bytes += length
        self._feed(unparsed.take(length, is_end=False))
        if places.is_over and self._arriving:
            self._refuse_head()
        return True

    def _parse_head(self, unparsed: UnparsedBytes, most: int) -> None:
        room = self.limits.head_bytes - self._head_bytes
        if room == 0:
            self._refuse_head()
            return
        most = min(most, room)
        length = unparsed.to_end(most)
        piece = unparsed.take(length or most, is_end=length > 0)
        self._whole_head = bytes(piece) if length and not self._head_bytes else None
        self._head_bytes += len(piece)
        self._feed(piece)

    def _feed(self, piece: memoryview | bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except _STOPPED as exc:
            self._after_stop(exc)

    def _after_stop(self, stop: BaseException) -> None:
        """Go on after the parser has stopped, or end the connection."""
        if isinstance(stop, httptools.HttpParserUpgrade):
            self._feed_without_offer()
            return
        cause = stop.__context__ if isinstance(stop, httptools.HttpParserCallbackError) else stop
        if isinstance(cause, TooManyFieldsError):
            self._refuse_head()
        elif isinstance(cause, httptools.HttpParserError):
            self.send_400_response(f"the bytes are no request of HTTP/1.1: {cause}")
        else:
            self.end_with(cause or stop)

    def _feed_without_offer(self) -> None:
        """Feed a head that offered an upgrade once more, without the offer.

        The parser has stopped because of the offer. HTTP wants it ignored, and some libraries make
        one with every first request (h2c). The parser would lose the request's body, so another one
        goes on.
        """
        if not self._offers_upgrade:
            self.send_400_response("no other protocol is spoken here; HTTP/1.1 was expected")
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] not in _OFFER_FIELDS]
        self._offers_upgrade = False
        self._whole_head = None
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join([*lines, b"", b""]))

    def _check_framing(self) -> None:
        """Refuse a chunk extension or trailer without end: the parser keeps a field until its line
        ends."""
        self._check_trailers()
        framing_bytes = self._chunked_bytes - self._body_bytes
        if framing_bytes > self.limits.head_bytes + FRAMING_SHARE * self._body_bytes:
            self._refuse_head()

    def _check_trailers(self) -> None:
        if len(self.headers) + self._trailers > self.limits.fields:
            self._refuse_head()

    def _refuse_head(self) -> None:
        if self._arriving:
            del self.headers[self.limits.fields :]
        self.send_400_response(
            f"the request's headers are too large: at most {self.limits.head_bytes} bytes"
            f" and {self.limits.fields} fields are taken"
        )

    def _count_held(self) -> None:
        """Count the bytes that wait, and read no more of them above the limit."""
        flow, unparsed = self.flow, self._unparsed
        if unparsed.size > _WAITING_BYTES:
            flow.hold_reading()
        elif flow.is_held:
            flow.let_read()
        held_bytes = unparsed.held_bytes() + self._head_bytes
        if held_bytes != self._waiting.size:
            try:
                self._waiting.grow_to(held_bytes)
            except Overloaded as exc:
                self._waiting.release()
                if self._may_begin():
                    self.end_with(exc)
                else:
                    self.transport.close()

    # -- parser callbacks --------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def _begin(self) -> None:
        self._begun_s = self._active_s
        self._arriving = self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            if len(self.headers) > self.limits.fields:
                raise TooManyFieldsError
        else:
            self._trailers += 1

    def on_headers_complete(self) -> None:
        if self._check_head() is not None:
            self._begin_asgi()

    def _check_head(self) -> dict[bytes, bytes] | None:
        """The headers by name, once the head is complete; None if it was refused."""
        if self.transport.is_closing():
            return None
        fields = self.headers
        headers = dict(fields)
        try:
            self._body_left = body_length(self.parser.get_http_version(), fields, headers)
        except InvalidRequest as exc:
            self.end_with(exc)
            return None
        if self._body_left < 0:
            self._places = ChunkPlaces(self.limits.head_bytes)
        self._head_bytes = self._body_bytes = self._chunked_bytes = self._trailers = 0
        return headers

    def _begin_asgi(self) -> None:
        """Let the application have the request, unless its head has to be fed once more."""
        self._offers_upgrade = (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        )
        if not self._offers_upgrade:
            super().on_headers_complete()
            self._in_head = False

    def on_message_complete(self) -> None:
        if self._offers_upgrade or self.transport.is_closing():
            return
        if self._body_left < 0:
            self._check_framing()
            if self.transport.is_closing():
                return
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
        if self._unparsed.size and not self.transport.is_closing():
            self.server_state.total_requests += 1
            self.flow.resume_reading()  # the last piece of the body may have paused it
            self._go_on()
        else:
            super().on_response_complete()
