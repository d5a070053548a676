"""Arrow's buffers as numpy arrays, also where an array begins within its buffer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from batchpool.arrow.buffers import byte_strings, numbers, text_lengths

TRUE_OR_FALSE = [True, False, False, True, True, False, True, False, True, True]


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9])
def test_truth_values_are_unpacked_from_their_bits(start: int) -> None:
    array = pa.array(TRUE_OR_FALSE)[start:]
    assert numbers(array).tolist() == TRUE_OR_FALSE[start:]
    assert numbers(array).dtype == np.bool_


def test_numbers_are_a_view() -> None:
    array = pa.array([1.5, 2.5, 3.5], pa.float32())[1:]
    found = numbers(array)
    assert found.tolist() == [2.5, 3.5]
    assert not found.flags.owndata
    assert numbers(array[:0]).tolist() == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_texts_and_their_lengths(kind: pa.DataType) -> None:
    array = pa.array(["left out", "", "a", "\u00fc" * 20], kind)[1:]
    assert byte_strings(array).tolist() == [b"", b"a", "\u00fc".encode() * 20]
    assert text_lengths(array).tolist() == [0, 1, 40]
