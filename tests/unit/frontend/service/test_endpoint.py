"""An endpoint without HTTP: rows, flow, priority and deadline in, output rows out."""

from __future__ import annotations

import ast
import inspect
import time

import numpy as np
import pytest

from batchpool.client.reply import Reply
from batchpool.core.errors import DeadlineExceeded, ModelError, Overloaded, PoolStopped
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.service import endpoint as module
from batchpool.frontend.service.endpoint import Endpoint
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Picky

FLOW = 77


def endpoint_of(it: Edge, model: str = "affine") -> Endpoint:
    return it.view.endpoints.find(model).endpoint


def rows(*values: float) -> Rows:
    x = np.repeat(np.array(values, "f4"), 4).reshape(-1, 4)
    return Rows(len(values), {"x": x}, {})


def test_it_knows_no_protocol() -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "batchpool.client.loop" in imported
    assert not [name for name in imported if "wire" in name or "http" in name]


@on_loop
async def test_rows_come_back_as_outputs() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint, done = endpoint_of(it), Reply()
        now_ns = time.monotonic_ns()
        pending = endpoint.submit(rows(1, 2), done, now_ns=now_ns, flow=FLOW, priority=7)
        lane = endpoint.lane_client.lane
        assert list(lane.flow[:2]) == [FLOW, FLOW]
        assert list(lane.priority[:2]) == [7, 7]
        assert list(lane.deadline_ns[:2]) == [now_ns + 30 * 10**9] * 2, "the model's own limit"
        assert await done is pending
        outputs = endpoint.fetch(pending, ["y"])
        assert np.array_equal(outputs["y"], np.repeat([[3.0], [5.0]], 4, axis=1))
        assert endpoint.lane_client.allocator.claimed == 0


@on_loop
async def test_views_are_valid_until_they_are_released() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint, done = endpoint_of(it), Reply()
        pending = endpoint.submit(rows(1), done, now_ns=time.monotonic_ns(), flow=FLOW)
        await done
        outputs = endpoint.view(pending, ["y"])
        assert outputs["y"].tolist() == [[3.0] * 4]
        assert endpoint.lane_client.allocator.claimed == 1
        endpoint.release(pending)
        assert endpoint.lane_client.allocator.claimed == 0


@on_loop
async def test_the_sooner_deadline_holds() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = True
        endpoint, now_ns = endpoint_of(it), time.monotonic_ns()
        lane = endpoint.lane_client.lane
        for slot, (after_s, expected_s) in enumerate(((5, 5), (29.5, 29.5), (31, 30), (10**9, 30))):
            endpoint.submit(
                rows(1),
                Reply(),
                now_ns=now_ns,
                flow=FLOW,
                deadline_ns=now_ns + int(after_s * 10**9),
            )
            assert lane.deadline_ns[slot] == now_ns + int(expected_s * 10**9)
        with pytest.raises(DeadlineExceeded):
            endpoint.submit(rows(1), Reply(), now_ns=now_ns, flow=FLOW, deadline_ns=now_ns)
        assert endpoint.lane_client.allocator.claimed == 4


@on_loop
async def test_the_claim_decides_without_an_admission() -> None:
    async with edge(Affine, slots=20) as it:
        endpoint, now_ns = endpoint_of(it), time.monotonic_ns()
        lane_client = endpoint.lane_client
        lane_client.allocator.take(18, 1)
        for refuse in (
            lambda: endpoint.submit(rows(1), Reply(), now_ns=now_ns, flow=FLOW),
            lambda: endpoint.admit(FLOW, 0, now_ns),
        ):
            before = lane_client.lane.refused.get()
            with pytest.raises(Overloaded, match="18 of 20 slots are in use"):
                refuse()
            assert lane_client.lane.refused.get() == before + 1
        endpoint.admit(FLOW, 1, now_ns)
        endpoint.submit(rows(1), Reply(), now_ns=now_ns, flow=FLOW, priority=1)
        assert lane_client.allocator.claimed == 19


@on_loop
async def test_the_error_of_a_row_is_raised_and_its_slot_is_free() -> None:
    async with edge(Picky, slots=8) as it:
        endpoint, done = endpoint_of(it, "picky"), Reply()
        bad = Rows(1, {"x": np.array([[-1.0, 1.0]])}, {})
        pending = endpoint.submit(bad, done, now_ns=time.monotonic_ns(), flow=FLOW)
        await done
        with pytest.raises(ModelError, match="a negative number came"):
            endpoint.fetch(pending)
        assert endpoint.lane_client.allocator.claimed == 0


@on_loop
async def test_rows_that_are_abandoned_free_their_slots() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = True
        endpoint, done = endpoint_of(it), Reply()
        pending = endpoint.submit(rows(1), done, now_ns=time.monotonic_ns(), flow=FLOW)
        endpoint.abandon(pending)
        it.pool.release()
        await until(lambda: endpoint.lane_client.allocator.claimed == 0, "the slot is free")
        assert not done.done()


@on_loop
async def test_a_pool_that_has_gone_takes_nothing() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint, now_ns = endpoint_of(it), time.monotonic_ns()
        it.client_loop.close()
        for refuse in (
            lambda: endpoint.submit(rows(1), Reply(), now_ns=now_ns, flow=FLOW),
            lambda: endpoint.admit(FLOW, 0, now_ns),
            endpoint.check_open,
        ):
            with pytest.raises(PoolStopped):
                refuse()
