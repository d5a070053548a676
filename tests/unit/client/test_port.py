"""The client's side of a lane: what is refused and why, and how rows are published."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchpool.client.port import Port
from batchpool.core.errors import (
    Draining,
    InternalError,
    NotReady,
    Overloaded,
    Retryable,
    TooLarge,
)
from batchpool.core.lifecycle import Gate, State
from batchpool.core.queue import Field
from batchpool.core.tensors import Rows, check_rows
from tests.unit.client.ports import LATER, NOW, Pool, S, answer, new_port, rows_of, send
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import MIXED

# -- refusals -------------------------------------------------------------------------------


def test_more_rows_than_the_lane_can_ever_hold() -> None:
    port = new_port(10)
    text = "10 rows at once; model 'm' takes at most 9 here"
    with pytest.raises(TooLarge, match=re.escape(text)):
        port.check(10)
    port.check(9)
    assert port.lane.refused.get() == 0, "no matter how often it is tried, it never fits"


@pytest.mark.parametrize(
    ("gate", "kind"),
    [(Gate.CLOSED, NotReady), (Gate.DRAINING, Draining), (Gate.BROKEN, InternalError)],
)
def test_the_gate_says_why(gate: Gate, kind: type[Exception]) -> None:
    port = new_port(gate=gate)
    for n in (1, 9):
        with pytest.raises(kind) as caught:
            port.check(n)
        assert type(caught.value) is kind
    with pytest.raises(TooLarge):
        port.check(10)
    with pytest.raises(kind):
        port.submit(rows_of(1), NOW, LATER)
    assert port.map.claimed == 0
    port.lane.gate.set(Gate.OPEN)
    port.check(9)


def test_no_worker_serves_the_model() -> None:
    serving = False
    port = new_port(serving=lambda: serving)
    with pytest.raises(NotReady, match="no worker serves model 'm' now"):
        port.check(1)
    serving = True
    port.check(1)


def test_overloaded_from_the_watermark_until_eighty_percent() -> None:
    port = new_port(10)
    pool = Pool(port)
    sent = [send(port, first=i) for i in range(9)]
    assert port.lane.claimed.get() == 9
    assert not port.may_claim(1)
    for times in (1, 2, 3):
        text = "model 'm' is overloaded: 9 of 10 slots are in use"
        with pytest.raises(Overloaded, match=text):
            port.submit(rows_of(1), NOW, LATER)
        assert port.lane.refused.get() == times
    pool.finish_all()
    finished = port.reap(NOW)
    assert finished == sent
    with pytest.raises(Overloaded):
        port.check(1)  # an answer that nobody took yet still holds its slot
    port.result(finished.pop())
    with pytest.raises(Overloaded, match="8 of 10"):
        port.check(1)
    port.result(finished.pop())
    assert port.may_claim(2)
    port.check(1)
    assert port.lane.claimed.get() == port.map.claimed == 7


def test_retry_after_comes_from_the_measured_pace() -> None:
    port = new_port(100)
    pool = Pool(port)
    refused: Retryable
    for i in range(90):
        send(port, first=i)
    with pytest.raises(Overloaded) as caught:
        port.check(1)
    refused = caught.value
    assert refused.retry_after_ms == 1000, "nothing is measured yet"
    # 20 rows a second: ten of them each half second.
    pool.admit()
    for half in range(4):
        pool.finish(*pool.rows[:10])
        del pool.rows[:10]
        for pending in port.reap(NOW + half * S // 2):
            port.result(pending)
    assert port.pace.rows_per_s() == pytest.approx(20)
    for i in range(40):
        send(port, first=i)
    with pytest.raises(Overloaded) as caught:
        port.check(1)
    refused = caught.value
    # 90 claimed; one more row fits when 79 are: below 80. 11 rows at 20 a second.
    assert refused.retry_after_ms == 550
    assert refused.headers() == {"Retry-After": "1"}
    with pytest.raises(Overloaded) as caught:
        port.check(50)
    assert caught.value.retry_after_ms == 3000
    assert caught.value.headers() == {"Retry-After": "3"}


# -- submit ---------------------------------------------------------------------------------


def test_nothing_is_published_before_flush_and_one_group_then() -> None:
    port = new_port(16, watermark=1.0)
    pool = Pool(port)
    for i in range(12):
        port.submit(rows_of(1, i), NOW + i, LATER + i, priority=i, flow=2**32 - 1)
    assert pool.admit().shape[1] == 0
    assert port.flush() == 12
    assert port.flush() == 0
    rows = pool.admit()
    assert rows[Field.SLOT].tolist() == list(range(12))
    assert rows[Field.SEQUENCE].tolist() == [1] * 12
    assert rows[Field.SUBMIT_NS].tolist() == [NOW + i for i in range(12)]
    assert rows[Field.DEADLINE_NS].tolist() == [LATER + i for i in range(12)]
    assert rows[Field.PRIORITY].tolist() == list(range(12))
    assert rows[Field.FLOW].tolist() == [2**32 - 1] * 12
    assert rows[Field.ATTEMPT].tolist() == [0] * 12


@pytest.mark.parametrize("n", [1, 2, 8, 9, 14])
def test_a_request_of_n_rows_and_its_answer(n: int) -> None:
    port = new_port(16)
    pool = Pool(port)
    for again in range(5):  # round the ring and the slots
        pending = send(port, n, first=100 * again)
        assert port.in_flight() == [pending]
        assert port.reap(NOW) == []
        pool.finish_all()
        assert port.reap(NOW) == [pending]
        assert pending.tag == 100 * again
        assert port.result(pending)["y"].tolist() == answer(n, 100 * again)
        assert port.in_flight() == []
        assert port.map.claimed == port.lane.claimed.get() == 0
        assert (port.lane.state == State.FREE).all()


def test_scattered_slots_keep_the_order_of_the_rows() -> None:
    port = new_port(8, watermark=1.0)
    pool = Pool(port)
    singles = [send(port, 1, i) for i in range(8)]
    pool.finish_all()
    port.reap(NOW)
    for i in (6, 3, 1):
        port.result(singles[i])
    pending = send(port, 3, 50)
    assert list(pending.slots) == [1, 3, 6]
    pool.finish_all()
    assert port.reap(NOW) == [pending]
    assert port.result(pending)["y"].tolist() == answer(3, 50)


def test_parameters_and_every_kind_of_tensor_reach_the_slots() -> None:
    port = Port(new_lane(MIXED, 8))
    rows = check_rows(
        MIXED,
        {
            "x": np.ones((2, 2, 3), np.float32),
            "ids": np.array([[1, 2], [3, 4]]),
            "text": ["é", b"\0"],
        },
        {"scale": 0.5},
    )
    pending = port.submit(rows, NOW, LATER)
    theirs = other_side(port.lane)
    assert theirs.inputs["x"].load(pending.where).tolist() == np.ones((2, 2, 3)).tolist()
    assert theirs.inputs["ids"].load(pending.where).tolist() == [[1, 2], [3, 4]]
    assert theirs.inputs["text"].load(pending.where).tolist() == ["é".encode(), b"\0"]
    assert theirs.parameters["top_k"].load(pending.where).tolist() == [5, 5]
    assert theirs.parameters["scale"].load(pending.where).tolist() == [0.5, 0.5]


class Breaks:
    shape = (1, 4)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the buffer is gone")


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 2**32},
        {"priority": -1},
        {"flow": 2**32},
        {"flow": -1},
        {"flow": "address"},
        {"deadline_ns": 0.5},
        {"deadline_ns": -(2**63) - 1},
        {"now_ns": 2**63},
        {"rows": Rows(1, {"x": Breaks()}, {})},  # type: ignore[dict-item]
        {"rows": Rows(1, {"x": np.zeros((1, 5))}, {})},
    ],
)
def test_a_submit_that_raises_claims_nothing_and_publishes_nothing(wrong: dict[str, Any]) -> None:
    port = new_port()
    pool = Pool(port)
    with pytest.raises((TypeError, ValueError, OverflowError, RuntimeError)):
        port.submit(**{"rows": rows_of(1), "now_ns": NOW, "deadline_ns": LATER, **wrong})
    assert port.map.claimed == port.lane.claimed.get() == 0
    assert port.flush() == 0
    assert port.in_flight() == []
    assert (port.lane.state == State.FREE).all()
    pending = send(port)
    pool.finish_all()
    assert port.reap(NOW) == [pending]


def test_a_deadline_beyond_all_time_is_the_last_one() -> None:
    port = new_port()
    port.submit(rows_of(1), NOW, NOW + 10**30)
    assert port.next_deadline_ns() == 2**63 - 1
    assert port.lane.deadline_ns[0] == 2**63 - 1
