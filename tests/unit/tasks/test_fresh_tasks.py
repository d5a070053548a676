"""New tasks that are claimed from memory: the right ones, in order, and never a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.fresh_tasks import FreshTasks
from batchpool.tasks.record import (
    TOKEN_BYTES,
    Ended,
    NewTask,
    StoreLimits,
    TaskAnswer,
    TaskState,
    Want,
    task_id,
)
from batchpool.tasks.sqlite import SqliteStore

LIMITS = StoreLimits(open=10**6, bytes=2**30, result_ttl_ms=1000, grace_ms=0, evict_on_read=True)
ALL = Want("m", 100, 2**30)


def new(number: int, body: bytes = b"") -> NewTask:
    identifier = task_id(1, number.to_bytes(TOKEN_BYTES, "big"))
    return NewTask(identifier, "m", 1, body or b"%d" % number, b"", "me", "", 1, 10**6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    yield store
    store.close()


def test_what_is_not_there_is_told() -> None:
    fresh = FreshTasks()
    fresh.add(5, [new(5), new(6), new(7, bytes(LONG_BYTES + 1))])
    assert fresh.take([6, 5]) == [new(6), new(5)]
    assert fresh.take([5]) is None, "once"
    assert fresh.take([7]) is None, "a long input is in a file"


def test_a_long_queue_takes_no_more_memory_than_the_bound() -> None:
    fresh = FreshTasks()
    for number in range(1000):
        fresh.add(number, [new(number, bytes(LONG_BYTES))])
    kept = sum(fresh.take([number]) is not None for number in range(1000))
    assert 0 < kept < 300


def test_tasks_of_memory_and_of_the_database_are_claimed_in_their_order(store: SqliteStore) -> None:
    store.put([new(n) for n in range(10)], 1)
    assert [task.input for task in store.claim([Want("m", 3, 2**30)], 1)] == [b"0", b"1", b"2"]
    store._fresh.take([5])  # as where it was given up
    assert [task.input for task in store.claim([ALL], 1)] == [b"%d" % n for n in range(3, 10)]
    store.put([new(20, bytes(100)), new(21, bytes(100)), new(22, bytes(100))], 1)
    assert len(store.claim([Want("m", 9, 250)], 1)) == 2, "the bound of bytes"
    assert len(store.claim([Want("m", 9, 1)], 1)) == 1


def test_the_numbers_of_rows_that_were_undone_come_again(store: SqliteStore) -> None:
    with pytest.raises(ZeroDivisionError), store.group():
        store.put([new(1), new(2)], 1)
        1 / 0  # noqa: B018
    store.put([new(3), new(4, bytes(LONG_BYTES + 1))], 1)
    assert [task.id for task in store.claim([ALL], 1)] == [new(3).id, new(4).id]


def test_an_end_that_comes_twice_in_a_group_counts_once(store: SqliteStore) -> None:
    store.put([new(1), new(2)], 1)
    tasks = store.claim([ALL], 1)
    ends = [
        Ended(tasks[at].id, tasks[at].claim, TaskState.DONE, TaskAnswer(200, (), b"%d" % turn))
        for turn, at in enumerate((0, 1, 0))
    ]
    assert store.finish(ends, 1) == [True, True, False]
    (first,) = store.collect([tasks[0].id], 1)
    assert first is not None
    assert first.answer == TaskAnswer(200, (), b"0")
    assert store.counts().tasks == {"m": {"done": 2}}


def test_an_end_that_was_undone_may_come_again(store: SqliteStore) -> None:
    store.put([new(1)], 1)
    (task,) = store.claim([ALL], 1)
    end = Ended(task.id, task.claim, TaskState.DONE, TaskAnswer(200, (), b"right"))
    with pytest.raises(ZeroDivisionError), store.group():
        assert store.finish([end], 1) == [True]
        1 / 0  # noqa: B018
    assert store.finish([end], 1) == [True]
    assert store.finish([end], 1) == [False]
