"""The client's side of a lane: what is refused and why, and how rows are published."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import (
    Draining,
    InternalError,
    ModelError,
    NotReady,
    Overloaded,
    Retryable,
    Status,
    TooLarge,
)
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.rows import Rows, check_rows
from tests.unit.client.lane_clients import (
    LATER,
    NOW,
    Pool,
    S,
    answer,
    new_lane_client,
    rows_of,
    send,
)
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import MIXED

# -- refusals -------------------------------------------------------------------------------


def test_more_rows_than_the_lane_can_ever_hold() -> None:
    lane_client = new_lane_client(10)
    text = "10 rows at once; model 'm' takes at most 9 here"
    with pytest.raises(TooLarge, match=re.escape(text)):
        lane_client.check(10, NOW)
    lane_client.check(9, NOW)
    assert lane_client.lane.refused.get() == 0, "no matter how often it is tried, it never fits"


@pytest.mark.parametrize(
    ("gate", "kind"),
    [(LaneGate.CLOSED, NotReady), (LaneGate.DRAINING, Draining), (LaneGate.BROKEN, InternalError)],
)
def test_the_gate_says_why(gate: LaneGate, kind: type[Exception]) -> None:
    lane_client = new_lane_client(gate=gate)
    for n in (1, 9):
        with pytest.raises(kind) as caught:
            lane_client.check(n, NOW)
        assert type(caught.value) is kind
    with pytest.raises(TooLarge):
        lane_client.check(10, NOW)
    with pytest.raises(kind):
        lane_client.submit(rows_of(1), NOW, LATER)
    assert lane_client.allocator.claimed == 0
    lane_client.lane.gate.set(LaneGate.OPEN)
    lane_client.check(9, NOW)


def test_no_worker_serves_the_model() -> None:
    serving = False
    lane_client = new_lane_client(accepting=lambda: serving)
    with pytest.raises(NotReady, match="no worker serves model 'm' now"):
        lane_client.check(1, NOW)
    serving = True
    lane_client.check(1, NOW)


def test_overloaded_from_the_watermark_until_eighty_percent() -> None:
    lane_client = new_lane_client(10)
    pool = Pool(lane_client)
    sent = [send(lane_client, first=i) for i in range(9)]
    assert lane_client.lane.claimed.get() == 9
    assert not lane_client.may_claim(1)
    for times in (1, 2, 3):
        text = "model 'm' is overloaded: 9 of 10 slots are in use"
        with pytest.raises(Overloaded, match=text):
            lane_client.submit(rows_of(1), NOW, LATER)
        assert lane_client.lane.refused.get() == times
    pool.finish_all()
    finished = lane_client.reap(NOW)
    assert finished == sent
    with pytest.raises(Overloaded):
        lane_client.check(1, NOW)  # an answer that nobody took yet still holds its slot
    lane_client.result(finished.pop())
    with pytest.raises(Overloaded, match="8 of 10"):
        lane_client.check(1, NOW)
    lane_client.result(finished.pop())
    assert lane_client.may_claim(2)
    lane_client.check(1, NOW)
    assert lane_client.lane.claimed.get() == lane_client.allocator.claimed == 7


def test_retry_after_comes_from_the_measured_drain_rate() -> None:
    lane_client = new_lane_client(100)
    pool = Pool(lane_client)
    refused: Retryable
    for i in range(90):
        send(lane_client, first=i)
    with pytest.raises(Overloaded) as caught:
        lane_client.check(1, NOW)
    refused = caught.value
    assert refused.retry_after_ms == 1000, "nothing is measured yet"
    # 20 rows a second: ten of them each half second.
    pool.admit()
    for half in range(4):
        pool.finish(*pool.rows[:10])
        del pool.rows[:10]
        for pending in lane_client.reap(NOW + half * S // 2):
            lane_client.result(pending)
    assert lane_client.drain_rate.rows_per_s() == pytest.approx(20)
    for i in range(40):
        send(lane_client, first=i)
    with pytest.raises(Overloaded) as caught:
        lane_client.check(1, NOW)
    refused = caught.value
    # 90 claimed; one more row fits when 79 are: below 80. 11 rows at 20 a second.
    assert refused.retry_after_ms == 550
    assert refused.headers() == {"Retry-After": "1"}
    # 50 more fit when 40 are.
    with pytest.raises(Overloaded) as caught:
        lane_client.check(50, NOW)
    assert caught.value.retry_after_ms == 2500
    assert caught.value.headers() == {"Retry-After": "3"}
    # A flow with 18 of the 90 slots: for three of its own to be free, 15 in all must be.
    for slot in range(18):
        lane_client.allocator.held[7] = slot + 1
    lane_client.allocator.share = 16
    with pytest.raises(Overloaded, match="this flow holds 18 of 100 slots") as caught:
        lane_client.check(1, NOW, flow=7)
    assert caught.value.retry_after_ms == 750


def test_not_ready_lasts_as_long_again() -> None:
    serving = False
    lane_client = new_lane_client(accepting=lambda: serving)

    def wait_ms(now_ns: int) -> int:
        with pytest.raises(NotReady) as caught:
            lane_client.check(1, now_ns)
        return caught.value.retry_after_ms

    assert [wait_ms(NOW + s * S) for s in (0, 1, 5, 29, 60)] == [1000, 1000, 5000, 29_000, 30_000]
    lane_client.lane.gate.set(LaneGate.CLOSED)
    assert wait_ms(NOW + 61 * S) == 30_000
    lane_client.lane.gate.set(LaneGate.OPEN)
    serving = True
    lane_client.check(1, NOW + 62 * S)
    serving = False
    assert wait_ms(NOW + 63 * S) == 1000, "this is another outage"
    with pytest.raises(NotReady):
        lane_client.check_gate(NOW + 64 * S)
    assert wait_ms(NOW + 67 * S) == 4000


# -- flows and priorities -------------------------------------------------------------------

BULK, OTHER = 111, 222


def claim(
    lane_client: LaneClient, n: int, flow: int, now_ns: int = NOW, priority: int = 0
) -> PendingRequest:
    pending = lane_client.submit(rows_of(n), now_ns, now_ns + 30 * S, flow=flow, priority=priority)
    lane_client.flush()
    return pending


def test_a_flow_at_its_share_is_refused_and_nobody_else() -> None:
    lane_client = new_lane_client(20)
    claim(lane_client, 1, OTHER)
    for _ in range(9):
        claim(lane_client, 1, BULK)
    text = (
        "model 'm' is overloaded: this flow holds 9 of 20 slots, and half (9) is its share"
        " while others are active"
    )
    for times in (1, 2):
        with pytest.raises(Overloaded, match=re.escape(text)) as caught:
            claim(lane_client, 1, BULK)
        assert caught.value.retry_after_ms == 1000
        assert lane_client.lane.refused_share.get() == times
    for _ in range(8):
        claim(lane_client, 1, OTHER)
    assert lane_client.allocator.held == {BULK: 9, OTHER: 9}
    assert lane_client.allocator.claimed == lane_client.lane.claimed.get() == 18


def test_alone_a_flow_has_the_lane_to_itself() -> None:
    lane_client = new_lane_client(20)
    pool = Pool(lane_client)
    other = claim(lane_client, 1, OTHER)
    pool.finish_all()
    assert lane_client.reap(NOW) == [other]
    lane_client.result(other)
    for _ in range(9):
        claim(lane_client, 1, BULK)
    with pytest.raises(Overloaded, match="this flow holds 9 of 20"):
        claim(lane_client, 1, BULK, NOW + S)
    for _ in range(9):
        claim(lane_client, 1, BULK, NOW + S + 1)
    with pytest.raises(Overloaded, match="18 of 20 slots are in use"):
        claim(lane_client, 1, BULK, NOW + S + 1)


@pytest.mark.parametrize("end", ["result", "error", "release", "abandon", "expire", "takeover"])
@pytest.mark.parametrize("n", [1, 3])
def test_slots_count_for_their_flow_until_they_are_free(end: str, n: int) -> None:
    lane_client = new_lane_client(20)
    pool = Pool(lane_client)
    pending = claim(lane_client, n, BULK)
    claim(lane_client, 1, OTHER)
    if end == "abandon":
        lane_client.abandon(pending)
    if end == "expire":
        assert pending in lane_client.expire(NOW + 30 * S)
    assert lane_client.allocator.held == {BULK: n, OTHER: 1}, "abandoned ones too"
    pool.admit()
    if end == "takeover":
        lane_client.abandon(pending)
        lane_client.lane.state[list(pending.slots)] = SlotState.DONE
        lane_client.lane.generation.set(1)
    else:
        wrong = Status.MODEL_ERROR if end == "error" else Status.OK
        pool.finish(*pool.rows[:n], status=wrong)
    finished = lane_client.reap(NOW)
    if end in ("abandon", "expire", "takeover"):
        assert finished == []
    else:
        assert lane_client.allocator.held == {BULK: n, OTHER: 1}, "an answer that nobody took yet"
        if end == "error":
            with pytest.raises(ModelError):
                lane_client.result(pending)
        else:
            (lane_client.release if end == "release" else lane_client.result)(pending)
    assert lane_client.allocator.held == {OTHER: 1}
    assert lane_client.allocator.claimed == 1


def test_a_raised_priority_uses_the_last_tenth() -> None:
    lane_client = new_lane_client(20)
    claim(lane_client, 18, BULK)
    for priority in (0, 128, 255):
        with pytest.raises(Overloaded, match="18 of 20 slots are in use"):
            claim(lane_client, 1, OTHER, priority=priority)
        with pytest.raises(Overloaded):
            lane_client.check(1, NOW, flow=OTHER, priority=priority)
        assert not lane_client.may_claim(1, priority)
    assert lane_client.may_claim(2, 127)
    lane_client.check(2, NOW, flow=OTHER, priority=1)
    claim(lane_client, 1, OTHER, priority=127)
    claim(lane_client, 1, OTHER, priority=1)
    assert not lane_client.may_claim(1, 1)
    with pytest.raises(Overloaded, match="20 of 20 slots are in use"):
        lane_client.check(1, NOW, flow=OTHER, priority=1)


@pytest.mark.parametrize("priority", [0, 1])
def test_what_is_too_large_is_so_at_any_priority(priority: int) -> None:
    with pytest.raises(TooLarge):
        new_lane_client(20).check(19, NOW, priority=priority)


# -- submit ---------------------------------------------------------------------------------


def test_nothing_is_published_before_flush_and_one_group_then() -> None:
    lane_client = new_lane_client(16, watermark=1.0)
    pool = Pool(lane_client)
    for i in range(12):
        lane_client.submit(rows_of(1, i), NOW + i, LATER + i, priority=i, flow=2**32 - 1)
    assert pool.admit().shape[1] == 0
    assert lane_client.flush() == 12
    assert lane_client.flush() == 0
    rows = pool.admit()
    assert rows[QueueColumn.SLOT].tolist() == list(range(12))
    assert rows[QueueColumn.SEQUENCE].tolist() == [1] * 12
    assert rows[QueueColumn.SUBMIT_NS].tolist() == [NOW + i for i in range(12)]
    assert rows[QueueColumn.DEADLINE_NS].tolist() == [LATER + i for i in range(12)]
    assert rows[QueueColumn.PRIORITY].tolist() == list(range(12))
    assert rows[QueueColumn.FLOW].tolist() == [2**32 - 1] * 12
    assert rows[QueueColumn.ATTEMPT].tolist() == [0] * 12


@pytest.mark.parametrize("n", [1, 2, 8, 9, 14])
def test_a_request_of_n_rows_and_its_answer(n: int) -> None:
    lane_client = new_lane_client(16)
    pool = Pool(lane_client)
    for again in range(5):  # round the ring and the slots
        pending = send(lane_client, n, first=100 * again)
        assert lane_client.in_flight() == [pending]
        assert lane_client.reap(NOW) == []
        pool.finish_all()
        assert lane_client.reap(NOW) == [pending]
        assert pending.tag == 100 * again
        assert lane_client.result(pending)["y"].tolist() == answer(n, 100 * again)
        assert lane_client.in_flight() == []
        assert lane_client.allocator.claimed == lane_client.lane.claimed.get() == 0
        assert (lane_client.lane.state == SlotState.FREE).all()


def test_scattered_slots_keep_the_order_of_the_rows() -> None:
    lane_client = new_lane_client(8, watermark=1.0)
    pool = Pool(lane_client)
    singles = [send(lane_client, 1, i) for i in range(8)]
    pool.finish_all()
    lane_client.reap(NOW)
    for i in (6, 3, 1):
        lane_client.result(singles[i])
    pending = send(lane_client, 3, 50)
    assert list(pending.slots) == [1, 3, 6]
    pool.finish_all()
    assert lane_client.reap(NOW) == [pending]
    assert lane_client.result(pending)["y"].tolist() == answer(3, 50)


def test_parameters_and_every_kind_of_tensor_reach_the_slots() -> None:
    lane_client = LaneClient(new_lane(MIXED, 8))
    rows = check_rows(
        MIXED,
        {
            "x": np.ones((2, 2, 3), np.float32),
            "ids": np.array([[1, 2], [3, 4]]),
            "text": ["é", b"\0"],
        },
        {"scale": 0.5},
    )
    pending = lane_client.submit(rows, NOW, LATER)
    theirs = other_side(lane_client.lane)
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
        {"flow": 2**64},
        {"flow": "address"},
        {"deadline_ns": 0.5},
        {"deadline_ns": -(2**63) - 1},
        {"now_ns": 2**63},
        {"rows": Rows(1, {"x": Breaks()}, {})},  # type: ignore[dict-item]
        {"rows": Rows(1, {"x": np.zeros((1, 5))}, {})},
    ],
)
def test_a_submit_that_raises_claims_nothing_and_publishes_nothing(wrong: dict[str, Any]) -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    with pytest.raises((TypeError, ValueError, OverflowError, RuntimeError)):
        lane_client.submit(**{"rows": rows_of(1), "now_ns": NOW, "deadline_ns": LATER, **wrong})
    assert lane_client.allocator.claimed == lane_client.lane.claimed.get() == 0
    assert lane_client.flush() == 0
    assert lane_client.in_flight() == []
    assert (lane_client.lane.state == SlotState.FREE).all()
    pending = send(lane_client)
    pool.finish_all()
    assert lane_client.reap(NOW) == [pending]


def test_a_deadline_beyond_all_time_is_the_last_one() -> None:
    lane_client = new_lane_client()
    lane_client.submit(rows_of(1), NOW, NOW + 10**30)
    assert lane_client.next_deadline_ns() == 2**63 - 1
    assert lane_client.lane.deadline_ns[0] == 2**63 - 1
