"""The table of errors, row by row: status, code, JSON, and no slot left claimed."""

from __future__ import annotations

import gzip
import json
import logging
import time
from typing import Any

import httpx
import numpy as np
import pytest

from batchpool.core.errors import WorkerLost
from batchpool.core.layout.states import LaneGate
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from tests.unit.frontend.calls import affine, affine_answer, binary, numbers, split
from tests.unit.frontend.frontend_double import Edge, edge, gathered
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Echo, Picky, Two

INFER = "/v2/models/affine/infer"


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert isinstance(found["error"], str)
    assert found["error"]
    return answer.status_code, found["code"]


async def works(it: Edge) -> None:
    """The front end still answers, and nothing was left behind."""
    assert it.pool.lane_client("affine").allocator.claimed == 0
    answer, _ = split(await it.http.post(INFER, json=affine(1)))
    assert answer["outputs"][0]["data"] == affine_answer(1)


X = numbers("x", np.ones((1, 4)), "FP32")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "JSON"),
        ({"inputs": []}, "'x'"),
        ({"inputs": [{**X, "name": "nope"}]}, "nope"),
        ({"inputs": [{**X, "datatype": "FP64"}]}, "FP32"),
        ({"inputs": [{**X, "shape": [1, 5]}]}, "[n, 4]"),
        ({"inputs": [{**X, "shape": [2, 4]}]}, "4 values"),
        ({"inputs": [X, X]}, "twice"),
        ({"inputs": [X, {**X, "name": "extra"}]}, "extra"),
        ({"inputs": [X], "outputs": [{"name": "nope"}]}, "nope"),
        ({"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}, "twice"),
        ({"inputs": [X], "parameters": {"top_k": 3}}, "top_k"),
        ({"inputs": [X], "parameters": {"timeout": -1}}, "timeout"),
    ],
)
@on_loop
async def test_invalid_request(content: Any, says: str) -> None:
    """C01: 400 with the tensor's name, no slot left claimed, and the next request served."""
    async with edge(Affine) as it:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        answer = await it.http.post(INFER, content=body)
        assert refused(answer) == (400, "invalid_request")
        assert says in answer.json()["error"]
        await works(it)


@pytest.mark.parametrize(
    "headers",
    [
        {"Inference-Header-Content-Length": "9999"},
        {"Inference-Header-Content-Length": "-1"},
        {"X-Request-Timeout-Ms": "soon"},
        {"X-Request-Priority": "256"},
    ],
)
@on_loop
async def test_invalid_headers(headers: dict[str, str]) -> None:
    """C51: a header that cannot be right is 400 with an `error`."""
    async with edge(Affine) as it:
        answer = await it.http.post(INFER, headers=headers, json=affine(1))
        assert refused(answer) == (400, "invalid_request")
        await works(it)


@on_loop
async def test_cut_compressed_body() -> None:
    async with edge(Affine) as it:
        body = gzip.compress(json.dumps(affine(1)).encode())[:-9]
        answer = await it.http.post(INFER, headers={"Content-Encoding": "gzip"}, content=body)
        assert refused(answer) == (400, "invalid_request")


@on_loop
async def test_parameter_of_the_wrong_kind() -> None:
    async with edge(Two) as it:
        tag = numbers("tag", np.array([[1]]), "INT64")
        request = {"inputs": [tag], "parameters": {"scale": "ten"}}
        answer = await it.http.post("/v2/models/two/infer", json=request)
        assert refused(answer) == (400, "invalid_request")
        assert "scale" in answer.json()["error"]


@on_loop
async def test_unknown_model_is_told_before_the_body_is_read() -> None:
    async with edge(Affine) as it:
        answer = await it.http.post("/v2/models/other/infer", content=b"not read")
        assert refused(answer) == (404, "not_found")


@pytest.mark.parametrize("headers", [{"Content-Type": "text/html"}, {"Content-Encoding": "br"}])
@on_loop
async def test_unsupported_media(headers: dict[str, str]) -> None:
    """C51: 415 with an `error`."""
    async with edge(Affine) as it:
        answer = await it.http.post(INFER, headers=headers, json=affine(1))
        assert refused(answer) == (415, "unsupported_media")
        await works(it)


# -- too large ----------------------------------------------------------------------------


@on_loop
async def test_more_rows_than_the_lane_can_hold() -> None:
    """C13: 413 with the limit, and the next request is served."""
    async with edge(Affine, slots=10) as it:
        answer = await it.http.post(INFER, json=affine(*range(10)))
        assert refused(answer) == (413, "too_large")
        assert "9" in answer.json()["error"]
        await works(it)
        answer, _ = split(await it.http.post(INFER, json=affine(*range(9))))
        assert answer["outputs"][0]["data"] == affine_answer(*range(9))


