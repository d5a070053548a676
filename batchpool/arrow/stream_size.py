"""The bytes that a stream of Arrow takes when its compressed buffers are written out.

Read from the messages' heads alone, without pyarrow: what would take too much memory is refused
before any of it is made. A stream is a row of messages (Arrow columnar format, section "IPC"):

    0xFFFFFFFF   int32 size of the head   head: a flatbuffer, Message   body of its length

A RecordBatch in the head has buffers, each an (offset, length) in the body; if it has a
compression, each begins with its int64 length when written out, -1 for one that is as it is.

Arrow 0.17 named the compression in the metadata of a message of version V4 instead, which pyarrow
reads to this day: such messages are refused. So are deltas of dictionaries, each of which makes a
copy of all before it. A table is looked for within its own head, so that no bytes are read for two
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from batchpool.core.errors import InvalidRequest

_CONTINUES = 0xFFFFFFFF
_FILE_MAGIC = b"ARROW1"
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_BUFFER = struct.Struct("<qq")
_MOST_BUFFERS = 1 << 16
_MOST_MESSAGES = 1 << 13  # twice as many as record batches are taken
_V5 = 4


def expanded_bytes(stream: memoryview) -> int:
    """The bytes of all compressed buffers, written out; 0 where none is compressed.

    InvalidRequest for what is no stream.
    """
    if stream[: len(_FILE_MAGIC)] == _FILE_MAGIC:
        raise InvalidRequest(
            "the body is an Arrow file (it begins with ARROW1); a stream was expected: write it"
            " with pyarrow.ipc.new_stream, not new_file"
        )
    try:
        return sum(_of_message(stream, head, body) for head, body in _messages(stream))
    except (struct.error, IndexError, OverflowError):
        raise InvalidRequest("the body is no stream of Arrow: a message in it is cut off") from None


def _messages(stream: memoryview) -> Iterator[tuple[int, int]]:
    """Where the head and the body of each message begin."""
    at = count = 0
    while at + 4 <= len(stream):
        count += 1
        if count > _MOST_MESSAGES:
            raise InvalidRequest(
                f"the body has more than {_MOST_MESSAGES} messages of Arrow; send more rows in each"
                " record batch"
            )
        (size,) = struct.unpack_from("<I", stream, at)
        at += 4
        if size == _CONTINUES:
            (size,) = struct.unpack_from("<I", stream, at)
            at += 4
        if size == 0:
            return
        body = at + size
        if body > len(stream):
            raise IndexError
        yield at, body
        message = _message(stream[at:body])
        length = message.number("<q", 3)
        if length < 0:
            raise IndexError
        at = body + length


def _of_message(stream: memoryview, head: int, body: int) -> int:
    message = _message(stream[head:body])
    kind = message.number("<B", 1)
    table = message.table(2)
    if kind == _DICTIONARY_BATCH and table is not None:
        if table.number("<B", 2):
            raise InvalidRequest(
                "the body has a delta of a dictionary; write the stream without deltas"
            )
        table = table.table(1)
    elif kind != _RECORD_BATCH:
        return 0
    if message.number("<h", 0) < _V5 and message.reference(4) is not None:
        raise InvalidRequest(
            "a record batch of Arrow's version V4 has metadata of its own, which may hide a"
            " compression; write the stream with version V5"
        )
    if table is None or table.table(3) is None:
        return 0
    buffers = table.reference(2)
    if buffers is None:
        return 0
    head_bytes = stream[head:body]
    count = _u32(head_bytes, buffers)
    if count > _MOST_BUFFERS:
        raise InvalidRequest(
            f"a record batch has {count} buffers; at most {_MOST_BUFFERS} are taken"
        )
    total = 0
    for i in range(count):
        offset, length = _BUFFER.unpack_from(head_bytes, buffers + 4 + _BUFFER.size * i)
        if length >= 8 and offset >= 0:
            (size,) = struct.unpack_from("<q", stream, body + offset)
            total += max(size, 0)
    return total


def _message(head: memoryview) -> _Table:
    return _Table(head, _u32(head, 0))


def _u32(stream: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", stream, at)[0]
    return value


class _Table:
    """A table of a flatbuffer, whose fields have numbers."""

    def __init__(self, stream: memoryview, at: int) -> None:
        self._stream = stream
        self._at = at
        (back,) = struct.unpack_from("<i", stream, at)
        self._fields = at - back
        if self._fields < 0:
            raise IndexError
        (self._size,) = struct.unpack_from("<H", stream, self._fields)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        (offset,) = struct.unpack_from("<H", self._stream, self._fields + entry)
        return self._at + offset if offset else None

    def number(self, form: str, field: int) -> int:
        """The number in a field; 0 where it is absent."""
        place = self._place(field)
        if place is None:
            return 0
        value: int = struct.unpack_from(form, self._stream, place)[0]
        return value

    def reference(self, field: int) -> int | None:
        """The place that a field refers to."""
        place = self._place(field)
        return None if place is None else place + _u32(self._stream, place)

    def table(self, field: int) -> _Table | None:
        """The table that a field refers to."""
        place = self.reference(field)
        return None if place is None else _Table(self._stream, place)
