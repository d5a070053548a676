"""Outputs of a window that go straight into arrays of the caller's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client.pool_facts import ModelFacts
from batchpool.client.window_call import MapOptions, WindowCall
from batchpool.core.errors import ModelError, PoolError, Status
from tests.unit.client.lane_clients import LATER, NOW, Pool, answer, new_lane_client, rows_of
from tests.unit.specs import AFFINE

FACTS = ModelFacts(0, AFFINE, 1.0, 30.0, 2)


class Sent:
    """A window of n rows in a lane, whose outputs go into `to`. scattered: in slots that are no
    neighbours. bad: places of rows that do not fit."""

    def __init__(self, n: int, *, scattered: bool = False, bad: tuple[int, ...] = ()) -> None:
        self.lane_client = new_lane_client()
        self.pool = Pool(self.lane_client)
        if scattered:
            others = [self._submit(rows_of(1)) for _ in range(6)]
            self.pool.admit()
            self.pool.finish_all()
            self.lane_client.reap(NOW)
            for other in others[::2]:
                self.lane_client.release(other)
        self.to = np.full((n, 4), -1, np.float32)
        x: Any = rows_of(n).tensors["x"]
        if bad:
            x = [np.zeros(3, np.float32) if at in bad else row for at, row in enumerate(x)]
        self.call = MapOptions().call({"x": x}, 0, {"y": self.to})
        self.call.check(self.lane_client, FACTS)
        self.pending = self._submit(self.call.rows)
        assert isinstance(self.pending.where, slice) is not scattered
        self.pool.admit()

    def _submit(self, rows: Any) -> Any:
        pending = self.lane_client.submit(rows, NOW, LATER)
        self.lane_client.flush()
        return pending

    def taken(self) -> dict[str, Any]:
        assert self.lane_client.reap(NOW) == [self.pending]
        before = self.lane_client.allocator.claimed
        try:
            return self.call.take(self.lane_client, self.pending)
        finally:
            assert self.lane_client.allocator.claimed == before - self.pending.n


@pytest.mark.parametrize("scattered", [False, True])
def test_outputs_of_good_rows_are_in_the_array(scattered: bool) -> None:
    sent = Sent(5, scattered=scattered)
    sent.pool.finish_all()
    assert sent.taken()["y"] is sent.to
    assert sent.to.tolist() == answer(5)


def test_the_windows_of_a_block_have_their_own_rows_of_the_array() -> None:
    to = np.empty((5, 4), np.float32)
    block = MapOptions().call({"x": rows_of(5).tensors["x"]}, 7, {"y": to})
    windows: list[WindowCall] = list(block.cut(2))
    for at, window in enumerate(windows):
        window.outputs_to["y"][...] = at
    assert to[:, 0].tolist() == [0, 0, 1, 1, 2]
    assert windows[1].part([0, 1]).outputs_to == {}


def test_a_row_that_failed_leaves_the_array_and_has_its_error_in_a_list() -> None:
    sent = Sent(3)
    tickets = dict(zip(sent.pending.slots, (1, 1, 1), strict=True))
    first, *rest = tickets.items()
    sent.pool.finish(first, status=Status.MODEL_ERROR, text="no")
    sent.pool.finish(*rest)
    found = sent.taken()["y"]
    assert isinstance(found[0], ModelError)
    assert not any(isinstance(row, PoolError) for row in found[1:])
    assert (sent.to == -1).all()


def test_rows_that_were_refused_are_not_in_the_array() -> None:
    sent = Sent(4, bad=(1,))
    sent.pool.finish_all()
    assert list(sent.call.errors) == [1]
    found = sent.taken()["y"]
    assert found.tolist() == [row for at, row in enumerate(answer(4)) if at != 1]
    assert (sent.to == -1).all()
