"""Outputs over HTTP are whole or refused, and no memory but the request's own is in them."""

from __future__ import annotations

import concurrent.futures as cf
import json
from typing import Any

import pytest

from tests.process.pool_under_test import Pool
from tests.process.web import Answer, ask, json_body, msgpack_body, outputs

SIZES = [0, 1, 63, 64, 65, 640, 64, 3] * 6  # at most 64 fit
GROW = "/v2/models/grow/infer"


def grown(size: int) -> dict[str, Any]:
    return {"numbers": list(range(size)), "blob": (b"ab\0" * size)[:size]}


def flat(answer: Answer) -> dict[str, Any]:
    """The outputs of one row."""
    found = outputs(answer)
    numbers, (blob,) = found["numbers"], found["blob"]
    if numbers and isinstance(numbers[0], list):
        (numbers,) = numbers
    return {"numbers": numbers, "blob": blob.encode() if isinstance(blob, str) else blob}


def as_binary(pool: Pool, size: int) -> Answer:
    request = json.loads(json_body("size", [size]))
    request["parameters"] = {"binary_data_output": True}
    return ask(pool, GROW, json.dumps(request).encode())


def as_json(pool: Pool, size: int) -> Answer:
    return ask(pool, GROW, json_body("size", [size]))


def as_raw(pool: Pool, size: int) -> Answer:
    headers = {"Inference-Header-Content-Length": "0"}
    return ask(pool, GROW, size.to_bytes(8, "little"), headers)


@pytest.mark.parametrize("way", [as_binary, as_json, as_raw])
def test_outputs_of_every_size_are_whole_or_an_error(everyday: Pool, way: Any) -> None:
    """C05, C22: several callers at once, below, at and above the slot's size; those that fit are
    exact, also texts that end in NUL bytes, and the others say what fits."""
    with cf.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda size: way(everyday, size), SIZES))
    for size, answer in zip(SIZES, answers, strict=True):
        if size <= 64:
            assert answer.status == 200, answer.body
            assert flat(answer) == grown(size)
        else:
            assert answer.refused == (500, "model_error")
            assert f"{size}" in answer.object["error"]
            assert "64" in answer.object["error"]


def test_a_msgpack_answer_is_whole_too(everyday: Pool) -> None:
    import msgpack

    headers = {"Content-Type": "application/msgpack"}
    found = msgpack.unpackb(ask(everyday, GROW, msgpack_body("size", [64]), headers).body)
    numbers = found["outputs"]["numbers"]
    assert numbers["shape"] == [1, 64]
    assert len(numbers["data"]) == 64 * 4
    assert ask(everyday, GROW, msgpack_body("size", [65]), headers).refused == (500, "model_error")


REGION = {"shared_memory_region": "batchpool-lane", "shared_memory_byte_size": 16}


@pytest.mark.parametrize("kind", ["systemsharedmemory", "cudasharedmemory"])
def test_no_region_can_be_registered(everyday: Pool, kind: str) -> None:
    """C50: the extension is not offered; its paths say so and the metadata is silent."""
    body = json.dumps({"key": "/batchpool", "offset": 2**40, "byte_size": 2**40}).encode()
    refused = ask(everyday, f"/v2/{kind}/region/r/register", body)
    assert refused.refused == (501, "not_supported")
    assert ask(everyday, f"/v2/{kind}/status").object == []
    extensions = ask(everyday, "/v2").object["extensions"]
    assert not any("shared" in name for name in extensions)


@pytest.mark.parametrize("offset", [0, -1, 2**63, 8])
def test_no_tensor_can_come_from_a_region_or_go_to_one(everyday: Pool, offset: int) -> None:
    """C50: 400 for each, in words, and the next request is served."""
    region = {**REGION, "shared_memory_offset": offset}
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    asked = {"inputs": [{**x, "parameters": region}]}
    into = {
        "inputs": [{**x, "data": [1, 2, 3, 4]}],
        "outputs": [{"name": "y", "parameters": region}],
    }
    for form in (asked, into):
        refused = ask(everyday, "/v2/models/affine/infer", json.dumps(form).encode())
        assert refused.refused == (400, "invalid_request")
        assert "shared" in refused.object["error"]
    good = json.dumps({"inputs": [{**x, "data": [1, 2, 3, 4]}]}).encode()
    assert outputs(ask(everyday, "/v2/models/affine/infer", good)) == {"y": [3, 5, 7, 9]}
