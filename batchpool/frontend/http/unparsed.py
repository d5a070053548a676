"""The bytes of one connection that its parser has yet to get, and the places to cut them.

The parser is fed one message at a time, so that nothing of a later request is parsed while an
earlier one has no response. httptools tells no position, but the places where a head or a message
may end are known without parsing:

    a head                            ends with CRLF CRLF
    a message with a Content-Length   ends that many bytes behind its head
    a chunked message                 ends with CRLF CRLF

A piece that ends at each such place holds the end of one head or one message at most. What a piece
means is the parser's alone: an end that is none (an empty line before a request, a chunk's content)
is one more cut, which changes nothing.
"""

from __future__ import annotations

END = b"\r\n\r\n"


class UnparsedBytes:
    """Received bytes in their order. size: in bytes, without those taken.

    data, at: the bytes of one read, or of several that waited, and the first one not taken.
    """

    __slots__ = ("_behind", "_later", "_view", "at", "data", "size")

    def __init__(self) -> None:
        self.data = b""
        self.at = 0
        self.size = 0
        self._view = memoryview(b"")
        self._later = bytearray()  # came while `data` waited
        self._behind = b""  # the last bytes taken, at most three, if the next ones may end them

    def append(self, data: bytes, at: int = 0) -> None:
        """Add the bytes of one read. at: the first of them to add; 0 unless `size` is 0."""
        if self.size:
            self._later += data
        else:
            self._turn_to(data)
            self.at = at
        self.size += len(data) - at

    def held_bytes(self) -> int:
        """The memory in use, which includes what was taken already of `data`."""
        return len(self.data) + len(self._later) if self.size else 0

    def clear(self) -> None:
        """Drop all bytes."""
        self._turn_to(b"")
        self._later = bytearray()
        self._behind = b""
        self.size = 0

    def contiguous(self) -> int:
        """The number of bytes that one call of `take` may give. Not 0 unless `size` is."""
        left = len(self.data) - self.at
        if left == 0 and self._later:
            self._turn_to(bytes(self._later))
            self._later = bytearray()
            left = len(self.data)
        return left

    def to_end(self, most: int) -> int:
        """The bytes up to the next CRLF CRLF, whose start may have been taken before; 0 if it is
        not among the next `most` bytes."""
        at = self.at
        if self._behind:
            start = self._behind + self.data[at : at + 3]
            found = start.find(END)
            if found >= 0:
                length = found + len(END) - len(self._behind)
                return length if length <= most else 0
        found = self.data.find(END, at, at + most)
        return found + len(END) - at if found >= 0 else 0

    def take(self, length: int, *, is_end: bool) -> memoryview:
        """The next bytes. is_end: a CRLF CRLF behind them does not begin within them."""
        at = self.at
        end = at + length
        if is_end:
            self._behind = b""
        elif length >= 3:
            self._behind = self.data[end - 3 : end]
        else:
            self._behind = (self._behind + self.data[at:end])[-3:]
        self.at = end
        self.size -= length
        piece = self._view[at:end]
        if self.size == 0:
            self._turn_to(b"")  # the caller's view keeps the bytes as long as it needs them
        return piece

    def _turn_to(self, data: bytes) -> None:
        self.data = data
        self._view = memoryview(data)
        self.at = 0
