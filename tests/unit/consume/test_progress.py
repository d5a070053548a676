"""Offsets are committed behind what has ended, whatever ends first."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from batchpool.consume.partitions import Partitions
from batchpool.consume.progress import PartitionProgress


def test_an_offset_stays_before_the_first_record_that_has_not_ended() -> None:
    progress = PartitionProgress()
    for offset in (3, 4, 6):
        progress.begin(offset)
    assert progress.to_commit() is None
    progress.end(4)
    progress.end(6)
    assert (progress.to_commit(), progress.under_way) == (None, 1)
    progress.end(3)
    assert (progress.to_commit(), progress.under_way) == (7, 0)


def test_an_offset_is_committed_once() -> None:
    progress = PartitionProgress()
    progress.begin(0)
    progress.end(0)
    assert progress.to_commit() == 1
    progress.committed(1)
    assert progress.to_commit() is None


@given(st.sets(st.integers(0, 500), min_size=1), st.randoms(use_true_random=False))
def test_at_any_time_all_before_the_offset_have_ended(
    offsets: set[int], chance: random.Random
) -> None:
    progress, open_ = PartitionProgress(), set[int]()
    later = sorted(offsets, reverse=True)
    while later or open_:
        if later and (not open_ or chance.random() < 0.5):
            open_.add(later[-1])
            progress.begin(later.pop())
        else:
            ended = chance.choice(sorted(open_))
            open_.remove(ended)
            progress.end(ended)
        assert progress.under_way == len(open_)
        begun = offsets - set(later)
        found = progress.to_commit()
        if found is not None:
            assert not any(offset < found for offset in open_)
            progress.committed(found)
        if not open_:
            assert progress.to_commit() is None
            assert found is None or found == max(begun) + 1


def test_a_partition_that_went_to_another_consumer_is_committed_by_nobody_here() -> None:
    async def moves() -> None:
        partitions = Partitions()
        before = partitions.begin("a", [0, 1])
        partitions.end(before, 0)
        assert await partitions.wait_until_ended(["a"], 0.01) is False
        assert partitions.to_commit() == {"a": 1}
        partitions.forget(["a"])
        partitions.end(before, 1)
        assert (partitions.to_commit(), partitions.under_way) == ({}, 0)
        again = partitions.begin("a", [1])  # it comes back
        assert again is not before
        partitions.end(again, 1)
        assert await partitions.wait_until_ended(["a"], 60) is True
        assert partitions.to_commit(["a", "b"]) == {"a": 2}

    asyncio.run(moves())


def test_whoever_waits_for_a_partition_hears_of_its_last_record() -> None:
    async def waits() -> None:
        partitions = Partitions()
        progress = partitions.begin("a", [0])
        partitions.begin("b", [0])
        waiting = asyncio.create_task(partitions.wait_until_ended(["a"], 60))
        await asyncio.sleep(0)
        partitions.end(progress, 0)
        assert await waiting is True

    asyncio.run(waits())


def test_offsets_that_go_back_are_those_of_a_topic_that_was_made_anew() -> None:
    partitions = Partitions()
    old = partitions.begin("p", [7, 9])
    new = partitions.begin("p", [0, 1])
    assert partitions.under_way == 2
    partitions.end(old, 7)
    assert partitions.to_commit() == {}, "the old offsets are those of no record any more"
    partitions.end(new, 0)
    partitions.end(new, 1)
    assert partitions.to_commit() == {"p": 2}
    assert partitions.begin("p", [5]) is new, "a gap is none"
    partitions.end(new, 5)
    assert partitions.begin("p", [5]) is not new
