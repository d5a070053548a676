"""The headers of rows, which one slot and many get in different ways."""

from __future__ import annotations

import pytest

from batchpool.core.layout.states import SlotState
from tests.unit.client.lane_clients import LATER, NOW, new_lane_client, rows_of, send


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("is_scattered", [False, True])
def test_the_header_of_every_row(n: int, is_scattered: bool) -> None:
    lane_client = new_lane_client(12, watermark=1.0)
    lane = lane_client.lane
    lane.deadline_ns[:] = lane.submit_ns[:] = lane.priority[:] = lane.flow[:] = 99
    if is_scattered:
        others = [send(lane_client) for _ in range(12)]
        lane.deadline_ns[:] = lane.submit_ns[:] = lane.priority[:] = lane.flow[:] = 99
        for other in others[::2]:
            lane_client.release(other)
    pending = lane_client.submit(rows_of(n), NOW, LATER, priority=3, flow=7)
    slots = list(pending.slots)
    assert len(set(slots)) == n
    for column, value in (
        (lane.deadline_ns, LATER),
        (lane.submit_ns, NOW),
        (lane.priority, 3),
        (lane.flow, 7),
        (lane.state, SlotState.SUBMITTED),
    ):
        assert column[slots].tolist() == [value] * n
    rest = [slot for slot in range(12) if slot not in slots]
    assert lane.deadline_ns[rest].tolist() == lane.submit_ns[rest].tolist() == [99] * len(rest)
    lane_client.release(pending)
    assert lane.state[slots].tolist() == [SlotState.FREE] * n
