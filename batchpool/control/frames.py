"""Frames: numbered messages over a stream socket, many of them in flight.

    frame   length (4 bytes, little-endian, of what follows) | number (8 bytes) | message (msgpack)

The number is the asker's; the reply to a message bears that of the message, and may come after the
replies to later ones. The messages of each direction are those of an edge.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np

from batchpool.control.edges import Edge
from batchpool.control.messages import Message
from batchpool.wire.left_out import LeftOut, Piece

Received = TypeVar("Received")

_HEAD = struct.Struct("<IQ")
_HEAD_BYTES = _HEAD.size
_NUMBER_BYTES = 8
MOST_FRAME_BYTES = 2**32 - 1
_LONG_BYTES = 1 << 20  # of a frame that gets memory of its own before it is there


def frame_of(number: int, message: Message) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(message)
    return _HEAD.pack(_NUMBER_BYTES + len(body), number) + body


def frame_pieces(number: int, message: Message, left_out: LeftOut) -> Sequence[Piece]:
    """The bytes of one frame, in pieces; what was left out of the message is not copied."""
    pieces = left_out.pieces_of(msgspec.msgpack.encode(message))
    size = sum(memoryview(piece).nbytes for piece in pieces)
    return [_HEAD.pack(_NUMBER_BYTES + size, number), *pieces]


class FrameReader(Generic[Received]):
    """Cuts a stream of bytes into the messages of one edge.

    most_bytes: of one frame; a longer one is a ValueError, and so is a frame without a number.
    """

    def __init__(self, edge: Edge[Received], most_bytes: int = MOST_FRAME_BYTES) -> None:
        self._edge = edge
        self._most_bytes = most_bytes
        self._bytes = bytearray()
        # A frame that has not come whole: as it grew, it would be copied again and again.
        self._long: memoryview | None = None
        self._long_number = self._filled = 0

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[tuple[int, Received]]:
        """The numbers and messages that are complete with this piece. Raises ValueError for bytes
        that are no message of the edge; the stream cannot be read on after it."""
        if self._long is not None:
            piece = self._fill(self._long, memoryview(piece))
            if self._filled < len(self._long):
                return
            whole, self._long = self._long, None
            yield self._long_number, self._decoded(whole)
        kept, at = self._bytes, 0
        # Most pieces are whole frames, which need not be copied to what was there before.
        data = piece if not kept and isinstance(piece, bytes) else kept
        if data is kept:
            kept += piece
        size = len(data)
        try:
            while size - at >= _HEAD_BYTES:
                length, number = _HEAD.unpack_from(data, at)
                if not _NUMBER_BYTES < length <= self._most_bytes:
                    raise ValueError(f"a frame of {length} bytes")
                begin = at + _HEAD_BYTES
                end = begin - _NUMBER_BYTES + length
                if end > size:
                    if length > _LONG_BYTES:
                        self._begin_long(length - _NUMBER_BYTES, number, memoryview(data)[begin:])
                        at = size
                    break
                if isinstance(data, bytes):
                    body = data[begin:end]
                else:
                    body = bytes(memoryview(data)[begin:end])
                at = end
                yield number, self._decoded(body)
        finally:
            if data is kept:
                del kept[:at]
            else:
                kept += data[at:]

    def _begin_long(self, size: int, number: int, there: memoryview) -> None:
        """Keep the beginning of a long frame, which is all there is."""
        self._long, self._long_number, self._filled = np.empty(size, np.uint8).data, number, 0
        with there:
            self._fill(self._long, there)

    def _fill(self, long: memoryview, piece: memoryview) -> memoryview:
        """Add bytes to a long frame; returns those behind it."""
        more = piece[: len(long) - self._filled]
        long[self._filled : self._filled + len(more)] = more
        self._filled += len(more)
        return piece[len(more) :]

    def _decoded(self, body: bytes | memoryview) -> Received:
        try:
            return self._edge.decode(body, 0)
        except msgspec.DecodeError as exc:
            raise ValueError(f"a frame that is no msgpack: {exc}") from exc
