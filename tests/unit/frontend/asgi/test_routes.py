"""Every route besides infer, and what the framework refuses."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from batchpool.core.errors import NotReady
from batchpool.core.layout.states import LaneGate, PoolState
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Echo, Two


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    found = answer.json()
    assert isinstance(found["error"], str)
    assert found["error"]
    return answer.status_code, found["code"]


@on_loop
async def test_server_metadata() -> None:
    async with edge(Affine, slots=8) as it:
        answer = await it.http.get("/v2")
        assert answer.status_code == 200
        found = answer.json()
        assert found["name"] == "batchpool"
        assert isinstance(found["version"], str)
        assert "binary_tensor_data" in found["extensions"]


@on_loop
async def test_model_metadata_and_config_with_and_without_version() -> None:
    """C51: names and shapes as the protocol spells them."""
    async with edge(Affine, Two, slots=8, max_batch=4) as it:
        for path in ("/v2/models/two", "/v2/models/two/versions/1"):
            found = (await it.http.get(path)).json()
            assert found["name"] == "two"
            assert found["versions"] == ["1"]
            assert found["inputs"] == [{"name": "tag", "datatype": "INT64", "shape": [-1, 1]}]
            assert [o["name"] for o in found["outputs"]] == ["same", "scaled"]
            config = (await it.http.get(path + "/config")).json()
            assert config["max_batch_size"] == 4
            assert config["input"] == [{"name": "tag", "data_type": "TYPE_INT64", "dims": [1]}]


@on_loop
async def test_root_says_where_to_go() -> None:
    async with edge(Affine, slots=8) as it:
        found = (await it.http.get("/")).json()
        assert found["api"] == "/v2"
        assert found["models"] == ["/v2/models/affine"]


@on_loop
async def test_names_are_percent_decoded() -> None:
    async with edge(Affine, slots=8) as it:
        assert (await it.http.get("/v2/models/%61ffine/ready")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/v2/",
        "/v2/models/affine/stat",
        "/v2/models/",
        "/v2/models/affine/",
        "/v2/models/affine/nothing",
        "/v2/models/other",
        "/v2/models/other/ready",
        "/v2/models/other/config",
        "/v2/models/a%2Fb/ready",
        "/v2/models/%ff%00",
        "/v2/models/affine/versions/2",
        "/v2/models/affine/versions/01/ready",
        "/v2/models/affine/versions/1/versions/1",
    ],
)
@on_loop
async def test_unknown_paths_models_and_versions(path: str) -> None:
    """C51: 404 with an `error`, never 500."""
    async with edge(Affine, slots=8) as it:
        assert refused(await it.http.get(path)) == (404, "not_found")


@on_loop
async def test_an_unknown_path_is_told_where_the_known_ones_stand() -> None:
    async with edge(Affine, slots=8) as it:
        lost = (await it.http.get("/v2/nothing")).json()["error"]
        assert lost == "there is nothing at '/v2/nothing'; /openapi.json tells what there is"


@on_loop
async def test_unknown_model_names_the_known_ones() -> None:
    async with edge(Affine, Two, slots=8) as it:
        text = (await it.http.get("/v2/models/other")).json()["error"]
        assert "'other'" in text
        assert "'affine', 'two'" in text
        text = (await it.http.post("/v2/models/two/versions/7/infer")).json()["error"]
        assert "'7'" in text
        assert "'1'" in text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", "GET, HEAD"),
        ("DELETE", "/v2/health/live", "GET, HEAD"),
        ("PUT", "/v2/models/affine", "GET, HEAD"),
        ("GET", "/v2/models/affine/infer", "POST"),
        ("PATCH", "/v2/models/affine/versions/1/infer", "POST"),
        ("OPTIONS", "/", "GET, HEAD"),
    ],
)
@on_loop
async def test_wrong_verb(method: str, path: str, allowed: str) -> None:
    """C51: 405 with an `error` and the verbs allowed."""
    async with edge(Affine, slots=8) as it:
        answer = await it.http.request(method, path)
        assert refused(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


@on_loop
async def test_head_is_get_without_the_body() -> None:
    async with edge(Affine, slots=8) as it:
        got, head = await it.http.get("/v2"), await it.http.head("/v2")
        assert head.status_code == 200
        assert head.headers == got.headers
        assert head.content == b""


# -- health -----------------------------------------------------------------------------


async def health(http: httpx.AsyncClient) -> dict[str, Any]:
    """The answers of live, ready and the model's ready: 200 or the code of the refusal."""
    found: dict[str, Any] = {}
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/affine/ready"):
        answer = await http.get(path)
        said = answer.json()
        if answer.status_code == 200:
            found[path] = 200
            assert said.get("live", True) is True
            assert said.get("ready", True) is True
        else:
            status, found[path] = refused(answer)
            assert status == NotReady.status
            assert said["ready"] is False
            assert int(answer.headers["retry-after"]) >= 1
            assert said["retry_after_ms"] >= 1
    return found


