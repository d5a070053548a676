"""The contract of a store of tasks: every store passes these tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.record import (
    LOSSES_MOST,
    Again,
    ClaimedTask,
    Ended,
    PutOutcome,
    TaskAnswer,
    TaskState,
    Want,
)
from tests.unit.tasks.stores import LIMITS, NOW, OK, Open, claimed, done, new, state


def failed(task: ClaimedTask) -> Ended:
    return Ended(
        task.id, task.claim, TaskState.FAILED, TaskAnswer(500, (), b"no"), code="model_error",
        error="no", facts={"batch": 7}, is_letter=True,
    )  # fmt: skip


def test_a_task_is_kept_and_run_and_collected(reopen: Open) -> None:
    store = reopen()
    (put,) = store.put([new(1)], NOW)
    assert put.outcome is PutOutcome.NEW
    assert put.task is not None
    assert put.task.state == "queued"
    (task,) = claimed(store)
    assert (task.input, task.answer, task.attempts) == (b"input 1", b"answer", 0)
    assert state(store, task.id) == "running"
    assert claimed(store) == []
    (open_result,) = store.collect([task.id], NOW)
    assert open_result is not None
    assert open_result.answer is None
    assert store.finish([done(task)], NOW) == [True]
    (result,) = store.collect([task.id], NOW)
    assert result is not None
    assert result.answer == OK
    assert result.form.attempts == 1


def test_the_oldest_tasks_whose_time_has_come_are_claimed_first(reopen: Open) -> None:
    store = reopen()
    store.put([new(3)], NOW)
    (task,) = claimed(store)
    store.retry([Again(task.id, task.claim, NOW + 9, True)], NOW)
    store.put([new(2)], NOW)
    store.put([new(1)], NOW + 1)
    store.put([new(4, model="other")], NOW)
    assert [task.id for task in claimed(store, 2, NOW + 5)] == [new(2).id, new(1).id]
    assert store.next_due_ms(["m", "other", "none"]) == [NOW + 9, 0, None]
    assert claimed(store, 2, NOW + 5) == []
    assert store.models() == {"m", "other"}


def test_callers_are_served_in_turns_by_their_rows(reopen: Open) -> None:
    """One caller with many tasks holds up its own, and nobody else's."""
    store = reopen()
    store.put([new(i, caller="many") for i in range(8)], NOW)
    assert [task.id for task in claimed(store, 2)] == [new(0).id, new(1).id]
    store.put([new(10 + i, caller="few", rows=1 + i) for i in range(3)], NOW)
    heir = reopen()
    order = [claimed(heir, 1)[0].id for _ in range(8)]
    few = [new(10).id, new(11).id, new(12).id]
    assert [identifier for identifier in order if identifier in few] == few
    assert [identifier for identifier in order if identifier not in few] == [
        new(i).id for i in range(2, 7)
    ]
    for row, identifier in enumerate(few):  # those before it had 1 and 2 rows
        ahead = [other for other in order[: order.index(identifier)] if other not in few]
        assert abs(len(ahead) - (0, 1, 3)[row]) <= 1


def test_names_do_not_multiply_the_turns_of_an_origin(reopen: Open) -> None:
    """However many a caller gives itself; and the names of one origin take turns within it."""
    store = reopen()
    named = [new(i, caller=f"client {i % 24}", origin="10.0.0.1") for i in range(48)]
    others = [new(100 + i, caller="10.0.0.2", origin="10.0.0.2") for i in range(40)]
    store.put([*named, *others], NOW)
    tasks = {task.id: task for task in (*named, *others)}
    order = [tasks[task.id] for size in (20, 7, 3) for task in claimed(store, size)]
    heir = reopen()
    newcomer = new(200, caller="client new", origin="10.0.0.1")
    heir.put([newcomer], NOW)
    tasks[newcomer.id] = newcomer
    order += [tasks[task.id] for task in claimed(heir, 34)]
    for n in (20, 27, 30, 60):
        assert abs(sum(task.origin == "10.0.0.1" for task in order[:n]) - n / 2) <= 1
    first = [task for task in order if task.origin == "10.0.0.1"][:24]
    assert len({task.caller for task in first}) == len(first) == 24
    assert newcomer in order, "its line was empty"
    assert len(claimed(heir)) == 89 - 64


def test_a_caller_keeps_its_order_with_the_next_owner(reopen: Open) -> None:
    reopen().put([new(i, caller="a", origin="x") for i in range(5)], NOW)
    heir = reopen()
    heir.put([new(5, caller="a", origin="x"), new(9, caller="b", origin="x")], NOW)
    order = [task.id for _ in range(7) for task in claimed(heir, 1)]
    assert order.index(new(9).id) <= 1
    assert [identifier for identifier in order if identifier != new(9).id] == [
        new(i).id for i in range(6)
    ]


