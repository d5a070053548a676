"""New tasks that are claimed as they are kept: what a claim after the put would have given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.record import Again, NewTask, PutOutcome, TaskAnswer, TaskState, Want
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import TaskStore
from tests.unit.tasks.stores import LIMITS, NOW, Open, claimed, done, new, state


def want(tasks: int = 100, *, model: str = "m", size: int = 2**30) -> Want:
    return Want(model, tasks, size)


def ids(store: TaskStore, tasks: list[NewTask], *wants: Want, now_ms: int = NOW) -> list[list[str]]:
    """Of the tasks that each want got, while all that are new are kept."""
    puts, claims = store.put_and_claim(tasks, wants, now_ms)
    assert [put.outcome for put in puts] == [PutOutcome.NEW] * len(tasks)
    return [[task.id for task in claim] for claim in claims]


@pytest.mark.parametrize("n", [1, 3, 100])
def test_new_tasks_run_at_once_and_end_once(reopen: Open, n: int) -> None:
    store = reopen()
    tasks = [new(i) for i in range(n // 2)]
    tasks += [new(i, input=bytes(LONG_BYTES + 1)) for i in range(n // 2, n)]
    puts, (claim,) = store.put_and_claim(tasks[:99], [want()], NOW + 1)
    assert {put.task.state for put in puts if put.task} == {"queued"}, "as their callers are told"
    assert [(task.id, task.input) for task in claim] == [(t.id, t.input) for t in tasks[:99]]
    assert {(t.claim, t.attempts, t.losses, t.started_ms) for t in claim} == {(1, 0, 0, NOW + 1)}
    assert {state(store, task.id) for task in claim} == {"running"}
    assert claimed(store) == []
    assert store.next_due_ms(["m"]) == [None]
    assert store.counts().tasks == {"m": {"running": len(claim)}}
    assert store.finish([done(task) for task in claim], NOW) == [True] * len(claim)
    assert store.finish([done(task) for task in claim], NOW) == [False] * len(claim)
    assert store.counts().tasks == {"m": {"done": len(claim)}}


def test_those_that_wait_come_first(reopen: Open) -> None:
    store = reopen()
    store.put([new(1), new(2)], NOW)
    assert ids(store, [new(3)], want(2)) == [[new(1).id, new(2).id]]
    assert ids(store, [new(4)], want(1)) == [[new(3).id]]
    assert [task.id for task in claimed(store)] == [new(4).id]


def test_a_task_that_is_tried_again_joins_the_end_of_the_line(reopen: Open) -> None:
    store = reopen()
    store.put_and_claim([new(1)], [want()], NOW)
    assert store.retry([Again(new(1).id, 1, NOW + 9, True)], NOW) == [True]
    assert ids(store, [new(2)], want(), now_ms=NOW + 8) == [[new(2).id]]
    assert store.next_due_ms(["m"]) == [NOW + 9]
    assert ids(store, [new(3), new(4)], want(2), now_ms=NOW + 9) == [[new(3).id, new(4).id]]
    assert [task.id for task in claimed(store, now_ms=NOW + 9)] == [new(1).id]


def test_more_than_are_wanted_are_claimed_in_turns_by_caller(reopen: Open) -> None:
    store = reopen()
    tasks = [new(i, caller="many") for i in range(4)] + [new(9, caller="few")]
    (first,) = ids(store, tasks, want(2))
    assert set(first) == {new(0).id, new(9).id}
    assert [task.id for task in claimed(store)] == [new(i).id for i in range(1, 4)]


def test_turns_go_on_from_tasks_that_never_waited(reopen: Open) -> None:
    """A caller whose tasks ran at once is behind one that comes when all of them have begun."""
    store = reopen()
    ids(store, [new(i, caller="many") for i in range(4)], want())
    store.put([new(10 + i, caller="many") for i in range(3)], NOW)
    store.put([new(20, caller="few")], NOW)
    assert new(20).id in [task.id for task in claimed(store, 2)]


def test_a_claim_takes_so_many_bytes(reopen: Open) -> None:
    store = reopen()
    tasks = [new(i, input=bytes(10)) for i in range(4)]
    assert [len(found) for found in ids(store, tasks, want(size=25))] == [2]
    assert len(claimed(store)) == 2


def test_each_model_has_its_own_want(reopen: Open) -> None:
    store = reopen()
    tasks = [new(1, model="a"), new(2, model="b"), new(3, model="a"), new(4, model="c")]
    found = ids(store, tasks, want(model="b"), want(1, model="a"), want(model="none"))
    assert found == [[new(2).id], [new(1).id], []]
    assert store.next_due_ms(["a", "b", "c"]) == [0, None, 0]


def test_what_is_not_new_is_not_claimed(reopen: Open) -> None:
    store = reopen()
    first = new(1, key=b"k" * 32, fingerprint=b"a")
    twin = new(2, key=b"k" * 32, fingerprint=b"a")
    other = new(3, key=b"k" * 32, fingerprint=b"b")
    puts, (claim,) = store.put_and_claim([first, twin, other, first, new(4)], [want()], NOW)
    assert [put.outcome.value for put in puts] == ["new", "known", "mismatch", "known", "new"]
    assert [task.id for task in claim] == [first.id, new(4).id]
    puts, (claim,) = store.put_and_claim([twin], [want()], NOW)
    assert (puts[0].outcome, claim) == (PutOutcome.KNOWN, [])


def test_what_is_refused_is_not_claimed(reopen: Open) -> None:
    store = reopen(replace(LIMITS, open=2))
    puts, (claim,) = store.put_and_claim([new(i) for i in range(3)], [want()], NOW)
    assert [put.outcome.value for put in puts] == ["new", "new", "full"]
    assert [task.id for task in claim] == [new(0).id, new(1).id]


def test_the_next_owner_runs_them_again(reopen: Open) -> None:
    store = reopen()
    ids(store, [new(i, input=bytes(LONG_BYTES + i)) for i in range(2)], want())
    heir = reopen()
    assert heir.reclaim(NOW).tasks == 2
    found = claimed(heir)
    assert [(t.id, t.claim, t.losses, len(t.input)) for t in found] == [
        (new(0).id, 2, 1, LONG_BYTES), (new(1).id, 2, 1, LONG_BYTES + 1)
    ]  # fmt: skip


def test_a_transaction_that_is_undone_has_claimed_nothing(reopen: Open) -> None:
    store = reopen()
    if not isinstance(store, SqliteStore):
        pytest.skip("of a store with transactions")
    with pytest.raises(RuntimeError), store.group():
        ids(store, [new(1), new(2)], want())
        raise RuntimeError
    assert store.counts().tasks == {}
    assert ids(store, [new(3)], want()) == [[new(3).id]]
    (put,) = store.put([new(1)], NOW)
    assert put.outcome is PutOutcome.NEW
    (task,) = claimed(store)
    assert (task.id, task.input) == (new(1).id, new(1).input)
    assert store.cancel([new(3).id], NOW)[0] is not None
    assert store.finish([done(task)], NOW) == [True]
    answer = TaskAnswer(200, (), b"late")
    late = done(task, answer)
    assert late.state is TaskState.DONE
    assert store.finish([late], NOW) == [False]