@on_loop
async def test_an_element_longer_than_a_slot_holds() -> None:
    async with edge(Echo, slots=4) as it:
        text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x" * (2**20 + 1)]}
        answer = await it.http.post("/v2/models/echo/infer", json={"inputs": [text]})
        assert refused(answer) == (413, "too_large")
        assert "'text'" in answer.json()["error"]


@on_loop
async def test_announced_body_over_the_limit() -> None:
    """C06: 413 by the announced length alone."""
    async with edge(Affine, server={"max_body_mib": 1}) as it:
        answer = await it.http.post(INFER, content=b" " * (2**20 + 1))
        assert refused(answer) == (413, "too_large")
        assert str(2**20) in answer.json()["error"]
        await works(it)


@on_loop
async def test_chunked_body_over_the_limit() -> None:
    """C06: 413 without an announced length."""
    async with edge(Affine, server={"max_body_mib": 1}) as it:
        taken = 0

        async def pieces() -> Any:
            nonlocal taken
            for _ in range(32):
                taken += 1
                yield b" " * 2**16

        answer = await it.http.post(INFER, content=pieces())
        assert refused(answer) == (413, "too_large")
        assert taken == 32  # the rest was taken and dropped
        await works(it)


@on_loop
async def test_compressed_body_that_unfolds_over_the_limit() -> None:
    """C06: the limit counts what a small body unfolds to."""
    async with edge(Affine, server={"max_body_mib": 1}) as it:
        body = gzip.compress(b" " * 2**26)
        assert len(body) < 2**17
        answer = await it.http.post(INFER, headers={"Content-Encoding": "gzip"}, content=body)
        assert refused(answer) == (413, "too_large")
        await works(it)


@on_loop
async def test_body_of_exactly_the_limit() -> None:
    """C65: the documented limit itself is served."""
    async with edge(Affine, server={"max_body_mib": 1}) as it:
        body = json.dumps(affine(3)).encode().ljust(2**20)
        answer, _ = split(await it.http.post(INFER, content=body))
        assert answer["outputs"][0]["data"] == affine_answer(3)


# -- 503 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "refusal"),
    [
        (LaneGate.CLOSED, (503, "not_ready")),
        (LaneGate.DRAINING, (503, "draining")),
        (LaneGate.BROKEN, (500, "internal")),
    ],
)
@on_loop
async def test_shut_lane(gate: LaneGate, refusal: tuple[int, str]) -> None:
    async with edge(Affine) as it:
        it.pool.lane_client("affine").lane.gate.set(int(gate))
        answer = await it.http.post(INFER, json=affine(1))
        assert refused(answer) == refusal
        assert ("retry-after" in answer.headers) == (refusal[0] == 503)
        it.pool.lane_client("affine").lane.gate.set(int(LaneGate.OPEN))
        await works(it)


@on_loop
async def test_no_worker_serves() -> None:
    async with edge(Affine) as it:
        it.pool.session.state_page.accepting[0] = 0
        answer = await it.http.post(INFER, json=affine(1))
        assert refused(answer) == (503, "not_ready")
        it.pool.session.state_page.accepting[0] = 1
        await works(it)


@on_loop
async def test_the_pool_goes_away_with_requests_under_way() -> None:
    async with edge(Affine) as it:
        it.pool.hold = True
        calls = gathered([it.http.post(INFER, json=affine(i)) for i in range(5)])
        task = it.client_loop._loop.create_task(calls)
        await until(lambda: it.pool.lane_client("affine").allocator.claimed == 5, "five wait")
        it.pool.session.theirs.close()
        for answer in await task:
            assert refused(answer) == (503, "pool_stopped")
            assert "retry-after" in answer.headers
        assert refused(await it.http.post(INFER, json=affine(1))) == (503, "pool_stopped")