def test_an_origin_stays_with_its_tasks_on_every_way(reopen: Open) -> None:
    """One that is tried again, one of an owner that died, and one that is made of a letter."""
    store = reopen()
    names = [new(i, caller=f"client {i}", origin="10.0.0.1") for i in range(3)]
    store.put(names, NOW)
    again, dead, _ = claimed(store)  # the last one is lost
    store.retry([Again(again.id, again.claim, NOW, True)], NOW)
    (again,) = claimed(store)
    store.retry([Again(again.id, again.claim, NOW, True)], NOW)
    store.finish([failed(dead)], NOW)
    heir = reopen()
    heir.reclaim(NOW)
    (letter,) = heir.letters("", "", 0, 9, (), whole=False)
    heir.replay([letter.letter], NOW, NOW + 10_000)
    heir.put([new(10 + i, caller="10.0.0.2", origin="10.0.0.2") for i in range(4)], NOW)
    order = [claimed(heir, 1)[0].id for _ in range(6)]
    of_other = [identifier in {new(10 + i).id for i in range(4)} for identifier in order]
    assert sum(of_other[:4]) == 2, order
    assert sum(of_other) == 3


def test_a_caller_that_took_its_tasks_back_begins_where_the_others_are(reopen: Open) -> None:
    store = reopen()
    store.put([new(i) for i in range(50)], NOW)
    store.put([new(60 + i, caller="other") for i in range(3)], NOW)
    store.cancel([new(i).id for i in range(50)], NOW)
    store.put([new(70)], NOW)
    assert new(70).id in {task.id for task in claimed(store, 2)}


def test_a_claim_takes_so_many_bytes_but_one_task_at_least(reopen: Open) -> None:
    store = reopen()
    store.put([new(i, input=bytes(10)) for i in range(4)], NOW)
    assert len(store.claim([Want("m", 10, 25)], NOW)) == 2
    assert len(store.claim([Want("m", 10, 1)], NOW)) == 1


def test_a_key_is_one_task(reopen: Open) -> None:
    """Complaint 2: also for requests that are committed together."""
    store = reopen()
    first = new(1, key=b"k" * 32, fingerprint=b"a")
    twin = new(2, key=b"k" * 32, fingerprint=b"a")
    other = new(3, key=b"k" * 32, fingerprint=b"b")
    puts = store.put([first, twin, other], NOW)
    assert [put.outcome for put in puts] == [
        PutOutcome.NEW, PutOutcome.KNOWN, PutOutcome.MISMATCH
    ]  # fmt: skip
    assert puts[1].task is not None
    assert puts[1].task.id == first.id
    assert len(claimed(store)) == 1
    assert store.put([twin], NOW)[0].outcome is PutOutcome.KNOWN


def test_the_same_task_twice_is_one(reopen: Open) -> None:
    store = reopen()
    assert [put.outcome for put in store.put([new(1), new(1)], NOW)] == [
        PutOutcome.NEW, PutOutcome.KNOWN
    ]  # fmt: skip


def test_an_end_counts_once_and_for_its_own_claim_only(reopen: Open) -> None:
    """Complaint 4: a late twin changes nothing of what has ended."""
    store = reopen()
    store.put([new(1)], NOW)
    (task,) = claimed(store)
    late = structs.replace(task, claim=task.claim - 1)
    assert store.finish([done(late), done(task), done(task)], NOW) == [False, True, False]
    assert store.retry([Again(task.id, task.claim, NOW, True)], NOW) == [False]
    assert state(store, task.id) == "done"


def test_a_task_that_is_tried_again_comes_when_it_is_due(reopen: Open) -> None:
    store = reopen()
    store.put([new(1)], NOW)
    (task,) = claimed(store)
    assert store.retry([Again(task.id, task.claim, NOW + 50, True)], NOW) == [True]
    assert claimed(store, now_ms=NOW + 49) == []
    (again,) = claimed(store, now_ms=NOW + 50)
    assert (again.attempts, again.claim) == (1, task.claim + 1)
    store.retry([Again(again.id, again.claim, NOW, False)], NOW)
    assert claimed(store)[0].attempts == 1, "weather costs no attempt"


def test_tasks_of_an_owner_that_died_are_queued_again(reopen: Open) -> None:
    """Complaints 9 and 10: a killed process's tasks are not running for ever."""
    store = reopen()
    store.put([new(1), new(2)], NOW)
    (task,) = claimed(store, 1)
    heir = reopen()
    assert heir.finish([done(task)], NOW) == [False]
    assert heir.reclaim(NOW).tasks == 1
    assert {task.id for task in claimed(heir)} == {new(1).id, new(2).id}
    assert heir.reclaim(NOW).tasks == 0, "its own claims are not"


