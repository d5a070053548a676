"""The calls of a replica of another framework, on a real pool."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

import batchpool as bp
from batchpool.contrib.pool_calls import PoolCalls
from batchpool.core.errors import ConfigError
from tests.process.pool_under_test import Pool


def request_of(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_rows_of_many_callers_have_their_own_answers(everyday: Pool) -> None:
    async def all_answers() -> list[Any]:
        calls = PoolCalls(everyday.socket, "affine")
        try:
            await calls.check_health()
            rows = [np.full(4, n, np.float32) for n in range(200)]
            named = [calls({"x": row}) for row in rows[:100]]
            return await asyncio.gather(*named, *map(calls, rows[100:]))
        finally:
            await calls.close()

    for n, outputs in enumerate(asyncio.run(all_answers())):
        np.testing.assert_array_equal(outputs["y"], np.full(4, 2 * n + 1, np.float32))


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"x": [1, 2, 3, 4]}', 200, {"y": [3, 5, 7, 9]}),
        (b"[1, 2, 3, 4]", 200, {"y": [3, 5, 7, 9]}),
        (b"{", 400, "the body is no JSON"),
        (b"{}", 400, "the body has no 'x'"),
        (b'{"x": [1, 2]}', 400, "has shape [1, 2]"),
    ],
)
def test_a_request_over_http_has_json_of_its_row_or_of_its_error(
    everyday: Pool, body: bytes, status: int, said: Any
) -> None:
    async def answer() -> Any:
        calls = PoolCalls(everyday.socket, "affine")
        try:
            return await calls(request_of(body))
        finally:
            await calls.close()

    response = asyncio.run(answer())
    assert response.status_code == status
    found = json.loads(response.body)
    if status == 200:
        assert found == said
    else:
        assert said in found["error"]
        assert found["code"] == "invalid_request"


def test_a_model_is_named_where_a_pool_has_several(everyday: Pool) -> None:
    with pytest.raises(ConfigError, match="serves no model 'z'; it serves 'affine'"):
        PoolCalls(everyday.socket, "z")
    with pytest.raises(ConfigError, match="model=NAME was expected"):
        PoolCalls(everyday.socket)


def test_the_value_of_the_only_input_needs_a_model_with_one(everyday: Pool) -> None:
    async def call() -> None:
        calls = PoolCalls(everyday.socket, "probe")
        try:
            await calls(1.0)
        finally:
            await calls.close()

    with pytest.raises(bp.InvalidRequest, match=r"the inputs .tag., .seconds., .gate.; a dict"):
        asyncio.run(call())
