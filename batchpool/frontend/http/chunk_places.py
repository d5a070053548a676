"""The places within a chunked body at which no message can end.

    chunk        size in hexadecimal, at most 15 digits [;extension] CRLF   content   CRLF
    last chunk   size 0: behind it come trailers, and the end

Whoever knows the sizes need not look for an end within the content of chunks, where an empty line
means nothing and may stand as often as the caller likes. The parser decides what the bytes mean; it
reads a size in no other way than is done here, or refuses it. From a line on that is no size known
here, nothing is sure any more.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r\n")
_DIGITS = 15
_SIZE_BYTES = _DIGITS + 1  # of a line that decide the size
_LONG_LINE_BYTES = 64
_MOST_LINES = 160  # in one piece, since each costs the parser as much as thousands of bytes
# Bytes of sizes, extensions and line ends that a body may have for each byte of content; one-byte
# chunks have five.
FRAMING_SHARE = 16


class ChunkPlaces:
    """The places of one chunked body. framing_most: bytes of framing that it may have beyond the
    share of its content. is_over: it has more than that, at the end of a line or within one."""

    __slots__ = ("_content_bytes", "_framing_bytes", "_framing_most", "_is_sure", "_left", "_line",
                 "is_over")  # fmt: skip

    def __init__(self, framing_most: int) -> None:
        self._framing_most = framing_most
        self._framing_bytes = 0
        self._content_bytes = 0
        self._left = 0  # of a chunk's content and its CRLF
        self._line = b""  # the bytes so far of a line with a size
        self._is_sure = True
        self.is_over = False

    def sure_bytes(self, data: bytes, at: int, end: int) -> int:
        """The number of bytes of data[at:end], the next ones of the body, up to which no message
        ends; 0 where nothing is sure. They count as read."""
        begin, lines = at, 0
        while self._is_sure and lines < _MOST_LINES:
            at += self._left
            if at >= end:
                self._left = at - end
                return end - begin
            found = data.find(b"\n", at, end) + 1
            piece = data[at : found or end]
            at += len(piece)
            lines += 1
            self._left = 0
            self._framing_bytes += len(piece) + 2  # with the CRLF behind the content
            if self._framing_bytes > self._framing_most + FRAMING_SHARE * self._content_bytes:
                self.is_over = True
            line = self._line + piece if self._line else piece
            if not found:
                self._begin_line(line)
                return at - begin
            self._line = b""
            size = _size_of(line)
            if size > 0:
                self._left = size + 2
                self._content_bytes += size
            else:
                self._is_sure = False
        return at - begin

    def _begin_line(self, line: bytes) -> None:
        """Keep what decides the size of a line that has not ended."""
        self._framing_bytes -= 2
        self._line = line[:_SIZE_BYTES] + line[-1:] if len(line) > _LONG_LINE_BYTES else line


def _size_of(line: bytes) -> int:
    """The size that a line says; none above 0 for that of the last chunk, or where it says none."""
    if len(line) <= _DIGITS + 2 and line[-2:] == b"\r\n":
        try:
            return int(line, 16)  # takes more than the parser does, which then refuses the body
        except ValueError:
            pass
    found = _SIZE.fullmatch(line)
    return int(found[1], 16) if found else 0
