"""Slots stay claimed as long as anything refers to the outputs that lie in them, and no longer."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from batchpool.client.lane_client import LaneClient
from batchpool.client.lane_set import LaneSet
from batchpool.client.lent_slots import OutputViews
from batchpool.core.errors import ModelError, Overloaded, Status
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, free_pages, map_checked
from tests.unit.client.lane_clients import NOW, Pool, answer, new_lane_client, send
from tests.unit.specs import AFFINE


@pytest.fixture
def lane_client() -> LaneClient:
    return new_lane_client(10)


def lent(lane_client: LaneClient, n: int = 1, first: float = 0) -> OutputViews:
    """The outputs of n rows, as a call with copy=False gets them."""
    pool = Pool(lane_client)
    send(lane_client, n, first)
    pool.finish_all()
    (pending,) = lane_client.reap(NOW)
    return lane_client.lent.lend(lane_client, pending, None)


def claimed(lane_client: LaneClient) -> int:
    lane_client.lent.take_back(lane_client)
    assert lane_client.lent.n == lane_client.allocator.claimed
    assert lane_client.lane.lent.get() == lane_client.lent.n
    return lane_client.allocator.claimed


def test_outputs_are_views_whose_slots_nobody_else_gets(lane_client: LaneClient) -> None:
    first = lent(lane_client, 2)
    y = first["y"]
    assert np.shares_memory(y, lane_client.lane.outputs["y"].values)
    assert y.dtype == np.float32
    assert y.tolist() == answer(2)
    for i in range(20):
        assert lent(lane_client, 3, 100 + i)["y"].tolist() == answer(3, 100 + i)
        assert claimed(lane_client) == 2
    assert y.tolist() == answer(2)


MADE: dict[str, Callable[[Any], Any]] = {
    "array": lambda y: y,
    "slice": lambda y: y[1:, ::2][:, 1:],
    "row": lambda y: y[0],
    "memoryview": memoryview,
    "cast": lambda y: y.view(np.int32).reshape(-1)[2:],
    "transposed": lambda y: y.T,
}


@pytest.mark.parametrize("kept", MADE)
def test_what_is_made_of_an_array_keeps_its_slots(kept: str, lane_client: LaneClient) -> None:
    outputs = lent(lane_client, 2)
    made = MADE[kept](outputs["y"])
    before = np.array(made).copy()
    assert not outputs.release()
    del outputs
    assert claimed(lane_client) == 2
    lent(lane_client, 7, 50)
    np.testing.assert_array_equal(np.array(made), before)
    del made
    assert claimed(lane_client) == 0


def test_a_release_frees_what_nobody_else_has(lane_client: LaneClient) -> None:
    outputs = lent(lane_client)
    assert outputs.release()
    assert not outputs
    assert claimed(lane_client) == 0
    assert outputs.release(), "a second time does nothing"
    assert claimed(lane_client) == 0


def test_as_a_context_manager(lane_client: LaneClient) -> None:
    with lent(lane_client) as outputs:
        assert outputs["y"].tolist() == answer(1)
        assert claimed(lane_client) == 1
    assert claimed(lane_client) == 0
    with pytest.raises(ZeroDivisionError), lent(lane_client):
        raise ZeroDivisionError
    gc.collect()
    assert claimed(lane_client) == 0


def test_forgotten_outputs_are_collected_in_any_thread(lane_client: LaneClient) -> None:
    circle: list[object] = [lent(lane_client)]
    circle.append(circle)
    del circle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert lane_client.lent.any_ended
    assert lane_client.allocator.claimed == 1, "another thread may be in the middle of a claim"
    assert claimed(lane_client) == 0


def test_scattered_slots_are_copied_and_free_at_once(lane_client: LaneClient) -> None:
    views = [lent(lane_client, 1, i) for i in range(9)]
    for i in (1, 3, 5, 7):
        views[i].release()
    assert claimed(lane_client) == 5
    y = lent(lane_client, 3, 30)["y"]
    assert y.base is None
    assert claimed(lane_client) == 5
    assert y.tolist() == answer(3, 30)
    held = [view["y"].tolist() for view in views if view]
    assert held == [answer(1, i) for i in (0, 2, 4, 6, 8)]


def test_the_error_of_a_row_frees_its_slots(lane_client: LaneClient) -> None:
    pool = Pool(lane_client)
    send(lane_client)
    pool.admit()
    pool.finish(*pool.rows, status=Status.MODEL_ERROR, text="no")
    (pending,) = lane_client.reap(NOW)
    with pytest.raises(ModelError):
        lane_client.lent.lend(lane_client, pending, None)
    assert claimed(lane_client) == 0


def test_too_many_views_are_an_error_that_says_so(lane_client: LaneClient) -> None:
    views = [lent(lane_client, 3, i) for i in range(2)]
    lane_client.lent.check_room(lane_client, 3)
    with pytest.raises(Overloaded, match=r"6 of the 9 slots .* copy=False, and 4 more"):
        lane_client.lent.check_room(lane_client, 4)
    views.pop()
    claimed(lane_client)
    lane_client.lent.check_room(lane_client, 4)


@pytest.fixture
def freed() -> Iterator[tuple[LaneClient, Callable[[], None]]]:
    """A lane client whose lane the pool can free."""
    layout = lane_layout(AFFINE, 4096)
    fd = create(layout, sealed=True)
    lane = Lane(AFFINE, map_checked(fd, layout), layout)
    lane.gate.set(int(LaneGate.OPEN))
    yield LaneClient(lane), lambda: free_pages(fd, layout.total_bytes)
    os.close(fd)


def test_what_views_show_is_kept_before_the_client_leaves(
    freed: tuple[LaneClient, Callable[[], None]],
) -> None:
    lane_client, free = freed
    held = [lent(lane_client, 600, i) for i in range(3)]
    held.pop(1)
    lanes = LaneSet()
    lanes["m"] = lane_client
    lanes.keep_views()
    free()
    assert not lane_client.lane.inputs["x"].values.any()
    del lane_client, freed
    lanes.clear()
    gc.collect()
    assert [outputs["y"].tolist() for outputs in held] == [answer(600, 0), answer(600, 2)]
    assert all(outputs.release() for outputs in held)


def test_a_lane_that_has_moved_is_left_although_views_of_it_are_held(
    freed: tuple[LaneClient, Callable[[], None]],
) -> None:
    lane_client, free = freed
    lanes = LaneSet()
    lanes["m"] = lane_client
    outputs = lent(lane_client, 2)
    assert not lane_client.has_rows
    lane_client.lane.gate.set(int(LaneGate.MOVED))
    assert lane_client.sees_move()
    assert lanes.part() == [lane_client]
    free()
    assert outputs["y"].tolist() == answer(2)
