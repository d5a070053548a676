"""One inference request, and the headers that all wire forms share.

    header                           meaning
    Content-Type                     selects the wire form (wire/forms.py)
    Inference-Header-Content-Length  bytes of JSON before the binary tensors; 0 = raw form
    X-Request-Timeout-Ms             whole milliseconds, 0 = none
    X-Request-Priority               1 (first) to 255, 0 = the model's default

Header mappings have lower-case bytes as keys and bytes as values, like those of an ASGI scope.
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
    """Header fields that many responses share. lines: the fields in HTTP/1.1's form."""

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
    """An output that the response contains. binary: as bytes, else as JSON. classes: so many of the
    highest values of each row, as text, are asked for in its place; 0 for the output itself."""

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """The way in which an answer of plain JSON is written.

    member: the one that holds the outputs, "" for none.  by_row: a list with an entry for each
    row, not a tensor for each output.  lone: the only row, not in a list.
    """

    member: str
    by_row: bool = False
    lone: bool = False


@dataclass(slots=True)
class InferRequest:
    """A checked request.

    id: echoed in the response; None when absent or empty.  rows: views of the body.
    outputs: in the order of the response.  timeout_ns: from arrival; None = the model's own
    limit.  priority: 1 (first) to 255; 0 = the model's default.  form: the name of the wire form
    in which the response is written.  plain: how, where that form is plain JSON.
    """

    id: str | None
    rows: Rows
    outputs: tuple[OutputChoice, ...]
    timeout_ns: int | None
    priority: int
    form: str
    plain: PlainAnswer | None = None


def header_timeout_ns(headers: Headers) -> int | None:
    """X-Request-Timeout-Ms in nanoseconds; None when absent or 0."""
    text = headers.get(TIMEOUT_MS)
    if text is None:
        return None
    return min(_number(TIMEOUT_MS, text) * 1_000_000, LONGEST_NS) or None


def header_priority(headers: Headers) -> int:
    """X-Request-Priority, 0 when absent; a parameter in the body may set it too."""
    text = headers.get(PRIORITY)
    return 0 if text is None else _number(PRIORITY, text, LOWEST)


def header_length(headers: Headers, body_size: int) -> int:
    """The bytes of the body that are JSON; all of them when the header is absent."""
    text = headers.get(HEADER_LENGTH)
    return body_size if text is None else _number(HEADER_LENGTH, text, body_size)


def _number(name: bytes, text: bytes, most: int | None = None) -> int:
    # ASCII digits only: int() would also take signs, spaces and underscores, and it raises an
    # error of its own for very long digit strings.
    value = 0 if not text.isdigit() else int(text) if len(text) <= 20 else 10**20
    if not text.isdigit() or (most is not None and value > most):
        limits = "" if most is None else f" from 0 to {most}"
        raise InvalidRequest(
            f"header {_title(name)} is {brief(text.decode('latin-1'))}; a whole number{limits} was"
            " expected"
        )
    return value


def _title(name: bytes) -> str:
    return name.decode().title()


def sooner(first: int | None, second: int | None) -> int | None:
    """The smaller of two timeouts; None is no timeout."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def brief(value: object) -> str:
    """A caller's value for a message: quoted, at most 80 characters."""
    if isinstance(value, str):
        value = value[:80]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
