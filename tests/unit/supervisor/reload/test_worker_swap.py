"""Decisions about workers: the start, duty and end of each, whatever happens to any of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.supervisor.reload.worker_swap import (
    SlotChange,
    SwapAction,
    SwapCommand,
    SwapPhase,
    Version,
    WorkerStage,
    WorkerSwap,
)

NEW, OLD = Version.NEW, Version.OLD


def two_worker_slots() -> WorkerSwap:
    return WorkerSwap([SlotChange("worker 0", "cpu"), SlotChange("worker 1", "cpu")])


def commands_of(swap: WorkerSwap) -> list[tuple[SwapAction, int, Version]]:
    return [(command.action, command.slot, command.version) for command in swap.step()]


def serve(swap: WorkerSwap, *worker_slots: int) -> None:
    """These heirs get warm and take their seats."""
    for worker_slot in worker_slots:
        swap.step()
        swap.warm(worker_slot, NEW)
        assert (SwapAction.TAKE_OVER, worker_slot, NEW) in commands_of(swap)


# -- by hand --------------------------------------------------------------------------------


def test_worker_slots_are_taken_one_by_one_and_standbys_end_when_all_are_taken() -> None:
    swap = two_worker_slots()
    assert commands_of(swap) == [(SwapAction.START, 0, NEW)]
    assert commands_of(swap) == [], "the other waits for it"
    swap.warm(0, NEW)
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 0, NEW), (SwapAction.START, 1, NEW)]
    swap.idle(0, OLD)
    assert commands_of(swap) == [], "it stands by"
    assert swap.progress() == (1, 2)
    swap.warm(1, NEW)
    assert commands_of(swap) == [
        (SwapAction.TAKE_OVER, 1, NEW), (SwapAction.COMMIT, -1, NEW), (SwapAction.STOP, 0, OLD),
    ]  # fmt: skip
    assert commands_of(swap) == [], "the other has rows in flight"
    swap.idle(1, OLD)
    assert commands_of(swap) == [(SwapAction.STOP, 1, OLD)]
    swap.ended(0, OLD, "was killed")
    assert (swap.step(), swap.phase) == ([], SwapPhase.COMMITTED)
    swap.ended(1, OLD, "was killed")
    assert (swap.step(), swap.phase, swap.failure) == ([], SwapPhase.FINISHED, "")


def test_each_place_loads_one_heir_at_a_time() -> None:
    places = ["GPU 0", "GPU 1", "GPU 0"]
    swap = WorkerSwap([SlotChange(f"worker {i}", place) for i, place in enumerate(places)])
    assert commands_of(swap) == [(SwapAction.START, 0, NEW), (SwapAction.START, 1, NEW)]
    swap.warm(1, NEW)
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 1, NEW)]
    swap.warm(0, NEW)
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 0, NEW), (SwapAction.START, 2, NEW)]


def test_an_heir_that_does_not_load_turns_all_back() -> None:
    swap = two_worker_slots()
    serve(swap, 0)
    assert swap.stage(1, NEW) is WorkerStage.LOADING
    swap.ended(1, NEW, "failed: ValueError")
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 0, OLD)], (
        "with rows in flight, it needs no rest"
    )
    assert swap.failure == "worker 1 failed: ValueError"
    swap.idle(0, NEW)
    assert commands_of(swap) == [(SwapAction.STOP, 0, NEW)]
    swap.ended(0, NEW, "was killed")
    assert (swap.step(), swap.phase) == ([], SwapPhase.FINISHED)
    assert swap.failure == "worker 1 failed: ValueError", "the first is the cause"


def test_an_heir_that_dies_in_its_worker_slot_turns_all_back() -> None:
    swap = two_worker_slots()
    serve(swap, 0)
    swap.ended(0, NEW, "was killed")
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 0, OLD), (SwapAction.STOP, 1, NEW)]
    assert not swap.handles_end(0, OLD), "from now on its end is like any other's"
    swap.ended(1, NEW, "was killed")
    swap.step()
    assert swap.phase is SwapPhase.FINISHED


def test_a_standby_that_has_died_is_loaded_again_before_its_heir_leaves() -> None:
    swap = two_worker_slots()
    serve(swap, 0)
    swap.ended(0, OLD, "was killed")
    assert (commands_of(swap), swap.phase) == ([], SwapPhase.ROLLING_OUT), "nobody needs it yet"
    swap.ended(1, NEW, "failed")
    assert commands_of(swap) == [(SwapAction.START, 0, OLD)]
    swap.warm(0, OLD)
    assert commands_of(swap) == [(SwapAction.TAKE_OVER, 0, OLD)]
    swap.idle(0, NEW)
    assert commands_of(swap) == [(SwapAction.STOP, 0, NEW)]


@pytest.mark.parametrize("heir_dies", [False, True])
def test_an_old_worker_that_cannot_be_had_leaves_its_worker_slot_empty(heir_dies: bool) -> None:
    swap = two_worker_slots()
    serve(swap, 0)
    swap.ended(0, OLD, "was killed")
    swap.ended(1, NEW, "failed")
    assert commands_of(swap) == [(SwapAction.START, 0, OLD)]
    if heir_dies:
        swap.ended(0, NEW, "was killed")
        assert commands_of(swap) == []
    swap.ended(0, OLD, "failed")
    assert commands_of(swap) == [(SwapAction.LEAVE_EMPTY, 0, OLD)]
    if not heir_dies:
        swap.idle(0, NEW)
        swap.step()
        swap.ended(0, NEW, "was killed")
    assert (swap.step(), swap.phase) == ([], SwapPhase.FINISHED)


def test_worker_slots_that_come_and_worker_slots_that_go() -> None:
    new, gone = SlotChange("worker 1", "cpu", old=False), SlotChange("worker 2", "cpu", new=False)
    swap = WorkerSwap([SlotChange("worker 0", "cpu"), new, gone])
    serve(swap, 0)
    swap.warm(1, NEW)
    assert commands_of(swap) == [
        (SwapAction.TAKE_OVER, 1, NEW), (SwapAction.COMMIT, -1, NEW), (SwapAction.DRAIN, 2, OLD),
    ]  # fmt: skip
    back = WorkerSwap([new, SlotChange("worker 0", "cpu"), gone])
    serve(back, 0)
    back.ended(1, NEW, "failed")
    assert commands_of(back) == [(SwapAction.DRAIN, 0, NEW)], "nobody was there before it"
    back.idle(0, NEW)
    assert commands_of(back) == [(SwapAction.STOP, 0, NEW)]
    back.ended(0, NEW, "was killed")
    back.step()
    assert (back.phase, back.stage(2, OLD)) == (SwapPhase.FINISHED, WorkerStage.ACTIVE)


def test_an_entry_that_leaves_is_served_until_it_is_empty() -> None:
    """The heir is of another entry than the old worker: each has a seat of its own."""
    comes = SlotChange("replacement of worker 0", "cpu", old=False)
    leaves = SlotChange("worker 0", "cpu", new=False, migrates=True)
    swap = WorkerSwap([comes, leaves])
    swap.lanes_open = False
    serve(swap, 0)
    assert (swap.phase, commands_of(swap)) == (SwapPhase.ROLLING_OUT, []), "the lanes are not open"
    swap.lanes_open = True
    assert commands_of(swap) == [(SwapAction.COMMIT, -1, NEW)]
    assert swap.rolled_out, "nobody waits for what is left of the old one"
    assert not swap.handles_end(1, OLD), "if it dies, another is loaded in its place"
    swap.lanes_closed(1)
    assert commands_of(swap) == [(SwapAction.DRAIN, 1, OLD)]
    swap.idle(1, OLD)
    assert commands_of(swap) == [(SwapAction.STOP, 1, OLD)]
    swap.ended(1, OLD, "was killed")
    assert (swap.step(), swap.phase) == ([], SwapPhase.FINISHED)

    back = WorkerSwap([comes, leaves])
    back.step()
    back.ended(0, NEW, "failed")
    assert (back.step(), back.phase, back.stage(1, OLD)) == (
        [],
        SwapPhase.FINISHED,
        WorkerStage.ACTIVE,
    )


def test_models_that_only_leave_are_committed_at_once() -> None:
    swap = WorkerSwap([SlotChange("worker 0", "cpu", new=False, migrates=True)])
    assert commands_of(swap) == [(SwapAction.COMMIT, -1, NEW)]
    assert (swap.rolled_out, swap.phase) == (True, SwapPhase.COMMITTED)


def test_after_the_commit_heirs_are_as_any_worker() -> None:
    swap = WorkerSwap([SlotChange("worker 0", "cpu")])
    serve(swap, 0)
    assert swap.phase is SwapPhase.COMMITTED
    assert not swap.handles_end(0, NEW)
    assert swap.handles_end(0, OLD)
    swap.fail("too late")
    assert (swap.phase, swap.failure) == (SwapPhase.COMMITTED, "")


# -- whatever happens -----------------------------------------------------------------------


class Floor:
    """Workers that do as they are told, and a chance that may kill any of them.

    duty: who gets rows in each seat, at most one. rows: who may have some in flight.
    """

    def __init__(self, changes: list[SlotChange]) -> None:
        self.swap = WorkerSwap(changes)
        self.swap.lanes_open = not any(change.migrates for change in changes)
        self.needed = {i for i, change in enumerate(changes) if change.migrates}
        self.changes = changes
        self.duty: list[Version | None] = [OLD if change.old else None for change in changes]
        self.alive = {(i, OLD) for i, change in enumerate(changes) if change.old}
        self.loading: set[tuple[int, Version]] = set()
        self.rows = set(self.alive)
        self.ending: set[tuple[int, Version]] = set()
        self.vacant: set[int] = set()
        self.committed = False

    def obey(self) -> None:
        while commands := self.swap.step():
            for command in commands:
                self.carry_out(command)
        for i, change in enumerate(self.changes):
            where = [self.swap.stage(i, who) for who in Version].count(WorkerStage.ACTIVE)
            assert where <= 1, "two in one seat"
            assert change.old or change.new

    def carry_out(self, command: SwapCommand) -> None:
        one = (command.slot, command.version)
        other = (command.slot, OLD if command.version is NEW else NEW)
        if command.action is SwapAction.START:
            assert one not in self.alive
            assert self.committed is False
            places = [self.changes[i].device for i, who in self.loading if who is NEW]
            assert command.version is OLD or self.changes[command.slot].device not in places
            self.alive.add(one)
            self.loading.add(one)
        elif command.action is SwapAction.TAKE_OVER:
            assert one in self.alive - self.loading - self.ending, "warm, and to stay"
            assert self.duty[command.slot] is not command.version
            self.duty[command.slot] = command.version
            self.rows.add(one)
        elif command.action is SwapAction.DRAIN:
            assert self.duty[command.slot] is command.version
            assert command.slot not in self.needed
            self.duty[command.slot] = None
        elif command.action is SwapAction.LEAVE_EMPTY:
            assert one not in self.alive
            self.duty[command.slot] = OLD  # whom the seat's usual business brings back
            self.alive.add(one)
            self.vacant.add(command.slot)
        elif command.action is SwapAction.STOP:
            assert one in self.alive
            assert one in self.loading or one not in self.rows, "it still has rows"
            assert self.duty[command.slot] is not command.version
            assert self.committed or command.version is NEW, "a standby ends before the commit"
            self.ending.add(one)
        else:
            assert not self.committed
            assert self.swap.lanes_open
            assert all(self.duty[i] is NEW for i, c in enumerate(self.changes) if c.new)
            self.committed = True
        assert other in self.alive or command.action is not SwapAction.STOP or self.committed or (
            not self.changes[command.slot].old or command.slot in self.vacant
        ), "nobody is left in the seat"  # fmt: skip

    def events(self) -> list[tuple[str, tuple[int, Version]]]:
        """Events that may happen next."""
        found = [("gone", one) for one in self.ending]
        found += [("warm", one) for one in self.loading - self.ending]
        found += [("idle", one) for one in self.rows if self.duty[one[0]] is not one[1]]
        if self.committed:
            found += [("emptied", (i, OLD)) for i in self.needed]
        elif not self.swap.lanes_open:
            found.append(("opened", (0, OLD)))
        return sorted(found, key=str)

    def happens(self, what: str, one: tuple[int, Version]) -> None:
        if what == "opened":
            self.swap.lanes_open = True
        elif what == "emptied":
            self.needed.discard(one[0])
            self.swap.lanes_closed(one[0])
        elif what == "warm":
            self.loading.discard(one)
            self.swap.warm(*one)
        elif what == "idle":
            self.rows.discard(one)
            self.swap.idle(*one)
        else:
            owned = self.swap.handles_end(*one)
            self.ending.discard(one)
            self.loading.discard(one)
            if owned:
                self.alive.discard(one)
                self.rows.discard(one)
                if self.duty[one[0]] is one[1]:
                    self.duty[one[0]] = None
                self.swap.ended(*one, "was killed")
            # else it is the seat's usual business to bring it back
        self.obey()


CHANGES = st.lists(
    st.builds(
        SlotChange,
        st.just("worker"),
        st.sampled_from(["cpu", "GPU 0"]),
        *[st.booleans(), st.booleans(), st.booleans()],
    )
    .filter(lambda change: change.old or change.new)
    .map(lambda change: replace(change, migrates=change.migrates and not change.new)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(changes=CHANGES, chance=st.randoms(use_true_random=False), kills=st.integers(0, 4))
def test_a_reload_ends_with_all_new_or_all_old(
    changes: list[SlotChange], chance: Random, kills: int
) -> None:
    floor = Floor(changes)
    floor.obey()
    for _ in range(200):
        if floor.swap.phase is SwapPhase.FINISHED:
            break
        if kills and chance.random() < 0.3 and floor.alive:
            kills -= 1
            victim = chance.choice(sorted(floor.alive, key=str))
            floor.happens("killed", victim)
            continue
        events = floor.events()
        assert events, "it waits for nothing"
        floor.happens(*chance.choice(events))
    assert floor.swap.phase is SwapPhase.FINISHED
    done = not floor.swap.failure
    assert floor.committed == done
    for i, change in enumerate(changes):
        expected = NEW if done and change.new else OLD if not done and change.old else None
        assert floor.duty[i] is expected
    staying = {(i, who) for i, who in enumerate(floor.duty) if who is not None}
    assert {one for one in floor.alive if not floor.swap.handles_end(*one)} == staying
