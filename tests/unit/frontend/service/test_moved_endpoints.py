"""A model that gets other lanes, or goes, while requests come over both HTTP roads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.control.messages import PlanChanged
from tests.unit.control.packets import receive_form
from tests.unit.frontend.fast.test_protocol import INFER, ROW, SHORT, infer, raw
from tests.unit.frontend.frontend_double import edge, request
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, same

OLD = (np.arange(4, dtype="f4") * 2 + 1).tobytes()
NEW = (np.arange(4, dtype="f4") * 3).tobytes()


class Triple(bp.Model):
    """The later model "affine": `y` = 3 `x`, with a parameter that it had not."""

    name = "affine"
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]
    parameters = [bp.Tensor("k", "int64", (), default=0)]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": batch["x"] * np.float32(3)}


def move(it: Visit, model: type[bp.Model] | None, *, told: bool = True) -> None:
    """The old gate says MOVED. told: the front end has heard why; else it finds that to be read."""
    hear = it.of.pool.move("affine", model)

    def learn(message: Any, fds: Any) -> None:
        hear()
        it.of.view.learn()

    if told:
        learn({}, [])
    else:
        it.of.client_loop._heard = learn
        it.of.pool.session.theirs.send(PlanChanged((), {}, 1, ()))


async def asked(it: Visit, *pieces: bytes) -> bytes:
    for piece in pieces:
        it.feed([piece])
    answer = await it.take()
    return answer[-16:]


@pytest.mark.parametrize("told", [True, False])
@on_loop
async def test_requests_go_to_the_new_lane_from_one_to_the_next(told: bool) -> None:
    async def scenario(it: Visit) -> None:
        old = it.of.pool.lane_client("affine")
        assert [await asked(it, SHORT), await asked(it, SHORT)] == [OLD, OLD]
        move(it, Triple, told=told)
        assert [await asked(it, SHORT), await asked(it, SHORT)] == [NEW, NEW]
        x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
        await it.send(infer({"inputs": [x], "parameters": {"k": 1}}))
        assert b"3.0,6.0,9.0,12.0" in await it.take()
        await until(lambda: old not in it.of.pool.session.lane_set.driven, "the old lane is left")
        left, _ = receive_form(it.of.pool.session.theirs)
        assert left == {"op": "left", "serial": old.serial}

    found = await same(scenario, Affine)
    assert found.known == 2, "a head is known again at the new endpoint"


@on_loop
async def test_a_request_for_the_new_model_may_be_the_first_that_meets_the_gate() -> None:
    """Its caller has heard of the change before this front end has."""

    async def scenario(it: Visit) -> None:
        move(it, Triple, told=False)
        x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
        it.feed([infer({"inputs": [x], "parameters": {"k": 1}})])
        assert b"3.0,6.0,9.0,12.0" in await it.take()

    await same(scenario, Affine)


@pytest.mark.parametrize("told", [True, False])
@on_loop
async def test_a_body_that_was_on_its_way_is_answered_by_the_new_model(told: bool) -> None:
    async def scenario(it: Visit) -> None:
        it.feed([SHORT[:-3]])
        await until(lambda: it.site.under_way == 1, "the headers have come")
        move(it, Triple, told=told)
        assert await asked(it, SHORT[-3:]) == NEW
        assert await asked(it, SHORT) == NEW

    await same(scenario, Affine)


@on_loop
async def test_rows_that_were_claimed_are_answered_by_the_old_model() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        old = it.of.pool.lane_client("affine")
        it.feed([SHORT])
        await until(lambda: old.allocator.claimed == 1, "the slot is claimed")
        move(it, Triple)
        await until(lambda: old.has_moved, "the gate is seen")
        assert old in it.of.pool.session.lane_set.driven, "a row is under way there"
        it.of.pool.release()
        assert (await it.take())[-16:] == OLD
        assert await asked(it, SHORT) == NEW

    await same(scenario, Affine)


@pytest.mark.parametrize("told", [True, False])
@on_loop
async def test_a_model_that_is_gone_is_not_found(told: bool) -> None:
    async def scenario(it: Visit) -> None:
        assert [await asked(it, SHORT), await asked(it, SHORT)] == [OLD, OLD]
        it.feed([raw(ROW)[:-3]])
        await until(lambda: it.site.under_way == 1, "the headers have come")
        move(it, None, told=told)
        it.feed([raw(ROW)[-3:]])
        assert b"404" in (await it.take())[:20]
        for sent in (SHORT, request("/v2/models/affine", method="GET"), SHORT):
            await it.send(sent)
            answer = await it.take()
            assert b"404" in answer[:20]
        assert b"there is no model 'affine'; the server has none" in answer

    await same(scenario, Affine)


@on_loop
async def test_metadata_and_readiness_are_those_of_the_new_model() -> None:
    async with edge(Affine) as it:
        assert (await it.http.get("/v2/models/affine/ready")).status_code == 200
        hear = it.pool.move("affine", Triple)
        it.client_loop._heard = lambda message, fds: (hear(), it.view.learn())[0]
        it.pool.session.theirs.send(PlanChanged((), {}, 1, ()))
        assert (await it.http.get("/v2/models/affine/ready")).status_code == 200
        found = (await it.http.get("/v2/models/affine")).json()
        assert [tensor["name"] for tensor in found["inputs"]] == ["x"]
        await until(
            lambda: (
                it.view.endpoints.by_model["affine"].lane_client is it.pool.lane_client("affine")
            ),
            "the switch",
        )
        assert it.view.endpoints.by_path[INFER.encode()] is it.view.endpoints.by_model["affine"]
        assert it.view.endpoints.by_model["affine"].endpoint.facts.spec.parameters[0].name == "k"


@on_loop
async def test_a_gate_that_moved_without_a_word_is_not_ready() -> None:
    async with edge(Affine) as it:
        it.pool.move("affine", Triple)
        answer = await it.http.get("/v2/models/affine/ready")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


@on_loop
async def test_what_a_request_heard_first_is_not_waited_for_again() -> None:
    """The loop found the word to be read; before its turn came a request took it."""
    async with edge(Affine) as it:
        hear = it.pool.move("affine", Triple)
        it.client_loop._heard = lambda message, fds: (hear(), it.view.learn())[0]
        it.pool.session.channel.sock.setblocking(False)  # a front end would wait for ever
        it.pool.session.theirs.send(PlanChanged((), {}, 1, ()))
        it.client_loop.listen()
        it.client_loop._on_control()
        assert not it.client_loop.over
        assert it.view.endpoints.by_model["affine"].endpoint.facts.spec.parameters[0].name == "k"


@on_loop
async def test_a_word_that_cannot_be_taken_ends_the_front_end() -> None:
    """Its next life is told everything; this one would go on with lanes that have moved."""
    lost = []
    async with edge(Affine) as it:
        it.client_loop._heard = lambda message, fds: None
        it.client_loop._lost = lambda: lost.append(1)
        it.pool.session.theirs.sock.send(b"no message")
        it.client_loop._on_control()
        assert it.client_loop.over
        assert lost == [1]
