"""The rules of RFC 9112 on how a request is framed, as far as the parser does not enforce them.

llhttp, the parser, refuses by itself: a Content-Length that is no number, is empty, overflows or
comes twice; Content-Length together with Transfer-Encoding, also among trailers; Transfer-Encoding
whose last coding is not chunked; line folding; white space before a colon or a first field; a bare
CR or LF where a line ends; control characters in names, values and the target; chunk sizes that are
no hexadecimal number, and chunks without their CRLF.

Two parties that read the same bytes differently can be made to take the body of one request for
another one, so that whatever is ambiguous is refused with 400 and ends the connection.
"""

from __future__ import annotations

from batchpool.core.errors import InvalidRequest
from batchpool.wire.request import HEADER_LENGTH, HeaderList, Headers, brief

_CHUNKED = -1
# Fields that decide how a body is read: with two lines of one, readers take one or the other.
_ONCE = (b"content-encoding", b"content-type", HEADER_LENGTH)


def body_length(version: str, fields: HeaderList, headers: Headers) -> int:
    """The bytes of the body that follows this head: Content-Length, 0 without one, -1 for chunks.

    version: of HTTP, as "1.1". fields: all lines, in their order, with lower-case names. headers:
    the same by name.

    Raises InvalidRequest for a head that RFC 9112 wants refused, or that may be read in two ways.
    """
    if version != "1.1" and version != "1.0":
        raise InvalidRequest(f"HTTP/{version} is not spoken here; HTTP/1.1 was expected")
    hosts = 1 if b"host" in headers else 0
    if len(headers) != len(fields):
        names = [name for name, _ in fields]
        hosts = names.count(b"host")
        for name in _ONCE:
            if names.count(name) > 1:
                raise InvalidRequest(
                    f"the header {name.decode()} came {names.count(name)} times; once was expected"
                )
    if hosts > 1:
        raise InvalidRequest(f"the header Host came {hosts} times; once was expected")
    if hosts == 0 and version == "1.1":
        raise InvalidRequest("the header Host is absent; a request of HTTP/1.1 has it once")
    if b"transfer-encoding" in headers:
        _check_transfer_encoding(version, fields)
        return _CHUNKED
    length = headers.get(b"content-length")
    return int(length) if length else 0  # the parser has let digits and blanks pass only


def _check_transfer_encoding(version: str, fields: HeaderList) -> None:
    codings = b", ".join(value for name, value in fields if name == b"transfer-encoding")
    if version == "1.0":
        raise InvalidRequest(
            "the header Transfer-Encoding came with HTTP/1.0, which has none; Content-Length, or"
            " HTTP/1.1, was expected"
        )
    if codings.strip(b" \t").lower() != b"chunked":
        raise InvalidRequest(
            f"transfer encoding {brief(codings.decode('latin-1'))} is not known here; chunked was"
            " expected, and Content-Encoding for a compressed body"
        )
