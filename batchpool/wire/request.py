"""One inference request, and the headers that its three forms share.

    header                           meaning
    Content-Type                     OIP or msgpack form; anything else is 415
    Inference-Header-Content-Length  bytes of JSON before the binary tensors; 0 = raw form
    X-Request-Timeout-Ms             whole milliseconds, 0 = none
    X-Request-Priority               1 (first) to 255, 0 = the model's default

Header mappings are lower-case bytes -> bytes, as an ASGI scope has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchpool.core.errors import InvalidRequest
from batchpool.core.priority import LOWEST
from batchpool.core.tensors.rows import Rows

Headers = Mapping[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]
Body = bytes | bytearray | memoryview


class Fields(HeaderList):
    """Header fields that many answers share. lines: as HTTP/1.1 has them, each with its end."""

    __slots__ = ("lines",)

    def __init__(self, fields: HeaderList) -> None:
        super().__init__(fields)
        self.lines = b"".join(b"%s: %s\r\n" % field for field in fields)


HEADER_LENGTH = b"inference-header-content-length"
TIMEOUT_MS = b"x-request-timeout-ms"
PRIORITY = b"x-request-priority"
LONGEST_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """An output to answer with, and whether as bytes (True) or as JSON numbers (False)."""

    name: str
    binary: bool


@dataclass(slots=True)
class InferRequest:
    """A checked request.

    id: echoed in the answer; None when absent or empty.  rows: views of the body.
    outputs: in the order to answer.  timeout_ns: from arrival; None = the model's own
    limit.  priority: 1 (first) to 255; 0 = the model's default.  form: the name of the wire form
    that it came in, which is also that of its answer.
    """

    id: str | None
    rows: Rows
    outputs: tuple[OutputChoice, ...]
    timeout_ns: int | None
    priority: int
    form: str


def header_timeout_ns(headers: Headers) -> int | None:
    """X-Request-Timeout-Ms in nanoseconds; None when absent or 0."""
    text = headers.get(TIMEOUT_MS)
    if text is None:
        return None
    return min(_number(TIMEOUT_MS, text) * 1_000_000, LONGEST_NS) or None


def header_priority(headers: Headers) -> int:
    """X-Request-Priority, 0 when absent. All that is asked before the body is read."""
    text = headers.get(PRIORITY)
    return 0 if text is None else _number(PRIORITY, text, LOWEST)


def header_length(headers: Headers, body_size: int) -> int:
    """How many bytes of the body are JSON; all of them when the header is absent."""
    text = headers.get(HEADER_LENGTH)
    return body_size if text is None else _number(HEADER_LENGTH, text, body_size)


def _number(name: bytes, text: bytes, most: int | None = None) -> int:
    # Only ASCII digits: int() would also take signs, spaces and underscores, and it
    # refuses very long digit strings with an error of its own.
    if not text.isdigit():
        raise InvalidRequest(
            f"header {_title(name)} is {brief(text.decode('latin-1'))}; a whole number was expected"
        )
    value = int(text) if len(text) <= 20 else 10**20
    if most is not None and value > most:
        raise InvalidRequest(f"header {_title(name)} is out of range [0, {most}]")
    return value


def _title(name: bytes) -> str:
    return name.decode().title()


def sooner(first: int | None, second: int | None) -> int | None:
    """The smaller of two timeouts, None meaning none."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def brief(value: object) -> str:
    """A caller's value for a message: quoted and never long."""
    if isinstance(value, str):
        value = value[:80]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
