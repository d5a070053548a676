"""Aligned words of shared memory are never seen half written."""

from __future__ import annotations

import os

import pytest

from tests.litmus import segments
from tests.litmus.processes import Side, SideFailed, Sides, scaled


def run(rounds: int, *, halves: bool) -> dict[str, int]:
    fd = segments.new_words()
    try:
        with Sides(
            Side("words-writer", fd=fd, rounds=rounds, halves=halves),
            Side("words-reader", fd=fd),
        ) as sides:
            changes: dict[str, int] = sides.finish()[1]["changes"]
    finally:
        os.close(fd)
    return changes


def test_no_word_of_any_kind_is_torn() -> None:
    changes = run(scaled(100_000), halves=False)
    assert changes.keys() == segments.ONES.keys()
    for kind, seen in changes.items():
        assert seen > 0, f"the two sides never met at {kind}"


def test_a_word_stored_in_two_halves_is_seen_torn() -> None:
    """A word that is stored in two halves is reported as torn."""
    with pytest.raises(SideFailed, match="torn word: u64 word reads as"):
        run(10_000_000, halves=True)
