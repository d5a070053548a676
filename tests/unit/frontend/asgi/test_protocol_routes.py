"""The routes of the protocol's extensions: statistics, repository, and what is not offered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.frontend.asgi.test_routes import refused
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Two

INFER = "/v2/models/affine/infer"
EXPLICIT = {"model_control_mode": "explicit"}


# -- statistics -----------------------------------------------------------------------------


@on_loop
async def test_statistics_count_the_requests_of_this_moment() -> None:
    async with edge(Affine, Two, slots=8) as it:
        await it.http.post(INFER, json=affine(1, 2))
        await it.http.post(INFER, content=b"{")
        for path in ("/v2/models/affine/stats", "/v2/models/affine/versions/1/stats"):
            answer = await it.http.get(path)
            assert answer.status_code == 200
            (found,) = answer.json()["model_stats"]
            assert (found["name"], found["version"]) == ("affine", "1")
            times = found["inference_stats"]
            assert times["success"]["count"] == 1
            assert times["success"]["ns"] > 0
            assert times["fail"]["count"] == 1
            assert times["fail"]["ns"] > 0


@on_loop
async def test_statistics_of_all_models_are_no_model_of_that_name() -> None:
    async with edge(Affine, Two, slots=8) as it:
        found = (await it.http.get("/v2/models/stats?x=1")).json()["model_stats"]
        assert [each["name"] for each in found] == ["affine", "two"]


@pytest.mark.parametrize("path", ["other/stats", "affine/versions/2/stats"])
@on_loop
async def test_statistics_of_nothing_are_not_found(path: str) -> None:
    async with edge(Affine, slots=8) as it:
        assert refused(await it.http.get(f"/v2/models/{path}")) == (404, "not_found")


# -- repository -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/batchpool/index"])
@on_loop
async def test_the_index_tells_the_state_of_each_model(path: str) -> None:
    async with edge(Affine, Two, slots=8) as it:
        it.pool.session.state_page.accepting[1] = 0
        affine_entry, two = (await it.http.post(path)).json()
        assert affine_entry == {
            "name": "affine", "version": "1", "state": "READY", "reason": "",
        }  # fmt: skip
        assert (two["name"], two["state"]) == ("two", "UNAVAILABLE")
        assert two["reason"]
        ready = await it.http.post(path, json={"ready": True})
        assert ready.json() == [affine_entry]


@on_loop
async def test_the_list_of_models_has_their_tensors_and_their_state() -> None:
    async with edge(Affine, slots=8) as it:
        assert (await it.http.get("/v2/models")).json() == {
            "models": [
                {
                    "name": "affine",
                    "version": "1",
                    "state": "READY",
                    "reason": "",
                    "versions": ["1"],
                    "platform": "numpy_batchpool",
                    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
                    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
                }
            ]
        }


@on_loop
async def test_a_repository_of_another_name_is_not_found() -> None:
    async with edge(Affine, slots=8, server=EXPLICIT) as it:
        for path in ("index", "models/affine/load", "models/affine/unload"):
            answer = await it.http.post(f"/v2/repository/mine/{path}")
            assert refused(answer) == (404, "not_found")
            assert "'batchpool'" in answer.json()["error"]


@pytest.mark.parametrize("verb", ["load", "unload"])
@on_loop
async def test_models_are_not_loaded_over_http_unless_the_configuration_allows_it(
    verb: str,
) -> None:
    async with edge(Affine, slots=8) as it:
        path = f"/v2/repository/models/affine/{verb}"
        answer = await it.http.post(path, content=b"not read")
        assert refused(answer) == (403, "forbidden")
        assert "[server] model_control_mode" in answer.json()["error"]
        it.pool.session.server["model_control_mode"] = "explicit"
        assert refused(await it.http.post(path, json={"x": 1})) != (403, "forbidden")


@on_loop
async def test_an_unload_tells_the_way() -> None:
    async with edge(Affine, slots=8, server=EXPLICIT) as it:
        body = {"parameters": {"unload_dependents": False}}
        answer = await it.http.post("/v2/repository/models/affine/unload", json=body)
        assert refused(answer) == (501, "not_supported")
        assert "remove its [[model]]" in answer.json()["error"]
        answer = await it.http.post("/v2/repository/models/other/unload", json=body)
        assert refused(answer) == (404, "not_found")


@on_loop
async def test_a_body_of_a_command_is_short() -> None:
    async with edge(Affine, slots=8, server=EXPLICIT) as it:
        answer = await it.http.post("/v2/repository/index", content=b" " * (64 * 1024 + 1))
        assert refused(answer) == (413, "too_large")
        answer = await it.http.post("/v2/repository/index", content=b"{]")
        assert refused(answer) == (400, "invalid_request")
        assert it.view.memory.held_bytes == 0


# -- what is not offered --------------------------------------------------------------------

NOT_OFFERED = [
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting"),
    ("GET", "/v2/models/affine/trace/setting"),
    ("POST", "/v2/models/affine/versions/1/trace/setting"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/cudasharedmemory/region/r/register"),
]


@pytest.mark.parametrize(("method", "path"), NOT_OFFERED)
@on_loop
async def test_what_is_not_offered_says_so_and_what_to_do(method: str, path: str) -> None:
    async with edge(Affine, slots=8) as it:
        body: Any = {"key": "/k", "byte_size": 4} if method == "POST" else None
        answer = await it.http.request(method, path, json=body)
        assert refused(answer) == (501, "not_supported")
        assert ";" in answer.json()["error"], "why; what to do instead"


@pytest.mark.parametrize("kind", ["system", "cuda"])
@on_loop
async def test_there_is_no_region_and_all_of_them_are_unregistered(kind: str) -> None:
    async with edge(Affine, slots=8) as it:
        path = f"/v2/{kind}sharedmemory"
        assert (await it.http.get(f"{path}/status")).json() == []
        answer = await it.http.get(f"{path}/region/r/status")
        assert refused(answer) == (404, "not_found")
        for call in ("unregister", "region/r/unregister"):
            answer = await it.http.post(f"{path}/{call}")
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-length"] == "0"


@on_loop
async def test_trace_settings_of_no_model_are_not_found() -> None:
    async with edge(Affine, slots=8) as it:
        answer = await it.http.get("/v2/models/other/trace/setting")
        assert refused(answer) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2/models", "GET, HEAD"),
        ("POST", "/v2/models/stats", "GET, HEAD"),
        ("POST", "/v2/models/affine/stats", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("GET", "/v2/repository/models/affine/load", "POST"),
        ("PUT", "/v2/logging", "GET, HEAD, POST"),
        ("POST", "/v2/systemsharedmemory/status", "GET, HEAD"),
        ("GET", "/v2/cudasharedmemory/unregister", "POST"),
    ],
)
@on_loop
async def test_wrong_verbs_name_the_right_ones(method: str, path: str, allowed: str) -> None:
    async with edge(Affine, slots=8) as it:
        answer = await it.http.request(method, path)
        assert refused(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


@on_loop
async def test_many_questions_at_once_are_all_answered() -> None:
    async with edge(Affine, slots=8) as it:
        paths = ["/v2/models/stats", "/v2/models", "/v2/models/affine/stats"] * 5
        answers = await asyncio.gather(*(it.http.get(path) for path in paths))
        assert {answer.status_code for answer in answers} == {200}


TAILS = ["", "/ready", "/config", "/stats", "/trace/setting"]


@pytest.mark.parametrize("tail", TAILS)
@on_loop
async def test_every_route_of_a_model_has_versions_and_decodes_its_name(tail: str) -> None:
    async with edge(Affine, slots=8) as it:
        plain = await it.http.get(f"/v2/models/affine{tail}")
        assert plain.status_code == (501 if "trace" in tail else 200)
        for path in ("affine/versions/1", "%61ffine", "aff%69ne/versions/%31"):
            answer = await it.http.get(f"/v2/models/{path}{tail}?x=y")
            assert (answer.status_code, answer.content) == (plain.status_code, plain.content)
        for path in ("affine/versions/2", "affine/versions/one", "%00"):
            assert refused(await it.http.get(f"/v2/models/{path}{tail}")) == (404, "not_found")


@pytest.mark.parametrize("path", ["%61ffine", "affine/versions/1", "aff%69ne/versions/1"])
@on_loop
async def test_infer_takes_the_same_spellings(path: str) -> None:
    async with edge(Affine, slots=8) as it:
        answer = await it.http.post(f"/v2/models/{path}/infer?x=y", json=affine(1, id=""))
        assert answer.status_code == 200
        assert "id" not in answer.json(), "an empty id is none"