def test_a_task_that_is_lost_again_and_again_is_given_up(reopen: Open) -> None:
    store = reopen()
    store.put([new(1)], NOW)
    for _ in range(LOSSES_MOST - 1):
        claimed(store)
        store = reopen()
        assert store.reclaim(NOW).lost == ()
    claimed(store)
    store = reopen()
    found = store.reclaim(NOW)
    assert [task.id for task in found.lost] == [new(1).id]
    assert store.finish([failed(found.lost[0])], NOW) == [True]


def test_a_task_that_was_taken_back_is_cancelled_and_its_end_refused(reopen: Open) -> None:
    store = reopen()
    store.put([new(1, key=b"k" * 32), new(2)], NOW)
    task = claimed(store, 1)[0]
    running, queued, nobody = store.cancel([new(1).id, new(2).id, "t_none"], NOW)
    assert running is not None
    assert queued is not None
    assert (running.state, queued.state, nobody) == ("running", "queued", None)
    assert store.finish([done(task)], NOW) == [False]
    assert state(store, new(1).id) == state(store, new(2).id) == "cancelled"
    assert store.cancel([new(1).id], NOW) == [None]
    assert claimed(store) == []
    assert store.put([new(3, key=b"k" * 32)], NOW)[0].outcome is PutOutcome.NEW


def test_a_task_that_has_ended_is_dropped(reopen: Open) -> None:
    store = reopen()
    store.put([new(1)], NOW)
    store.finish([done(*claimed(store))], NOW)
    (before,) = store.cancel([new(1).id], NOW)
    assert before is not None
    assert before.state == "done"
    assert store.look([new(1).id], NOW) == [None]


def test_a_result_stays_for_its_time_and_a_while_after_it_was_read(reopen: Open) -> None:
    """C71: what nobody collects goes, and what is open never does."""
    store = reopen()
    store.put([new(1), new(2), new(3, deadline_ms=NOW + 10**6)], NOW)
    store.finish([done(task) for task in claimed(store, 2)], NOW)
    store.collect([new(1).id], NOW)
    store.mark_read([new(1).id], NOW + 10)
    assert store.sweep(NOW + 109).results == 0
    assert store.sweep(NOW + 110).results == 1
    assert state(store, new(1).id) == ""
    assert state(store, new(2).id) == "done"
    assert store.sweep(NOW + 999).results == 0
    assert store.sweep(NOW + 1000).results == 1
    assert state(store, new(3).id) == "queued"


def test_reading_a_result_keeps_it_where_that_is_asked(reopen: Open) -> None:
    store = reopen(replace(LIMITS, evict_on_read=False))
    store.put([new(1)], NOW)
    store.finish([done(*claimed(store))], NOW)
    store.mark_read([new(1).id], NOW)
    assert store.sweep(NOW + 999).results == 0


def test_a_deadline_ends_open_tasks_and_says_whose_it_was(reopen: Open) -> None:
    store = reopen()
    store.put([new(1), new(2, own_deadline=True), new(3)], NOW)
    (running,) = claimed(store, 1)
    assert store.sweep(NOW + 9_999).ended == ()
    swept = store.sweep(NOW + 10_000)
    assert set(swept.ended) == {new(i).id for i in (1, 2, 3)}
    assert swept.letters == (("m", "expired"),) * 2
    assert store.finish([done(running)], NOW) == [False]
    found = store.collect([new(1).id, new(2).id], NOW)
    codes = [(kept.form.code, kept.answer.status) for kept in found if kept and kept.answer]
    assert codes == [("expired", 410), ("deadline_exceeded", 504)]


def test_a_full_store_takes_no_new_task_but_knows_those_it_has(reopen: Open) -> None:
    store = reopen(replace(LIMITS, open=2))
    outcomes = [put.outcome for put in store.put([new(i) for i in range(3)], NOW)]
    assert outcomes == [PutOutcome.NEW, PutOutcome.NEW, PutOutcome.FULL]
    assert store.put([new(0)], NOW)[0].outcome is PutOutcome.KNOWN
    store.finish([done(*claimed(store, 1))], NOW)
    assert store.put([new(2)], NOW)[0].outcome is PutOutcome.NEW
    small = reopen(replace(LIMITS, bytes=1))
    assert small.put([new(9)], NOW)[0].outcome is PutOutcome.BYTES_FULL