# -- deadlines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({"X-Request-Timeout-Ms": "30"}, {}),
        ({}, {"parameters": {"timeout": 30_000}}),
        ({"X-Request-Timeout-Ms": "30"}, {"parameters": {"timeout": 10_000_000}}),
    ],
)
@on_loop
async def test_deadline_passes_while_queued(headers: dict[str, str], more: dict[str, Any]) -> None:
    async with edge(Two, max_batch=1) as it:
        Two.batches.clear()
        it.pool.hold = True
        tag = numbers("tag", np.array([[1]]), "INT64")
        path = "/v2/models/two/infer"
        first = gathered([it.http.post(path, json={"inputs": [tag]}) for _ in range(4)])
        task = it.client_loop._loop.create_task(first)
        await until(lambda: it.pool.lane_client("two").allocator.claimed == 4, "four wait")
        # What comes after them is only queued, although its deadline is the earliest.
        workers = it.pool.batcher.workers.by_number.values()
        await until(lambda: sum(m.in_flight for m in workers) == 1, "one is with the worker")
        answer = await it.http.post(path, headers=headers, json={"inputs": [tag], **more})
        assert refused(answer) == (504, "deadline_exceeded")
        it.pool.release()
        assert [a.status_code for a in await task] == [200] * 4
        await until(lambda: it.pool.lane_client("two").allocator.claimed == 0, "all slots are free")
        assert Two.batches == [1] * 4  # the late one was never run


@on_loop
async def test_the_models_own_limit() -> None:
    async with edge(Affine, request_timeout_s=0.03) as it:
        it.pool.hold = True
        answer = await it.http.post(
            INFER, headers={"X-Request-Timeout-Ms": "60000"}, json=affine(1)
        )
        assert refused(answer) == (504, "deadline_exceeded")
        it.pool.release()
        await until(
            lambda: it.pool.lane_client("affine").allocator.claimed == 0, "all slots are free"
        )


@on_loop
async def test_time_that_is_up_before_the_body_is_complete_claims_nothing() -> None:
    async with edge(Affine) as it:
        admitted_before = it.pool.batcher.models[0].metrics.admitted

        async def slow_body() -> Any:
            yield json.dumps(affine(1)).encode()
            late_ns = time.monotonic_ns() + 10_000_000
            await until(lambda: time.monotonic_ns() > late_ns, "10 ms pass")

        answer = await it.http.post(
            INFER, headers={"X-Request-Timeout-Ms": "5"}, content=slow_body()
        )
        assert refused(answer) == (504, "deadline_exceeded")
        assert it.pool.batcher.models[0].metrics.admitted == admitted_before
        await works(it)


# -- 500 ----------------------------------------------------------------------------------


@on_loop
async def test_the_model_raises() -> None:
    async with edge(Picky, max_batch=1) as it:
        path = "/v2/models/picky/infer"
        bad = {"inputs": [numbers("x", np.array([[1.0, -1.0]]), "FP64")]}
        good = {"inputs": [numbers("x", np.array([[1.0, 4.0]]), "FP64")]}
        mine, theirs = await gathered([it.http.post(path, json=bad), it.http.post(path, json=good)])
        assert refused(mine) == (500, "model_error")
        assert "a negative number came" in mine.json()["error"]
        assert split(theirs)[0]["outputs"][0]["data"] == [1.0, 2.0]
        assert it.pool.lane_client("picky").allocator.claimed == 0


@on_loop
async def test_one_bad_row_fails_its_request() -> None:
    async with edge(Picky, max_batch=2) as it:
        x = np.array([[1.0, 1.0]] * 7 + [[-1.0, 1.0]])
        headers, body = binary({}, ("x", "FP64", x))
        answer = await it.http.post("/v2/models/picky/infer", headers=headers, content=body)
        assert refused(answer) == (500, "model_error")
        assert it.pool.lane_client("picky").allocator.claimed == 0


@on_loop
async def test_the_worker_is_lost() -> None:
    async with edge(Affine) as it:
        it.pool.hold = True
        it.pool.batcher.models[0].attempts = 1
        task = it.client_loop._loop.create_task(it.http.post(INFER, json=affine(1)))
        proxy = it.pool.batcher.workers.by_number[0]
        await until(lambda: proxy.in_flight == 1, "the row runs")
        (batch,) = proxy.batches.values()
        proxy.worker_segment.launched.set(batch.token)  # it died while it ran the row
        it.pool.batcher.lose_worker(0)
        answer = await task
        assert refused(answer) == (500, WorkerLost.code)
        assert it.pool.lane_client("affine").allocator.claimed == 0


@pytest.mark.interpreted
@on_loop
async def test_a_fault_of_ours_is_logged_and_tells_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(Affine) as it:

        def fall(self: HttpEndpoint, *arguments: Any) -> Any:
            raise ZeroDivisionError("secret detail")

        for step in ("parse", "submit", "encode"):
            with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
                caplog.clear()
                patch.setattr(HttpEndpoint, step, fall)
                answer = await it.http.post(INFER, json=affine(1))
            assert refused(answer) == (500, "internal")
            assert "secret" not in answer.text
            assert "secret detail" in caplog.text
            assert "Traceback" in caplog.text
            await works(it)
