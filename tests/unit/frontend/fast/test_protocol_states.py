"""Both roads answer alike in every state of the pool: full, shut, shared, failing, late."""

from __future__ import annotations

import json

import numpy as np
import pytest

from batchpool.core.layout.states import LaneGate
from batchpool.frontend.http.caller import flow_of, flow_of_name
from tests.unit.frontend.calls import affine
from tests.unit.frontend.fast.test_protocol import (
    ROW,
    SHORT,
    TENSOR,
    in_binary,
    in_msgpack,
    infer,
    raw,
)
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, same, take

LOCAL = flow_of(b"127.0.0.1")


def overload(it: Visit) -> None:
    slots = it.of.pool.lane_client("affine").allocator
    while slots.refusal(1) is None:
        slots.take_one()


def at_its_share(it: Visit) -> None:
    slots = it.of.pool.lane_client("affine").allocator
    slots.take(slots.share, LOCAL)
    slots.take_one(flow_of_name(LOCAL, b"another"))


def shut(it: Visit, gate: LaneGate) -> None:
    it.of.pool.lane_client("affine").lane.gate.set(int(gate))


STATES = {
    "overloaded": overload,
    "at its share": at_its_share,
    "draining": lambda it: shut(it, LaneGate.DRAINING),
    "broken": lambda it: shut(it, LaneGate.BROKEN),
    "not open": lambda it: shut(it, LaneGate.CLOSED),
    "no worker": lambda it: it.of.pool.session.state_page.accepting.fill(0),
    "pool gone": lambda it: it.of.client_loop.close(),
}


def refused(it: Visit) -> int:
    """Claims that were refused, for want of room or for a flow's share."""
    lane = it.of.pool.lane_client("affine").lane
    return lane.refused.get() + lane.refused_share.get()


@pytest.mark.parametrize("state", STATES)
@on_loop
async def test_refusals_at_the_headers_and_at_the_claim(state: str) -> None:
    """C27: each form and both roads get the 503."""

    async def scenario(it: Visit) -> None:
        await it.send(SHORT[:-3])
        await until(lambda: it.site.under_way == 1, "the headers have come")
        STATES[state](it)
        await it.send(SHORT[-3:])
        await it.take()
        before = refused(it) if state != "pool gone" else 0
        for sent in (SHORT, raw(bytes(64 * 1024)), infer(affine(1))):
            await it.send(sent)
            assert b"retry-after" in await it.take() or state in ("broken", "pool gone")
        if state in ("overloaded", "at its share"):
            assert refused(it) == before + 3

    assert (await same(scenario, Affine)).fast == 4


@on_loop
async def test_at_its_share_a_flow_is_refused_and_another_is_not() -> None:
    async def scenario(it: Visit) -> None:
        at_its_share(it)
        await it.send(SHORT)
        assert b"503" in await it.take()
        # A name that is the address of another caller is nevertheless a name.
        for other in ("another", "a third", "127.0.0.1"):
            await it.send(raw(ROW, X_Client_Id=other))
            assert b"200" in await it.take()
        await it.send(SHORT)
        assert b"this flow holds 28 of 64 slots" in await it.take()

    await same(scenario, Affine)


@on_loop
async def test_a_raised_priority_comes_in_above_the_watermark() -> None:
    async def by_parameter(it: Visit) -> None:
        # The parameter counts when the body is there: at the headers nobody knows it.
        sent = infer(affine(4, parameters={"priority": 127}))
        await it.send(sent[:-3])
        await until(lambda: it.site.under_way == 1, "the headers have come")
        overload(it)
        await it.send(sent[-3:])
        assert b"200" in await it.take()
        await it.send(sent)
        assert b"503" in await it.take()

    async def by_header(it: Visit) -> None:
        overload(it)
        for priority, status in ((1, b"200"), (127, b"200"), (128, b"503"), (0, b"503")):
            await it.send(raw(ROW, X_Request_Priority=str(priority)))
            assert status in await it.take()
        await it.send(infer(affine(4, parameters={"priority": 255}), X_Request_Priority="1"))
        assert b"200" in await it.take()
        await it.send(raw(ROW * 60, X_Request_Priority="1"))
        assert b"413" in await it.take()

    await same(by_parameter, Affine)
    await same(by_header, Affine)


@pytest.mark.interpreted
@on_loop
async def test_rows_that_are_refused_in_the_queue() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.refuse_queued("affine")
        many = in_binary({}, ("x", "FP32", np.ones((5000, 4), "f4")))
        kinds = [SHORT, infer(affine(1, 2)), in_msgpack({"inputs": {"x": TENSOR}}), many]
        for sent in kinds:
            await it.send(sent)
            answer = await it.take()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
                "error": "the request could not be answered in time; come back after Retry-After",
                "code": "overloaded",
                "retry_after_ms": 1000,
            }
        assert it.of.pool.lane_client("affine").allocator.claimed == 0

    assert (await same(scenario, Affine, slots=16384)).fast == 4


@on_loop
async def test_deadlines() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        await it.send(raw(ROW, X_Request_Timeout_Ms="20"))
        # Not noted: on a slow machine its time is up before it is complete, which reads otherwise.
        assert b"504" in await take(it.caller)
        head = raw(ROW, X_Request_Timeout_Ms="1")
        await it.send(head[:-3])
        await until(lambda: it.site.under_way == 1, "the headers have come")
        loop = it.of.client_loop._loop
        begun_s = loop.time()
        await until(lambda: loop.time() > begun_s + 0.01, "its time is up")
        await it.send(head[-3:])
        assert b"504" in await it.take()

    assert (await same(scenario, Affine)).fast == 2


@pytest.mark.interpreted
@on_loop
async def test_what_nobody_expected_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(it: Visit) -> None:
        endpoint = it.of.view.endpoints.find("affine")
        for step in ("parse", "submit", "encode"):
            for sent in (infer(affine(1)), infer(affine(1, id="another"))):
                with monkeypatch.context() as patch:
                    patch.setattr(endpoint, step, lambda *_, **__: 1 // 0)
                    await it.send(sent)
                    assert b"500" in await it.take()
                await it.send(sent)  # and after it the head is known
                assert b"200" in await it.take()
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(it.of.pool.lane_client("affine"), "failure", lambda *_: 1 // 0)
                await it.send(SHORT)
                assert b"500" in await it.take()
            await it.send(SHORT)
            assert b"200" in await it.take()
        assert it.of.pool.lane_client("affine").allocator.claimed == 0

    await same(scenario, Affine)
