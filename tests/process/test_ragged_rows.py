"""Rows of different sizes through a pool: lists for local clients, NAME.sizes over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
import tritonclient.http as triton

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, serving
from tests.process.web import ask

INFER = "/v2/models/boxes/infer"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving({"import": "tests.process.tensor_models:Boxes", "max_batch": 16, "slots": 64},
                 server={"client_slots": 64}) as pool:  # fmt: skip
        yield pool


def boxes(*counts: int) -> list[Any]:
    return [np.arange(4 * n, dtype=np.float32).reshape(n, 4) + n for n in counts]


def labels(*counts: int) -> list[list[bytes]]:
    return [[b"%d/%d" % (k, n) for k in range(n)] for n in counts]


def assert_right(found: Any, counts: list[int]) -> None:
    """Each row of the outputs has its own size and values."""
    assert found["count"].tolist() == counts
    for i, n in enumerate(counts):
        np.testing.assert_array_equal(found["doubled"][i], boxes(n)[0] * 2)
        assert list(found["named"][i]) == [b"is " + label for label in labels(n)[0]]


@pytest.mark.parametrize("counts", [[3, 5], [0, 8, 1], [2, 0], [4, 4], [0, 0], [7], [1, 2] * 300])
def test_a_local_client_gives_and_gets_lists_where_rows_differ(
    pool: Pool, counts: list[int]
) -> None:
    """The last one needs several windows of the lane."""
    kind = list if len(set(counts)) > 1 else np.ndarray
    rows = {"boxes": boxes(*counts), "labels": labels(*counts)}
    with pool.client() as client:
        found = client.infer("boxes", rows)
        assert_right(found, counts)
        assert {type(found["doubled"]), type(found["named"])} == {kind}
        assert type(found["count"]) is np.ndarray
        assert found["doubled"][0].dtype == np.float32
        if len(counts) < 16:
            assert_right(client.submit("boxes", rows).result(PATIENCE_S), counts)
            as_lists = {"boxes": [row.tolist() for row in rows["boxes"]], "labels": labels(*counts)}
            assert_right(client.infer("boxes", as_lists), counts)

    async def awaited() -> Any:
        async with bp.AsyncClient(pool.socket) as client:
            return await client.infer("boxes", rows)

    assert_right(asyncio.run(awaited()), counts)


def test_windows_of_one_size_each_are_rows_of_their_own_size(pool: Pool) -> None:
    counts = [2] * 100 + [3] * 100
    with pool.client() as client:
        found = client.infer("boxes", boxes=boxes(*counts), labels=labels(*counts))
        assert_right(found, counts)
        assert type(found["doubled"]) is list


def test_rows_that_do_not_fit_are_named(pool: Pool) -> None:
    with pool.client() as client:
        with pytest.raises(bp.TooLarge, match=r"row 1: input 'boxes' has shape \[1, 9, 4\]"):
            client.infer("boxes", boxes=boxes(2, 9), labels=labels(2, 9))
        text = "input 'labels' has 1 along 'box' in row 0, but input 'boxes' has 2"
        with pytest.raises(bp.InvalidRequest, match=text):
            client.infer("boxes", boxes=boxes(2, 1), labels=labels(1, 2))


def padded(counts: list[int]) -> dict[str, Any]:
    """The inputs of the rows, padded, beside their sizes."""
    most = max(counts)
    x = np.full((len(counts), most, 4), 77, np.float32)
    words = np.full((len(counts), most), b"pad", object)
    for i, n in enumerate(counts):
        x[i, :n], words[i, :n] = boxes(n)[0], labels(n)[0]
    sizes = np.array(counts)[:, np.newaxis]
    return {"boxes": x, "boxes.sizes": sizes, "labels": words, "labels.sizes": sizes}


def unpadded(found: dict[str, Any]) -> dict[str, Any]:
    """Outputs cut to the sizes that came with them."""
    return {
        name: [row[:n] for row, (n,) in zip(array, found[f"{name}.sizes"], strict=True)]
        if f"{name}.sizes" in found
        else array
        for name, array in found.items()
        if not name.endswith(".sizes")
    }


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("counts", [[3, 5], [0, 8, 1], [1, 2] * 20])
def test_the_official_client_gets_the_sizes_as_a_tensor(
    pool: Pool, counts: list[int], binary_in: bool, asked: bool | None
) -> None:
    kinds = {"boxes": "FP32", "labels": "BYTES"}
    inputs = []
    for name, array in padded(counts).items():
        given = triton.InferInput(name, array.shape, kinds.get(name, "INT64"))
        given.set_data_from_numpy(array, binary_data=binary_in)
        inputs.append(given)
    names = ["doubled", "named", "count"]
    outputs = None if asked is None else [
        triton.InferRequestedOutput(name, binary_data=asked) for name in names
    ]  # fmt: skip
    with triton.InferenceServerClient(f"127.0.0.1:{pool.port}") as client:
        answer = client.infer("boxes", inputs, outputs=outputs)
    found = {o["name"]: answer.as_numpy(o["name"]) for o in answer.get_response()["outputs"]}
    assert list(found) == [*names, "doubled.sizes", "named.sizes"]
    for name in ("doubled.sizes", "named.sizes"):
        assert (found[name].dtype, found[name].tolist()) == (np.int64, [[n] for n in counts])
    # JSON texts come as str.
    named = [[w if isinstance(w, bytes) else w.encode() for w in row] for row in found["named"]]
    assert_right(unpadded(found | {"named": named}), counts)
    # What is beyond a row's size is the declared pad.
    beyond = [row[n:] for row, n in zip(found["doubled"], counts, strict=True)]
    assert all((row == -5).all() for row in beyond)


def in_json(counts: list[int], **more: Any) -> bytes:
    kinds = {"boxes": "FP32", "labels": "BYTES"}
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": kinds.get(name, "INT64"),
            "data": [w.decode() for w in array.reshape(-1)] if name == "labels" else array.tolist(),
        }
        for name, array in padded(counts).items()
    ]
    return json.dumps({"inputs": inputs, **more}).encode()


def test_sizes_stand_in_the_answer_where_rows_differ_or_they_are_asked_for(pool: Pool) -> None:
    def names(counts: list[int], **more: Any) -> list[str]:
        answer = ask(pool, INFER, in_json(counts, **more))
        assert answer.status == 200, answer.body
        return [output["name"] for output in answer.object["outputs"]]

    assert names([4, 4]) == ["doubled", "named", "count"]
    assert names([4]) == ["doubled", "named", "count"]
    assert names([4, 3]) == ["doubled", "named", "count", "doubled.sizes", "named.sizes"]
    assert names([4, 3], outputs=[{"name": "count"}]) == ["count"]
    assert names([4, 3], outputs=[{"name": "named"}]) == ["named", "named.sizes"]
    asked = [{"name": "named.sizes"}, {"name": "count"}, {"name": "named"}]
    assert names([4, 3], outputs=asked) == ["named.sizes", "count", "named"]
    assert names([4, 4], outputs=asked) == ["named.sizes", "count", "named"]
    answer = ask(pool, INFER, in_json([4, 4], outputs=[{"name": "named.sizes"}]))
    (sizes,) = answer.object["outputs"]
    assert (sizes["datatype"], sizes["shape"], sizes["data"]) == ("INT64", [2, 1], [4, 4])


def test_ragged_rows_as_msgpack(pool: Pool) -> None:
    counts = [3, 0, 5]
    kinds = {"boxes": "FP32", "labels": "BYTES"}
    inputs = {
        name: {
            "dtype": kinds.get(name, "INT64"),
            "shape": list(array.shape),
            "data": array.reshape(-1).tolist() if name == "labels" else array.tobytes(),
        }
        for name, array in padded(counts).items()
    }
    headers = {"Content-Type": "application/msgpack"}
    answer = msgpack.unpackb(ask(pool, INFER, msgpack.packb({"inputs": inputs}), headers).body)
    found = {}
    for name, tensor in answer["outputs"].items():
        flat: Any = tensor["data"]
        if tensor["dtype"] != "BYTES":
            flat = np.frombuffer(flat, {"FP32": "<f4", "INT64": "<i8"}[tensor["dtype"]])
        found[name] = np.array(flat, object if tensor["dtype"] == "BYTES" else None)
        found[name] = found[name].reshape(tensor["shape"])
    assert list(found) == ["doubled", "named", "count", "doubled.sizes", "named.sizes"]
    assert_right(unpadded(found), counts)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([[3], [6]], "input 'boxes.sizes': row 1 has [6]; at most [5], as in input 'boxes'"),
        ([[-1], [5]], "input 'boxes.sizes': row 0 has [-1]"),
        ([[3]], "input 'boxes.sizes' has 1 rows, but input 'boxes' has 2"),
        ([[3, 1], [5, 1]], "input 'boxes.sizes' has shape [2, 2]; [n, 1] was expected"),
        ([[3], [4]], "input 'labels' has 5 along 'box' in row 1, but input 'boxes' has 4"),
    ],
)
def test_sizes_that_cannot_be_right(pool: Pool, sizes: list[Any], text: str) -> None:
    head = json.loads(in_json([3, 5]))
    given = next(tensor for tensor in head["inputs"] if tensor["name"] == "boxes.sizes")
    given |= {"shape": list(np.shape(sizes)), "data": sizes}
    answer = ask(pool, INFER, json.dumps(head).encode())
    assert answer.refused == (400, "invalid_request")
    assert text in answer.object["error"]


def test_sizes_without_their_input(pool: Pool) -> None:
    head = json.loads(in_json([3, 5]))
    head["inputs"] = [tensor for tensor in head["inputs"] if tensor["name"] != "boxes"]
    answer = ask(pool, INFER, json.dumps(head).encode())
    assert answer.refused == (400, "invalid_request")
    assert "input 'boxes' of model 'boxes' is missing" in answer.object["error"]
