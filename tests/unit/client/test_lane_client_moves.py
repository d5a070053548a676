"""A lane that moves away under its client: no more claims, and every row that was sent answered."""

from __future__ import annotations

import pytest

from batchpool.client.lane_client import LaneClient
from batchpool.client.lane_set import LaneSet
from batchpool.core.errors import Moved, NotReady
from batchpool.core.layout.states import LaneGate, SlotState
from tests.unit.client.lane_clients import LATER, NOW, Pool, answer, new_lane_client, rows_of, send
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE


def moving_lane_client() -> tuple[LaneClient, list[str]]:
    heard: list[str] = []
    return new_lane_client(moved=lambda: heard.append("moved")), heard


@pytest.mark.parametrize("gate", [LaneGate.MOVED, LaneGate.GONE])
def test_a_claim_meets_the_gate(gate: LaneGate) -> None:
    lane_client, heard = moving_lane_client()
    lane_client.lane.gate.set(int(gate))
    for _ in range(2):
        with pytest.raises(Moved, match="'m' was replaced just now"):
            lane_client.submit(rows_of(1), NOW, LATER)
    assert (heard, lane_client.has_moved, lane_client.allocator.claimed) == (["moved"], True, 0)


def test_what_was_claimed_is_answered_there() -> None:
    lane_client, heard = moving_lane_client()
    pool = Pool(lane_client)
    sent, late = send(lane_client, 2), lane_client.submit(rows_of(1, 9), NOW, LATER, tag=9)
    pool.lane.close_gate(LaneGate.MOVED)
    assert lane_client.reap(NOW) == []
    assert (heard, pool.rings) == (["moved"], 1)
    lane_client.flush()  # what was claimed before is published after
    pool.finish_all()
    assert lane_client.reap(NOW) == [sent, late]
    assert lane_client.result(sent)["y"].tolist() == answer(2)
    assert lane_client.result(late)["y"].tolist() == answer(1, 9)
    assert lane_client.allocator.claimed == 0


def test_when_the_batcher_has_left_what_is_not_done_was_not_run() -> None:
    lane_client, _ = moving_lane_client()
    pool = Pool(lane_client)
    done, published = send(lane_client, 1), send(lane_client, 2, 5)
    pool.admit()
    pool.finish(*[ticket for ticket in pool.rows if ticket[0] in done.slots])
    unpublished = lane_client.submit(rows_of(1), NOW, LATER)
    lane_client.abandon(send(lane_client, 1, 7))
    pool.lane.close_gate(LaneGate.MOVED)
    pool.lane.close_gate(LaneGate.GONE)
    assert lane_client.reap(NOW) == [done, published, unpublished]
    assert lane_client.result(done)["y"].tolist() == answer(1)
    for pending in (published, unpublished):
        with pytest.raises(NotReady, match="replaced before this row was run"):
            lane_client.result(pending)
    assert lane_client.allocator.claimed == 0
    assert (lane_client.lane.state == SlotState.FREE).all()
    assert lane_client.flush() == 0, "nobody would take it"


def test_a_lane_client_on_a_lane_that_has_moved_already_knows() -> None:
    lane = new_lane(AFFINE, 4)
    lane.gate.set(int(LaneGate.MOVED))
    heard: list[int] = []
    assert LaneClient(lane, moved=lambda: heard.append(1)).has_moved
    assert heard == [1]


def test_the_lane_clients_of_a_session_part_when_nothing_is_left_on_the_old_one() -> None:
    lane_set = LaneSet()
    first, other, second = (new_lane_client(moved=lane_set.note_move) for _ in range(3))
    lane_set["affine"], lane_set["other"] = first, other
    pool = Pool(first)
    sent = send(first, 1)
    assert lane_set.part() == []
    pool.lane.close_gate(LaneGate.MOVED)
    assert first.reap(NOW) == []
    assert lane_set.moving
    assert lane_set.part() == [], "a row is under way"
    assert (dict(lane_set), lane_set.driven) == ({"other": other}, [first, other])
    lane_set["affine"] = second
    pool.finish_all()
    assert first.reap(NOW) == [sent]
    first.result(sent)
    assert lane_set.part() == [first]
    assert (lane_set.driven, lane_set.moving) == ([other, second], False)


def test_a_lane_client_that_is_replaced_is_driven_until_its_gate_says_so() -> None:
    lane_set = LaneSet()
    first, second = (new_lane_client(moved=lane_set.note_move) for _ in range(2))
    lane_set["affine"] = first
    lane_set["affine"] = second
    assert lane_set.part() == []
    assert lane_set.driven == [first, second]
    Pool(first).lane.close_gate(LaneGate.MOVED)
    first.reap(NOW)
    assert (lane_set.part(), dict(lane_set)) == ([first], {"affine": second})