def test_one_caller_has_at_most_half_while_others_have_some(reopen: Open) -> None:
    store = reopen(replace(LIMITS, open=4))
    store.put([new(0, caller="other")], NOW)
    outcomes = [put.outcome for put in store.put([new(i) for i in range(1, 4)], NOW)]
    assert outcomes == [PutOutcome.NEW, PutOutcome.NEW, PutOutcome.SHARE_FULL]
    assert store.put([new(9, caller="other")], NOW)[0].outcome is PutOutcome.NEW


def test_all_names_of_one_origin_have_one_share(reopen: Open) -> None:
    store = reopen(replace(LIMITS, open=4))
    store.put([new(0, caller="client x", origin="other")], NOW)
    for i in range(1, 3):
        named = new(i, caller=f"client {i}", origin="here")
        assert store.put([named], NOW)[0].outcome is PutOutcome.NEW
    third = new(3, caller="client 3", origin="here")
    assert store.put([third], NOW)[0].outcome is PutOutcome.SHARE_FULL
    assert store.put([new(4, caller="client 1", origin="there")], NOW)[0].outcome is PutOutcome.NEW


@pytest.mark.parametrize(("share", "least", "most"), [(0.5, 4, 8), (0.05, 1, 1)])
def test_one_origin_leaves_room_for_a_newcomer(
    reopen: Open, share: float, least: int, most: int
) -> None:
    """Inputs that wait and results that nobody collects are both its own, until they have gone."""
    store = reopen(replace(LIMITS, bytes=2**20, share=share))
    body = bytes(60_000)

    def put(number: int, origin: str) -> PutOutcome:
        task = structs.replace(new(number, origin=origin), input=body)
        return store.put([task], NOW)[0].outcome

    taken = 0
    while put(taken, "greedy") is PutOutcome.NEW:
        taken += 1
    assert least <= taken <= most  # of 17 in all, as each store counts the rest of a record
    assert put(97, "greedy") is PutOutcome.BYTES_SHARE_FULL
    answer = TaskAnswer(200, (), body)
    tasks = claimed(store)
    store.finish([done(task, answer) for task in tasks], NOW)
    assert put(98, "greedy") is PutOutcome.BYTES_SHARE_FULL
    assert put(100, "newcomer") is PutOutcome.NEW
    store.mark_read([task.id for task in tasks], NOW)
    assert store.sweep(NOW + 10**6).results == taken
    assert put(99, "greedy") is PutOutcome.NEW


def test_a_dead_letter_keeps_its_input_and_is_replayed_as_a_new_task(reopen: Open) -> None:
    long = bytes(range(256)) * 300
    store = reopen()
    store.put([new(1, input=long, principal="ann"), new(2)], NOW)
    store.finish([failed(task) for task in claimed(store)], NOW)
    second, first = store.letters("", "", 0, 10, (), whole=True)
    assert (first.input, first.code, first.attempts, first.facts) == (
        long, "model_error", 1, {"batch": 7}
    )  # fmt: skip
    assert store.letters("m", "x", 0, 10, (), whole=False) == []
    assert [f.letter for f in store.letters("", "", second.letter, 10, (), whole=False)] == [
        first.letter
    ]
    store.sweep(NOW + 1000)
    assert state(store, new(1).id) == "", "its task has gone, and the letter has its input still"
    replayed, gone = store.replay([first.letter, 99], NOW, NOW + 5)
    assert gone is None
    assert replayed is not None
    (task,) = claimed(store)
    assert (task.id, task.input) == (replayed, long)
    (kept,) = store.look([replayed], NOW)
    assert kept is not None
    assert kept.principal == "ann"
    assert store.drop_letters([first.letter, second.letter]) == [False, True]
    assert store.counts().letters == 0


def test_everything_is_there_after_the_next_owner_opens_it(reopen: Open) -> None:
    store = reopen()
    long = TaskAnswer(200, (), bytes(2 * LONG_BYTES))
    store.put([new(i, input=bytes(LONG_BYTES + i)) for i in range(3)], NOW)
    store.finish([done(*claimed(store, 1), long)], NOW)
    heir = reopen()
    (kept,) = heir.collect([new(0).id], NOW)
    assert kept is not None
    assert kept.answer is not None
    assert (heir.body(new(0).id) if kept.is_long else kept.answer.body) == long.body
    assert heir.body("t_x") is None
    assert [len(task.input) for task in claimed(heir)] == [LONG_BYTES + 1, LONG_BYTES + 2]
    counts = heir.counts()
    assert counts.tasks == {"m": {"done": 1, "running": 2}}
    assert counts.oldest_ms == NOW
    assert [form.state for form in heir.list_tasks("", "", 10)] == ["running", "running", "done"]
    assert [form.id for form in heir.list_tasks("done", "m", 10)] == [new(0).id]
