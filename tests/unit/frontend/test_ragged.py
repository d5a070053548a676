"""Rows of different sizes over HTTP: the same bytes on the fast and on the ASGI road."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.unit.frontend.calls import binary, numbers, packed
from tests.unit.frontend.frontend_double import request
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.roads import Visit, same

INFER = "/v2/models/cut/infer"
IDS = np.array([[1, 2, 9], [4, 5, 6]])
SIZES = np.array([[2], [3]])


class Cut(bp.Model):
    """`next` is `ids` + 1, each row of its own size."""

    framework = "numpy"
    inputs = [bp.Tensor("ids", "int64", (bp.Dim(4),))]
    outputs = [bp.Tensor("next", "int64", (bp.Dim(4),), pad=-1)]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        sizes = batch.sizes["ids"][:, 0].tolist()
        return {"next": [row[:n] + 1 for row, n in zip(batch["ids"], sizes, strict=True)]}


def as_json(**more: Any) -> bytes:
    inputs = [numbers("ids", IDS, "INT64"), numbers("ids.sizes", SIZES, "INT64")]
    return request(INFER, json.dumps({"inputs": inputs, **more}).encode())


def as_binary(**more: Any) -> bytes:
    tensors = ("ids", "INT64", IDS), ("ids.sizes", "INT64", SIZES)
    headers, body = binary(more, *tensors)
    return request(INFER, body, headers=headers)


def as_msgpack() -> bytes:
    inputs = {
        name: {"dtype": "INT64", "shape": list(array.shape), "data": array.tobytes()}
        for name, array in (("ids", IDS), ("ids.sizes", SIZES))
    }
    headers = {"Content-Type": "application/msgpack"}
    return request(INFER, packed({"inputs": inputs}), headers=headers)


@pytest.mark.parametrize(
    "sent",
    [
        as_json(),
        as_json(outputs=[{"name": "next.sizes"}, {"name": "next"}]),
        as_binary(parameters={"binary_data_output": True}),
        as_binary(),
        as_msgpack(),
    ],
    ids=["json", "json, asked for", "binary", "binary in, json out", "msgpack"],
)
@on_loop
async def test_both_roads_answer_ragged_rows_alike(sent: bytes) -> None:
    async def scenario(visit: Visit) -> None:
        for _ in range(2):
            await visit.send(sent)
            await visit.take()

    found = await same(scenario, Cut)
    assert found.fast == 2
    first, second = found.answers
    assert first == second
    assert b"next.sizes" in first
    assert first.startswith(b"HTTP/1.1 200")


@on_loop
async def test_the_answer_in_full() -> None:
    async def scenario(visit: Visit) -> None:
        await visit.send(as_json())
        await visit.take()

    (answer,) = (await same(scenario, Cut)).answers
    outputs = json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"]
    assert outputs == [
        {"name": "next", "datatype": "INT64", "shape": [2, 3], "data": [2, 3, -1, 5, 6, 7]},
        {"name": "next.sizes", "datatype": "INT64", "shape": [2, 1], "data": [2, 3]},
    ]
