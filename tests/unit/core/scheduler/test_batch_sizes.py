"""The sizes that an engine accepts: which one holds a batch, and which one is smaller."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.scheduler.batch_sizes import padded_size, smaller_size

SIZES = st.sets(st.integers(1, 100), min_size=1).map(sorted)


@given(SIZES, st.data())
def test_the_padded_size_is_the_smallest_that_holds_the_rows(
    sizes: list[int], draw: st.DataObject
) -> None:
    n = draw.draw(st.integers(1, sizes[-1]))
    assert padded_size(sizes, n) == min(size for size in sizes if size >= n)


@pytest.mark.parametrize(
    ("sizes", "n", "padded", "smaller"),
    [
        ((), 7, 7, 3),
        ((), 1, 1, 0),
        ((4, 8), 1, 4, 0),
        ((4, 8), 4, 4, 0),
        ((4, 8), 5, 8, 4),
        ((4, 8), 9, 9, 8),
    ],
)
def test_sizes_of_a_batch(sizes: tuple[int, ...], n: int, padded: int, smaller: int) -> None:
    assert padded_size(sizes, n) == padded
    assert smaller_size(sizes, n) == smaller
