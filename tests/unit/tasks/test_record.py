"""Ids, keys and fingerprints of tasks, and the order of their states."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.tasks.account import Account
from batchpool.tasks.record import (
    MOVES,
    PutOutcome,
    TaskState,
    fingerprint_of,
    key_digest,
    partition_for,
    partition_of,
    submission_time,
    submitted_of,
    task_id,
)

TOKEN = bytes(range(16))


def test_an_id_tells_its_time_and_sorts_by_it() -> None:
    found = task_id(1_700_000_000_123, TOKEN, 7)
    assert len(found) == 41
    assert submitted_of(found) == 1_700_000_000_123
    later = [task_id(1_700_000_000_123 + i, os.urandom(16)) for i in range(1, 50)]
    assert [found, *later] == sorted([found, *later])
    assert task_id(1, TOKEN) == task_id(1, TOKEN) != task_id(1, TOKEN[::-1])


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_token_has_its_length(size: int) -> None:
    with pytest.raises(ValueError, match="a token has 16 bytes"):
        task_id(1, bytes(size))


@pytest.mark.parametrize(
    "text", ["", "t_", "x" * 41, "t_" + "z" * 39, task_id(1, TOKEN).upper(), task_id(1, TOKEN)[2:]]
)
def test_what_is_no_id_has_no_time(text: str) -> None:
    assert submitted_of(text) is None


def test_a_state_that_has_ended_is_the_last_one() -> None:
    """Complaint 4: states never go backwards."""
    for state, after in MOVES.items():
        assert state.has_ended == (not after)
        assert state not in after
    assert TaskState.QUEUED in MOVES[TaskState.RUNNING]


def test_a_fingerprint_and_a_key_have_their_parts_apart() -> None:
    assert fingerprint_of(b"ab", b"c") != fingerprint_of(b"a", b"bc")
    assert key_digest("m", "me", "", "k") != key_digest("n", "me", "", "k")
    assert key_digest("m", "me", "", "k") != key_digest("m", "you", "", "k")
    assert key_digest("m", "me", "ann", "k") == key_digest("m", "you", "ann", "k")


def test_one_caller_has_all_places_until_there_is_another() -> None:
    account = Account()
    for _ in range(4):
        assert account.lack("me", 4) is None
        account.add("m", TaskState.QUEUED, "me")
    assert account.lack("me", 4) is PutOutcome.FULL
    account.move("m", "me", TaskState.QUEUED, TaskState.DONE)
    assert account.lack("me", 4) is None
    account.add("m", TaskState.QUEUED, "you")
    account.move("m", "me", TaskState.QUEUED, TaskState.DONE)
    assert account.lack("me", 4) is PutOutcome.SHARE_FULL
    assert account.lack("you", 4) is None
    assert account.by_model() == {"m": {"queued": 3, "done": 2}}
    assert account.models() == {"m"}


def test_an_id_tells_its_partition_and_a_key_chooses_it() -> None:
    assert partition_of(task_id(1, TOKEN, 513)) == 513
    assert partition_of("t_") is None
    assert partition_for(b"k" * 30 + b"\x00\x07", 1000, 3) == 7


def test_tasks_that_come_together_go_to_one_partition_and_later_ones_to_the_next() -> None:
    found = [partition_for(b"", submitted_ms, 0) for submitted_ms in range(1000, 1032)]
    assert found == sorted(found)
    assert sorted(Counter(found).values()) == [8] * 4
    assert partition_for(b"", 1000, 5) == found[0] + 5, "pools begin apart"


@given(st.integers(0, 2**48 - 1), st.binary(min_size=16, max_size=16), st.integers(0, 2**16 - 1))
def test_the_partition_of_any_id_is_read_from_its_text(
    submitted_ms: int, token: bytes, partition: int
) -> None:
    identifier = task_id(submitted_ms, token, partition)
    assert partition_of(identifier) == partition
    assert submitted_of(identifier) == submitted_ms
    for other in (identifier[:-1], identifier + "0", identifier.upper(), identifier[:-1] + "_"):
        assert partition_of(other) is None
        assert submitted_of(other) is None


@pytest.mark.parametrize(
    ("said_ms", "found_ms"),
    [
        (100_000, 100_000),
        (40_000, 40_000),
        (39_999, 100_000),
        (101_000, 101_000),
        (101_001, 100_000),
        (3_700_000, 100_000),
    ],
)
def test_a_clock_that_is_wrong_tells_no_time_of_a_submission(said_ms: int, found_ms: int) -> None:
    """The age of the oldest task, by which pods are counted, is that of the store's clock."""
    assert submission_time(said_ms, 100_000) == found_ms
