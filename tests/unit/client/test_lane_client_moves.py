"""A lane that moves away under its client: no more claims, and every row that was sent answered."""

from __future__ import annotations

import pytest

from batchpool.client.lane_client import LaneClient
from batchpool.client.lane_set import LaneSet
from batchpool.core.errors import Moved, NotReady
from batchpool.core.layout.states import LaneGate, SlotState
from tests.unit.client.lane_clients import LATER, NOW, Pool, answer, new_port, rows_of, send
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE


def moving_port() -> tuple[LaneClient, list[str]]:
    heard: list[str] = []
    return new_port(moved=lambda: heard.append("moved")), heard


@pytest.mark.parametrize("gate", [LaneGate.MOVED, LaneGate.GONE])
def test_a_claim_meets_the_gate(gate: LaneGate) -> None:
    port, heard = moving_port()
    port.lane.gate.set(int(gate))
    for _ in range(2):
        with pytest.raises(Moved, match="'m' was replaced just now"):
            port.submit(rows_of(1), NOW, LATER)
    assert (heard, port.has_moved, port.map.claimed) == (["moved"], True, 0)


def test_what_was_claimed_is_answered_there() -> None:
    port, heard = moving_port()
    pool = Pool(port)
    sent, late = send(port, 2), port.submit(rows_of(1, 9), NOW, LATER, tag=9)
    pool.lane.shut(LaneGate.MOVED)
    assert port.reap(NOW) == []
    assert (heard, pool.rings) == (["moved"], 1)
    port.flush()  # what was claimed before is published after
    pool.finish_all()
    assert port.reap(NOW) == [sent, late]
    assert port.result(sent)["y"].tolist() == answer(2)
    assert port.result(late)["y"].tolist() == answer(1, 9)
    assert port.map.claimed == 0


def test_when_the_batcher_has_left_what_is_not_done_was_not_run() -> None:
    port, _ = moving_port()
    pool = Pool(port)
    done, published = send(port, 1), send(port, 2, 5)
    pool.admit()
    pool.finish(*[ticket for ticket in pool.rows if ticket[0] in done.slots])
    unpublished = port.submit(rows_of(1), NOW, LATER)
    port.abandon(send(port, 1, 7))
    pool.lane.shut(LaneGate.MOVED)
    pool.lane.shut(LaneGate.GONE)
    assert port.reap(NOW) == [done, published, unpublished]
    assert port.result(done)["y"].tolist() == answer(1)
    for pending in (published, unpublished):
        with pytest.raises(NotReady, match="replaced before this row was run"):
            port.result(pending)
    assert port.map.claimed == 0
    assert (port.lane.state == SlotState.FREE).all()
    assert port.flush() == 0, "nobody would take it"


def test_a_port_on_a_lane_that_has_moved_already_knows() -> None:
    lane = new_lane(AFFINE, 4)
    lane.gate.set(int(LaneGate.MOVED))
    heard: list[int] = []
    assert LaneClient(lane, moved=lambda: heard.append(1)).has_moved
    assert heard == [1]


def test_the_ports_of_a_session_part_when_nothing_is_left_on_the_old_one() -> None:
    ports = LaneSet()
    first, other, second = (new_port(moved=ports.note_move) for _ in range(3))
    ports["affine"], ports["other"] = first, other
    pool = Pool(first)
    sent = send(first, 1)
    assert ports.part() == []
    pool.lane.shut(LaneGate.MOVED)
    assert first.reap(NOW) == []
    assert ports.moving
    assert ports.part() == [], "a row is under way"
    assert (dict(ports), ports.driven) == ({"other": other}, [first, other])
    ports["affine"] = second
    pool.finish_all()
    assert first.reap(NOW) == [sent]
    first.result(sent)
    assert ports.part() == [first]
    assert (ports.driven, ports.moving) == ([other, second], False)


def test_a_port_that_is_replaced_is_driven_until_its_gate_says_so() -> None:
    ports = LaneSet()
    first, second = (new_port(moved=ports.note_move) for _ in range(2))
    ports["affine"] = first
    ports["affine"] = second
    assert ports.part() == []
    assert ports.driven == [first, second]
    Pool(first).lane.shut(LaneGate.MOVED)
    first.reap(NOW)
    assert (ports.part(), dict(ports)) == ([first], {"affine": second})
