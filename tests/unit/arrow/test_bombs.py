"""Bodies of Arrow that announce much and hold nothing: refused before anything is made of them."""

from __future__ import annotations

import functools
import struct
from typing import Any

import pyarrow as pa
import pytest

from batchpool.arrow.columns_in import ColumnReader
from batchpool.arrow.stream_size import expanded_bytes
from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.spec import Tensor
from tests.unit.specs import model
from tests.unit.wire.test_arrow_form import RAGGED, ask, refused

# These are made while tests are collected, without `pa.array`, which would import pandas.


def listed(child: Any, n: int) -> Any:
    ends = pa.py_buffer(struct.pack("<2i", 0, n))
    return pa.Array.from_buffers(pa.list_(child.type), 1, [None, ends], children=[child])


def no_elements(n: int) -> Any:
    """n lists of no element, which take no bytes."""
    nothing = pa.Array.from_buffers(pa.int32(), 0, [None, pa.py_buffer(b"")])
    return pa.Array.from_buffers(pa.list_(pa.int32(), 0), n, [None], children=[nothing])


def in_one(kind: Any, child: Any) -> Any:
    return pa.Array.from_buffers(kind, 1, [None], children=[child])


@pytest.mark.parametrize(
    "column",
    [
        listed(no_elements(2**30), 2**30),
        listed(pa.nulls(2**30), 2**30),
        in_one(pa.list_(pa.null(), 2**30), pa.nulls(2**30)),
        in_one(pa.list_(pa.list_(pa.int32(), 0), 2**30), no_elements(2**30)),
        pa.nulls(2**20 + 1),
        no_elements(2**19),
    ],
    ids=lambda column: str(column.type)[:40],
)
def test_elements_that_take_no_bytes_are_refused_before_they_are_counted(
    column: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred bytes do not become gigabytes."""
    monkeypatch.setattr(ColumnReader, "rows", None)
    with pytest.raises((InvalidRequest, TooLarge)):
        ask(RAGGED, pa.record_batch([column], names=["ids"]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.int32(), pa.int32()),
        pa.struct([(f"{i}", pa.utf8()) for i in range(40)]),
        pa.list_(pa.struct([("a", pa.list_(pa.map_(pa.int32(), pa.int32())))])),
        pa.list_view(pa.int32()),
        pa.run_end_encoded(pa.int32(), pa.int32()),
        functools.reduce(lambda kind, _: pa.list_(kind), range(40), pa.int32()),
    ],
    ids=lambda kind: str(kind)[:40],
)
def test_types_that_no_tensor_has_are_refused_before_they_are_validated(kind: Any) -> None:
    column = pa.array([None], kind) if not pa.types.is_run_end_encoded(kind) else pa.array(
        [1], kind
    )  # fmt: skip
    text = refused(RAGGED, pa.record_batch([column], names=["ids"]))
    assert text.startswith("column 'ids' has type ")
    assert "were expected" in text


def heads_of_one_vector(messages: int, buffers: int) -> bytes:
    """Record batches with a compression, whose buffers all stand once, behind the last of them."""
    head_bytes = 56
    each = 8 + head_bytes
    stream = bytearray()
    vector = messages * each + 8
    for number in range(messages):
        head = bytearray(head_bytes)
        struct.pack_into("<I", head, 0, 16)  # the message, behind its table of fields
        struct.pack_into("<HHHHH", head, 4, 10, 12, 4, 6, 8)
        struct.pack_into("<ihBxI", head, 16, 12, 4, 3, 16)  # V5, a record batch, at 40
        struct.pack_into("<HHHHHH", head, 28, 12, 12, 0, 0, 4, 8)
        far = vector - (number * each + 8 + 44)
        struct.pack_into("<iII", head, 40, 12, far, 4)  # its buffers, and its compression at 52
        struct.pack_into("<i", head, 52, 48)
        stream += struct.pack("<II", 0xFFFFFFFF, head_bytes) + head
    stream += struct.pack("<III", 0xFFFFFFFF, 0, buffers) + bytes(16 * buffers)
    return bytes(stream)


def test_a_head_that_refers_to_bytes_outside_of_it_is_cut_off() -> None:
    """Else the buffers of one vector, which all heads refer to, would be counted for each."""
    with pytest.raises(InvalidRequest, match="a message in it is cut off"):
        expanded_bytes(memoryview(heads_of_one_vector(5, 50)))


@pytest.mark.parametrize("n", [2000, 20_000])
def test_heads_without_number_or_with_the_same_buffers_take_no_time(n: int) -> None:
    head = bytes(4)  # a message without fields
    many = (len(head).to_bytes(4, "little") + head) * n
    if n < 1 << 13:
        assert expanded_bytes(memoryview(many)) == 0
    else:
        with pytest.raises(InvalidRequest, match="more than 8192 messages"):
            expanded_bytes(memoryview(many))


def test_deltas_of_a_dictionary_are_refused() -> None:
    """Each would make a copy of all before it."""
    sink = pa.BufferOutputStream()
    columns = [pa.array(words).dictionary_encode() for words in (["a"], ["a", "b"])]
    batches = [pa.record_batch([column], names=["t"]) for column in columns]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    text = refused(model(Tensor("t", "bytes", (), max_bytes=9)), bytes(sink.getvalue()))
    assert "a delta of a dictionary" in text
