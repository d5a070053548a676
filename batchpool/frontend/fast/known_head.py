"""A head that was parsed on its connection, and the heads that differ from it in some values only.

Equal bytes mean the same again. So do bytes that differ in nothing but the values of fields that
decide neither how a request is framed nor how it is read: its id, its trace, its user agent, its
caller's name and, as far as the front end would parse it at once, the length of its body.

Where those values stand is never guessed: each line of the head has to be one field, with the name
and the value that the parser has reported for it, in its order. A new value may then hold visible
ASCII characters with spaces between them, which no parser reads as anything but a value; a length
has digits only, the first of them not 0. Whatever else comes, other bytes, a field more, less or
elsewhere, another spelling of a name, is for the parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.raw import FixedSizeReader
from batchpool.wire.request import Headers, InferRequest

LONG_HEAD_BYTES = 4096  # not worth keeping
_LINE_END = b"\r\n"
_END = b"\r\n\r\n"
_LENGTH = b"content-length"
# Nothing on the fast path reads these but `request_id`, the access log and `RequestHead.of`.
VARYING = frozenset(
    {_LENGTH, b"user-agent", b"x-client-id", b"x-request-id", b"x-correlation-id"}
    | {b"traceparent", b"tracestate", b"baggage"}  # W3C
    | {b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled"}
    | {b"x-amzn-trace-id", b"x-cloud-trace-context", b"x-request-start", b"uber-trace-id"}
    | {b"x-datadog-trace-id", b"x-datadog-parent-id", b"x-datadog-tags", b"sentry-trace"}
)
_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_DIGITS = re.compile(rb"[1-9][0-9]{0,11}")


class Varying:
    """The places of a head where values may differ.

    texts: the bytes before the first value, between two of them, and behind the last one.
    names: of the fields, in lower case. length_at: the index of Content-Length; -1 if it is fixed.
    """

    __slots__ = ("_first", "_rest", "length_at", "names", "texts")

    def __init__(self, texts: Sequence[bytes], names: Sequence[bytes]) -> None:
        self.texts = texts
        self.names = names
        self.length_at = names.index(_LENGTH) if _LENGTH in names else -1
        self._first = texts[0]
        patterns = [_DIGITS if name == _LENGTH else _VALUE for name in names]
        self._rest = list(zip(patterns, texts[1:], strict=True))

    def values(self, data: bytes, start: int) -> tuple[list[bytes], int] | None:
        """The values in a head that begins here, and where it ends; None for any other."""
        first = self._first
        if not data.startswith(first, start):
            return None
        at, most = start + len(first), start + LONG_HEAD_BYTES
        values: list[bytes] = []
        for pattern, text in self._rest:
            end = data.find(_LINE_END, at, most)
            value = data[at:end]
            # Letters and digits, as most ids have no other, are known in a tenth of the time.
            is_plain = pattern is _VALUE and value.isalnum()
            if end < 0 or not (is_plain or pattern.fullmatch(value)):
                return None
            if not data.startswith(text, end):
                return None
            values.append(value)
            at = end + len(text)
        return (values, at) if at <= most else None

    def narrowed(
        self, own: Sequence[bytes], values: Sequence[bytes], more: Sequence[bytes]
    ) -> Varying:
        """These places without those where both heads have the same value.

        own: the values of a head of this kind; values: of another. more: names that stay.
        """
        texts, names = [self.texts[0]], []
        for name, text, one, other in zip(self.names, self.texts[1:], own, values, strict=True):
            if one == other and name not in more:
                texts[-1] += one + text
            else:
                texts.append(text)
                names.append(name)
        return Varying(texts, names)


def varying(text: bytes, headers: Headers) -> Varying | None:
    """All places of a head where values may differ; None if there are none.

    text: all bytes of the head. headers: as the parser has reported them, in their order; where a
    name came twice, there are fewer than lines, and the head is for the parser.
    """
    lines = text.split(b"\r\n")
    if len(lines) != len(headers) + 3 or not text.endswith(_END):
        return None
    texts: list[bytes] = []
    names: list[bytes] = []
    begin = 0  # of the text since the last value
    at = len(lines[0]) + 2
    for line, (name, value) in zip(lines[1:-2], headers.items(), strict=True):
        own, colon, rest = line.partition(b":")
        if own.lower() != name or not colon or rest.strip(b" \t") != value:
            return None  # the parser has read these lines otherwise
        pattern = _DIGITS if name == _LENGTH else _VALUE
        if name in VARYING and rest == b" " + value and pattern.fullmatch(value):
            value_at = at + len(own) + 2
            texts.append(text[begin:value_at])
            names.append(name)
            begin = value_at + len(value)
        at += len(line) + 2
    if not names:
        return None
    texts.append(text[begin:])
    return Varying(texts, names)


class KnownHead:
    """The head of a request that was parsed.

    text: exactly the bytes that the parser took for the head, from rest until it was complete.
    size: of the body, in bytes. head, parsed: of that request. is_examined: whether it is known in
    which places other heads may differ from this one. may_differ: there are such places. prefix:
    the text before the first of them. reader: of the rows in bodies of this size; None where a body
    holds more, and before the head `came_again`.
    """

    __slots__ = (
        "_all",
        "_seen",
        "came_again",
        "endpoint",
        "head",
        "is_examined",
        "may_differ",
        "parsed",
        "path",
        "prefix",
        "reader",
        "size",
        "text",
    )

    def __init__(self, request: FastRequest, parsed: InferRequest, text: bytes, size: int) -> None:
        self.text = text
        self.size = size
        self.path: bytes = request.path
        self.endpoint: HttpEndpoint = request.endpoint
        self.head: RequestHead = request.head
        self.parsed = parsed
        self.is_examined = self.may_differ = False
        self.prefix = b""
        self._all: Varying | None = None  # the places where a value may differ
        self._seen: Varying | None = None  # those of them where one has
        self.reader: FixedSizeReader | None = None
        self.came_again = False

    def examine(self) -> None:
        """Find the places where other heads may differ from this one."""
        self.is_examined = True
        self._all = found = varying(self.text, self.head.headers)
        if found is not None:
            self.may_differ = True
            self.prefix = found.texts[0]

    def arrived(self, data: bytes, at: int) -> tuple[RequestHead, int, int] | None:
        """The head that begins here if it differs from this one in values alone; where its body
        begins, and its size. None if it is for the parser."""
        seen = self._seen
        found = None if seen is None else seen.values(data, at)
        if found is None:
            if self._all is None:
                return None
            found = self._all.values(data, at)
            if found is None:
                return None
            seen = self._widen(self._all, found[0])
            found = seen.values(data, at)
            if found is None:
                return None
        assert seen is not None
        values, end = found
        size = self.size
        if seen.length_at >= 0:
            size = int(values[seen.length_at])
            endpoint = self.endpoint
            if size > endpoint.max_body_bytes or endpoint.parses_long(self.head, size):
                return None
        return self.head.with_values(seen.names, values), end, size

    def _widen(self, all_: Varying, values: Sequence[bytes]) -> Varying:
        """Add the places where these values are others than this head's own."""
        headers = self.head.headers
        own = [headers[name] for name in all_.names]
        before = () if self._seen is None else self._seen.names
        self._seen = seen = all_.narrowed(own, values, before)
        return seen

    def come_again(self) -> None:
        """Get a reader of the bodies of this size, since more of them come."""
        self.came_again = True
        self.reader = self.endpoint.fixed_size_reader(self.parsed, self.size)
