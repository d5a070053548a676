"""Shapes of calls: few of them, and the one that fits best."""

from __future__ import annotations

import pytest

from batchpool.models.decoder import buckets


def test_lengths_are_powers_of_two_up_to_the_longest() -> None:
    assert buckets.lengths(2048) == (256, 512, 1024, 2048)
    assert buckets.lengths(1500) == (256, 512, 1024, 1500)
    assert buckets.lengths(100) == (100,)


def test_rows_are_powers_of_four_up_to_all_slots() -> None:
    assert buckets.decode_rows(256) == (1, 4, 16, 64, 256)
    assert buckets.decode_rows(20) == (1, 4, 16, 20)
    assert buckets.decode_rows(1) == (1,)


@pytest.mark.parametrize("slots", [1, 3, 16, 256])
@pytest.mark.parametrize("budget", [1, 7, 128, 1024])
def test_no_chunk_is_larger_than_the_budget_or_has_more_rows_than_slots(
    slots: int, budget: int
) -> None:
    shapes = buckets.chunks(budget, slots)
    assert len(shapes) == len(set(shapes)) <= 12
    assert (1, budget) in shapes
    assert all(1 <= rows * tokens <= budget and rows <= slots for rows, tokens in shapes)


def test_sizes_are_rounded_up() -> None:
    assert [buckets.smallest((1, 4, 16), n) for n in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]


@pytest.mark.parametrize(
    ("rests", "best"),
    [
        ([5], (1, 16)),  # the least padding
        ([1000], (1, 1024)),
        ([2000], (1, 1024)),
        ([60] * 16, (16, 64)),  # the most tokens
        ([200] * 4, (4, 256)),
        ([200, 1], (4, 256)),
        ([30, 30], (4, 64)),
    ],
)
def test_a_chunk_takes_the_most_tokens_with_the_least_padding(
    rests: list[int], best: tuple[int, int]
) -> None:
    assert buckets.best_chunk(buckets.chunks(1024, 64), rests) == best


def test_slots_with_many_free_ones_among_them_are_decoded_alone() -> None:
    assert buckets.is_dense([0, 1, 2])
    assert buckets.is_dense([0, 3])
    assert not buckets.is_dense([0, 4])
    assert not buckets.is_dense([6])
