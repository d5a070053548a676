"""Bodies of which many times their size would be made are refused before that is done."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgpack
import pytest

from batchpool.core.errors import InvalidRequest, PoolError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.codec import Codec
from tests.unit.wire.calls import AFFINE, echo

MANY = 1 << 20
MOST_FOLD = 4  # of the body's bytes that may be allocated at once besides the body
MSGPACK = {b"content-type": b"application/msgpack"}
TEXT = echo("bytes", (1,), 8)


def json_bomb(element: str) -> bytes:
    data = f"{element}," * MANY + "1"
    head = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":['
    return f"{head}{data}]}}]}}".encode()


def nested_lists() -> bytes:
    nest = "[" * 500 + "1" + "]" * 500
    data = ",".join([nest] * 4000)
    head = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1000,4],"data":['
    return f"{head}{data}]}}]}}".encode()


def ignored(member: str) -> bytes:
    extra = "[" + "[1]," * MANY + "1]"
    return f'{{"{member}":{extra},"inputs":[]}}'.encode()


def msgpack_bomb(element: bytes, count: int, *, nested: bool = False) -> bytes:
    many = b"\xdd" + count.to_bytes(4, "big") + element * count
    data = b"\x91" + many if nested else many
    head = msgpack.packb({"dtype": "BYTES", "shape": [1, 1]})
    tensor = b"\x83" + head[1:] + msgpack.packb("data") + data
    return b"\x81" + msgpack.packb("inputs") + b"\x81" + msgpack.packb("x") + tensor


def many_names(member: str) -> bytes:
    names = {f"{i:x}": 1 for i in range(MANY // 4)}
    return msgpack.packb({"inputs": {}, member: names if member != "outputs" else [*names]})


@pytest.mark.parametrize(
    ("spec", "headers", "make", "text"),
    [
        (AFFINE, {}, lambda: json_bomb("-0"), "more values than its shape"),
        (AFFINE, {}, lambda: json_bomb("[]"), "more values than its shape"),
        (AFFINE, {}, lambda: json_bomb("{}"), "more values than its shape"),
        (AFFINE, {}, nested_lists, "more lists than its shape"),
        (AFFINE, {}, lambda: ignored("model_name"), "input"),
        (AFFINE, {}, lambda: ignored("model_version"), "input"),
        (TEXT, MSGPACK, lambda: msgpack_bomb(b"\x90", MANY), "1048576 values came"),
        (TEXT, MSGPACK, lambda: msgpack_bomb(b"\x90", MANY, nested=True), "is a list"),
        (TEXT, MSGPACK, lambda: msgpack_bomb(b"\xc0", MANY), "1048576 values came"),
        (TEXT, MSGPACK, lambda: many_names("parameters"), "length <= 65536"),
        (TEXT, MSGPACK, lambda: many_names("outputs"), "length <= 65536"),
    ],
    ids=[
        "minus zeros",
        "lists",
        "maps",
        "deep",
        "model_name",
        "model_version",
        "packed lists",
        "packed lists in a list",
        "packed nils",
        "parameters",
        "outputs",
    ],
)
def test_little_is_made_of_what_is_refused(
    spec: ModelSpec, headers: dict[bytes, bytes], make: Callable[[], bytes], text: str
) -> None:
    body, codec = make(), Codec(spec)
    tracemalloc.start()
    try:
        with pytest.raises(PoolError, match=text):
            codec.parse(headers, body)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < MOST_FOLD * len(body) + (1 << 20)


def test_lists_of_bytes_and_text_may_be_mixed() -> None:
    spec = echo("bytes", (3,), 8)
    x = {"dtype": "BYTES", "shape": [1, 3], "data": [b"a", "é", b""]}
    rows = Codec(spec).parse(MSGPACK, msgpack.packb({"inputs": {"x": x}})).rows
    assert rows.tensors["x"].tolist() == [[b"a", "é".encode(), b""]]


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (None, "element 1 is a NoneType"),
        (7, "element 1 is a int"),
        ([b"b"], "element 1 is a list"),
        ({}, "element 1 is a dict"),
        (msgpack.ExtType(4, b"b"), "element 1 is a Ext"),
    ],
    ids=str,
)
def test_an_element_that_is_no_text_is_named(element: object, text: str) -> None:
    x = {"dtype": "BYTES", "shape": [1, 3], "data": [b"a", element, "c"]}
    with pytest.raises(InvalidRequest, match=text):
        Codec(echo("bytes", (3,), 8)).parse(MSGPACK, msgpack.packb({"inputs": {"x": x}}))


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="input 'x': its data"):
        Codec(TEXT).parse(MSGPACK, msgpack_bomb(b"\xa1\xff", 1))
