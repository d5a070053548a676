"""The order of a reload: who is started, relieved and ended when, whatever happens to whom."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.supervisor.reload.worker_swap import (
    SlotChange,
    SwapAction,
    SwapOrder,
    SwapParty,
    SwapPhase,
    WorkerStage,
    WorkerSwap,
)

HEIR, OLD = SwapParty.HEIR, SwapParty.OLD


def two_worker_slots() -> WorkerSwap:
    return WorkerSwap([SlotChange("worker 0", "cpu"), SlotChange("worker 1", "cpu")])


def acts(reload: WorkerSwap) -> list[tuple[SwapAction, int, SwapParty]]:
    return [(order.act, order.worker_slot, order.who) for order in reload.step()]


def serve(reload: WorkerSwap, *worker_slots: int) -> None:
    """These heirs get warm and take their seats."""
    for worker_slot in worker_slots:
        reload.step()
        reload.warm(worker_slot, HEIR)
        assert (SwapAction.TAKE_OVER, worker_slot, HEIR) in acts(reload)


# -- by hand --------------------------------------------------------------------------------


def test_worker_slots_are_taken_one_by_one_and_standbys_end_when_all_are_taken() -> None:
    reload = two_worker_slots()
    assert acts(reload) == [(SwapAction.START, 0, HEIR)]
    assert acts(reload) == [], "the other waits for it"
    reload.warm(0, HEIR)
    assert acts(reload) == [(SwapAction.TAKE_OVER, 0, HEIR), (SwapAction.START, 1, HEIR)]
    reload.idle(0, OLD)
    assert acts(reload) == [], "it stands by"
    assert reload.progress() == (1, 2)
    reload.warm(1, HEIR)
    assert acts(reload) == [
        (SwapAction.TAKE_OVER, 1, HEIR), (SwapAction.COMMIT, -1, HEIR), (SwapAction.END, 0, OLD),
    ]  # fmt: skip
    assert acts(reload) == [], "the other has rows in flight"
    reload.idle(1, OLD)
    assert acts(reload) == [(SwapAction.END, 1, OLD)]
    reload.lost(0, OLD, "was killed")
    assert (reload.step(), reload.phase) == ([], SwapPhase.COMMITTED)
    reload.lost(1, OLD, "was killed")
    assert (reload.step(), reload.phase, reload.failure) == ([], SwapPhase.OVER, "")


def test_each_place_loads_one_heir_at_a_time() -> None:
    places = ["GPU 0", "GPU 1", "GPU 0"]
    reload = WorkerSwap([SlotChange(f"worker {i}", place) for i, place in enumerate(places)])
    assert acts(reload) == [(SwapAction.START, 0, HEIR), (SwapAction.START, 1, HEIR)]
    reload.warm(1, HEIR)
    assert acts(reload) == [(SwapAction.TAKE_OVER, 1, HEIR)]
    reload.warm(0, HEIR)
    assert acts(reload) == [(SwapAction.TAKE_OVER, 0, HEIR), (SwapAction.START, 2, HEIR)]


def test_an_heir_that_does_not_load_turns_all_back() -> None:
    reload = two_worker_slots()
    serve(reload, 0)
    assert reload.at(1, HEIR) is WorkerStage.LOADING
    reload.lost(1, HEIR, "failed: ValueError")
    assert acts(reload) == [(SwapAction.TAKE_OVER, 0, OLD)], "with rows in flight, it needs no rest"
    assert reload.failure == "worker 1 failed: ValueError"
    reload.idle(0, HEIR)
    assert acts(reload) == [(SwapAction.END, 0, HEIR)]
    reload.lost(0, HEIR, "was killed")
    assert (reload.step(), reload.phase) == ([], SwapPhase.OVER)
    assert reload.failure == "worker 1 failed: ValueError", "the first is the cause"


def test_an_heir_that_dies_in_its_worker_slot_turns_all_back() -> None:
    reload = two_worker_slots()
    serve(reload, 0)
    reload.lost(0, HEIR, "was killed")
    assert acts(reload) == [(SwapAction.TAKE_OVER, 0, OLD), (SwapAction.END, 1, HEIR)]
    assert not reload.owns(0, OLD), "from now on its end is like any other's"
    reload.lost(1, HEIR, "was killed")
    reload.step()
    assert reload.phase is SwapPhase.OVER


def test_a_standby_that_has_died_is_loaded_again_before_its_heir_leaves() -> None:
    reload = two_worker_slots()
    serve(reload, 0)
    reload.lost(0, OLD, "was killed")
    assert (acts(reload), reload.phase) == ([], SwapPhase.AHEAD), "nobody needs it yet"
    reload.lost(1, HEIR, "failed")
    assert acts(reload) == [(SwapAction.START, 0, OLD)]
    reload.warm(0, OLD)
    assert acts(reload) == [(SwapAction.TAKE_OVER, 0, OLD)]
    reload.idle(0, HEIR)
    assert acts(reload) == [(SwapAction.END, 0, HEIR)]


@pytest.mark.parametrize("heir_dies", [False, True])
def test_an_old_worker_that_cannot_be_had_leaves_its_worker_slot_empty(heir_dies: bool) -> None:
    reload = two_worker_slots()
    serve(reload, 0)
    reload.lost(0, OLD, "was killed")
    reload.lost(1, HEIR, "failed")
    assert acts(reload) == [(SwapAction.START, 0, OLD)]
    if heir_dies:
        reload.lost(0, HEIR, "was killed")
        assert acts(reload) == []
    reload.lost(0, OLD, "failed")
    assert acts(reload) == [(SwapAction.VACATE, 0, OLD)]
    if not heir_dies:
        reload.idle(0, HEIR)
        reload.step()
        reload.lost(0, HEIR, "was killed")
    assert (reload.step(), reload.phase) == ([], SwapPhase.OVER)


def test_worker_slots_that_come_and_worker_slots_that_go() -> None:
    new, gone = SlotChange("worker 1", "cpu", old=False), SlotChange("worker 2", "cpu", new=False)
    reload = WorkerSwap([SlotChange("worker 0", "cpu"), new, gone])
    serve(reload, 0)
    reload.warm(1, HEIR)
    assert acts(reload) == [
        (SwapAction.TAKE_OVER, 1, HEIR), (SwapAction.COMMIT, -1, HEIR), (SwapAction.RELEASE, 2, OLD),
    ]  # fmt: skip
    back = WorkerSwap([new, SlotChange("worker 0", "cpu"), gone])
    serve(back, 0)
    back.lost(1, HEIR, "failed")
    assert acts(back) == [(SwapAction.RELEASE, 0, HEIR)], "nobody was there before it"
    back.idle(0, HEIR)
    assert acts(back) == [(SwapAction.END, 0, HEIR)]
    back.lost(0, HEIR, "was killed")
    back.step()
    assert (back.phase, back.at(2, OLD)) == (SwapPhase.OVER, WorkerStage.DUTY)


def test_an_entry_that_leaves_is_served_until_it_is_empty() -> None:
    """The heir is of another entry than the old worker: each has a seat of its own."""
    comes = SlotChange("replacement of worker 0", "cpu", old=False)
    leaves = SlotChange("worker 0", "cpu", new=False, moves=True)
    reload = WorkerSwap([comes, leaves])
    reload.lanes_open = False
    serve(reload, 0)
    assert (reload.phase, acts(reload)) == (SwapPhase.AHEAD, []), "the lanes are not open"
    reload.lanes_open = True
    assert acts(reload) == [(SwapAction.COMMIT, -1, HEIR)]
    assert reload.served, "nobody waits for what is left of the old one"
    assert not reload.owns(1, OLD), "if it dies, another is loaded in its place"
    reload.emptied(1)
    assert acts(reload) == [(SwapAction.RELEASE, 1, OLD)]
    reload.idle(1, OLD)
    assert acts(reload) == [(SwapAction.END, 1, OLD)]
    reload.lost(1, OLD, "was killed")
    assert (reload.step(), reload.phase) == ([], SwapPhase.OVER)

    back = WorkerSwap([comes, leaves])
    back.step()
    back.lost(0, HEIR, "failed")
    assert (back.step(), back.phase, back.at(1, OLD)) == ([], SwapPhase.OVER, WorkerStage.DUTY)


def test_models_that_only_leave_are_committed_at_once() -> None:
    reload = WorkerSwap([SlotChange("worker 0", "cpu", new=False, moves=True)])
    assert acts(reload) == [(SwapAction.COMMIT, -1, HEIR)]
    assert (reload.served, reload.phase) == (True, SwapPhase.COMMITTED)


def test_after_the_commit_heirs_are_as_any_worker() -> None:
    reload = WorkerSwap([SlotChange("worker 0", "cpu")])
    serve(reload, 0)
    assert reload.phase is SwapPhase.COMMITTED
    assert not reload.owns(0, HEIR)
    assert reload.owns(0, OLD)
    reload.fail("too late")
    assert (reload.phase, reload.failure) == (SwapPhase.COMMITTED, "")


# -- whatever happens -----------------------------------------------------------------------


class Floor:
    """Workers that do as they are told, and a chance that may kill any of them.

    duty: who gets rows in each seat, at most one. rows: who may have some in flight.
    """

    def __init__(self, changes: list[SlotChange]) -> None:
        self.reload = WorkerSwap(changes)
        self.reload.lanes_open = not any(change.moves for change in changes)
        self.needed = {i for i, change in enumerate(changes) if change.moves}
        self.changes = changes
        self.duty: list[SwapParty | None] = [OLD if change.old else None for change in changes]
        self.alive = {(i, OLD) for i, change in enumerate(changes) if change.old}
        self.loading: set[tuple[int, SwapParty]] = set()
        self.rows = set(self.alive)
        self.ending: set[tuple[int, SwapParty]] = set()
        self.vacant: set[int] = set()
        self.committed = False

    def obey(self) -> None:
        while orders := self.reload.step():
            for order in orders:
                self.carry_out(order)
        for i, change in enumerate(self.changes):
            where = [self.reload.at(i, who) for who in SwapParty].count(WorkerStage.DUTY)
            assert where <= 1, "two in one seat"
            assert change.old or change.new

    def carry_out(self, order: SwapOrder) -> None:
        one = (order.worker_slot, order.who)
        other = (order.worker_slot, OLD if order.who is HEIR else HEIR)
        if order.act is SwapAction.START:
            assert one not in self.alive
            assert self.committed is False
            places = [self.changes[i].place for i, who in self.loading if who is HEIR]
            assert order.who is OLD or self.changes[order.worker_slot].place not in places
            self.alive.add(one)
            self.loading.add(one)
        elif order.act is SwapAction.TAKE_OVER:
            assert one in self.alive - self.loading - self.ending, "warm, and to stay"
            assert self.duty[order.worker_slot] is not order.who
            self.duty[order.worker_slot] = order.who
            self.rows.add(one)
        elif order.act is SwapAction.RELEASE:
            assert self.duty[order.worker_slot] is order.who
            assert order.worker_slot not in self.needed
            self.duty[order.worker_slot] = None
        elif order.act is SwapAction.VACATE:
            assert one not in self.alive
            self.duty[order.worker_slot] = OLD  # whom the seat's usual business brings back
            self.alive.add(one)
            self.vacant.add(order.worker_slot)
        elif order.act is SwapAction.END:
            assert one in self.alive
            assert one in self.loading or one not in self.rows, "it still has rows"
            assert self.duty[order.worker_slot] is not order.who
            assert self.committed or order.who is HEIR, "a standby ends before the commit"
            self.ending.add(one)
        else:
            assert not self.committed
            assert self.reload.lanes_open
            assert all(self.duty[i] is HEIR for i, c in enumerate(self.changes) if c.new)
            self.committed = True
        assert other in self.alive or order.act is not SwapAction.END or self.committed or (
            not self.changes[order.worker_slot].old or order.worker_slot in self.vacant
        ), "nobody is left in the seat"  # fmt: skip

    def events(self) -> list[tuple[str, tuple[int, SwapParty]]]:
        """What may happen next."""
        found = [("gone", one) for one in self.ending]
        found += [("warm", one) for one in self.loading - self.ending]
        found += [("idle", one) for one in self.rows if self.duty[one[0]] is not one[1]]
        if self.committed:
            found += [("emptied", (i, OLD)) for i in self.needed]
        elif not self.reload.lanes_open:
            found.append(("opened", (0, OLD)))
        return sorted(found, key=str)

    def happens(self, what: str, one: tuple[int, SwapParty]) -> None:
        if what == "opened":
            self.reload.lanes_open = True
        elif what == "emptied":
            self.needed.discard(one[0])
            self.reload.emptied(one[0])
        elif what == "warm":
            self.loading.discard(one)
            self.reload.warm(*one)
        elif what == "idle":
            self.rows.discard(one)
            self.reload.idle(*one)
        else:
            owned = self.reload.owns(*one)
            self.ending.discard(one)
            self.loading.discard(one)
            if owned:
                self.alive.discard(one)
                self.rows.discard(one)
                if self.duty[one[0]] is one[1]:
                    self.duty[one[0]] = None
                self.reload.lost(*one, "was killed")
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
    .map(lambda change: replace(change, moves=change.moves and not change.new)),
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
        if floor.reload.phase is SwapPhase.OVER:
            break
        if kills and chance.random() < 0.3 and floor.alive:
            kills -= 1
            victim = chance.choice(sorted(floor.alive, key=str))
            floor.happens("killed", victim)
            continue
        events = floor.events()
        assert events, "it waits for nothing"
        floor.happens(*chance.choice(events))
    assert floor.reload.phase is SwapPhase.OVER
    done = not floor.reload.failure
    assert floor.committed == done
    for i, change in enumerate(changes):
        expected = HEIR if done and change.new else OLD if not done and change.old else None
        assert floor.duty[i] is expected
    staying = {(i, who) for i, who in enumerate(floor.duty) if who is not None}
    assert {one for one in floor.alive if not floor.reload.owns(*one)} == staying