def says(live: Any, ready: Any, model: Any) -> dict[str, Any]:
    return {
        "/v2/health/live": live,
        "/v2/health/ready": ready,
        "/v2/models/affine/ready": model,
    }


@on_loop
async def test_ready_when_the_pool_and_every_model_is() -> None:
    async with edge(Affine, Two, slots=8) as it:
        assert await health(it.http) == says(200, 200, 200)
        state_page = it.pool.session.state_page
        state_page.accepting[1] = 0  # the other model
        assert await health(it.http) == says(200, "not_ready", 200)
        state_page.accepting[0] = 0
        assert await health(it.http) == says(200, "not_ready", "not_ready")
        state_page.accepting[:] = 1
        assert await health(it.http) == says(200, 200, 200)


@on_loop
async def test_not_ready_before_the_pool_is() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.session.state_page.state.set(int(PoolState.STARTING))
        assert await health(it.http) == says(200, "not_ready", 200)


@on_loop
async def test_not_ready_while_the_batcher_makes_no_progress() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.session.state_page.stalled.set(1)
        assert await health(it.http) == says(200, "not_ready", "not_ready")
        it.pool.session.state_page.stalled.set(0)
        assert await health(it.http) == says(200, 200, 200)


@on_loop
async def test_ready_of_nothing_is_not_ready() -> None:
    """C38: all of no models is none."""
    async with edge(slots=8) as it:
        assert refused(await it.http.get("/v2/health/ready")) == (503, "not_ready")


@pytest.mark.parametrize(
    ("gate", "code"),
    [(LaneGate.CLOSED, "not_ready"), (LaneGate.DRAINING, "draining")],
)
@on_loop
async def test_a_lane_that_is_shut_is_not_ready(gate: LaneGate, code: str) -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.lane_client("affine").lane.gate.set(int(gate))
        assert await health(it.http) == says(200, code, code)


@on_loop
async def test_draining_and_leaving_are_not_ready() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.session.state_page.state.set(int(PoolState.DRAINING))
        assert await health(it.http) == says(200, "draining", "draining")
        it.pool.session.state_page.state.set(int(PoolState.READY))
        it.view.readiness.stopping = True
        assert await health(it.http) == says(200, "draining", "draining")


@on_loop
async def test_a_pool_that_has_gone_is_not_ready() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.session.theirs.close()
        await until(lambda: it.client_loop.over, "the end is noticed")
        assert await health(it.http) == says(200, "pool_stopped", "pool_stopped")


# -- the framework's own refusals ---------------------------------------------------------


@on_loop
async def test_what_later_routes_raise_is_answered_in_json(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fall(request: Any) -> Any:
        raise ZeroDivisionError("secret")

    async def refuse(request: Any) -> Any:
        raise HTTPException(422, "no such thing")

    async def not_yet(request: Any) -> Any:
        raise NotReady("come back", 2500)

    async with edge(Echo, slots=8) as it:
        it.app.router.routes += [
            Route("/fall", fall), Route("/refuse", refuse), Route("/not-yet", not_yet),
        ]  # fmt: skip
        answer = await it.http.get("/fall")
        assert refused(answer) == (500, "internal")
        assert "secret" not in answer.text
        assert refused(await it.http.get("/refuse")) == (400, "invalid_request")
        answer = await it.http.get("/not-yet")
        assert refused(answer) == (503, "not_ready")
        assert json.loads(answer.text)["retry_after_ms"] == 2500
        assert answer.headers["retry-after"] == "3"
