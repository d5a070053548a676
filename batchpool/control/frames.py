"""Frames: numbered messages over a stream socket, many of them in flight.

    frame   length (4 bytes, little-endian, of what follows) | number (8 bytes) | message (msgpack)

The number is the asker's; the reply to a message bears that of the message, and may come after the
replies to later ones. The messages of each direction are those of an edge.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from batchpool.control.edges import Edge
from batchpool.control.messages import Message

Received = TypeVar("Received")

_HEAD = struct.Struct("<IQ")
_NUMBER_BYTES = 8
MOST_FRAME_BYTES = 2**32 - 1


def frame_of(number: int, message: Message) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(message)
    return _HEAD.pack(_NUMBER_BYTES + len(body), number) + body


class FrameReader(Generic[Received]):
    """Cuts a stream of bytes into the messages of one edge.

    most_bytes: of one frame; a longer one is a ValueError, and so is a frame without a number.
    """

    def __init__(self, edge: Edge[Received], most_bytes: int = MOST_FRAME_BYTES) -> None:
        self._edge = edge
        self._most_bytes = most_bytes
        self._bytes = bytearray()

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[tuple[int, Received]]:
        """The numbers and messages that are complete with this piece. Raises ValueError for bytes
        that are no message of the edge; the stream cannot be read on after it."""
        self._bytes += piece
        at = 0
        try:
            while len(self._bytes) - at >= _HEAD.size:
                length, number = _HEAD.unpack_from(self._bytes, at)
                if not _NUMBER_BYTES < length <= self._most_bytes:
                    raise ValueError(f"a frame of {length} bytes")
                end = at + _HEAD.size - _NUMBER_BYTES + length
                if end > len(self._bytes):
                    break
                body = bytes(memoryview(self._bytes)[at + _HEAD.size : end])
                at = end
                yield number, self._decoded(body)
        finally:
            del self._bytes[:at]

    def _decoded(self, body: bytes) -> Received:
        try:
            return self._edge.decode(body, 0)
        except msgspec.DecodeError as exc:
            raise ValueError(f"a frame that is no msgpack: {exc}") from exc
