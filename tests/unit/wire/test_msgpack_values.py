"""The count of a msgpack body's values, beside what msgspec reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.wire.msgpack_values import MANY_VALUES, has_many_values

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20))
)
VALUES = st.recursive(
    LEAVES, lambda of: st.lists(of, max_size=40) | st.dictionaries(st.text(max_size=9), of)
)


def tensor(data: Any) -> bytes:
    return msgspec.msgpack.encode(
        {"inputs": {"x": {"dtype": "FP32", "shape": [1, 4], "data": data}}}
    )


def count(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    if isinstance(value, dict):
        return 1 + sum(1 + count(each) for each in value.values())
    return 1


@pytest.mark.parametrize("size", [0, 1, 1 << 8, 1 << 16, 1 << 22])
def test_a_tensor_is_one_value(size: int) -> None:
    assert not has_many_values(tensor(bytes(size)))
    assert not has_many_values(memoryview(tensor("x" * size)))


@pytest.mark.parametrize("element", [b"\x90", b"\x80", b"\xc0", b"\xa1a", b"\xc4\x00", b"\x91\xc0"])
def test_many_small_values_are_many(element: bytes) -> None:
    n = 1 << 20
    for before in (b"\xdd" + n.to_bytes(4, "big"), b"\xdf" + (n // 2).to_bytes(4, "big")):
        assert has_many_values(before + element * n)


@given(VALUES)
def test_the_count_is_that_of_the_values(value: Any) -> None:
    packed = msgspec.msgpack.encode([[0] * (MANY_VALUES - 2 - count(value)), value])
    assert not has_many_values(packed)
    packed = msgspec.msgpack.encode([[0] * (MANY_VALUES - 1 - count(value)), value])
    assert has_many_values(packed)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_msgpack_are_few_or_many(body: bytes) -> None:
    assert has_many_values(body) in (True, False)


def test_a_length_that_nothing_follows_is_many_only_where_it_counts_values() -> None:
    assert has_many_values(b"\xdd\xff\xff\xff\xff")
    assert not has_many_values(b"\xc6\xff\xff\xff\xff")
    assert not has_many_values(b"")
