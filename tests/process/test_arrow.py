"""Streams of Arrow over HTTP: the values of the binary form, and errors that are the caller's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.process.pool_under_test import PATIENCE_S, Pool

TYPE = "application/vnd.apache.arrow.stream"
X = np.arange(1024, dtype=np.float32).reshape(256, 4)


def stream(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def affine_body(rows: Any = X) -> bytes:
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 4)
    return stream(pa.record_batch([column], names=["x"]))


def ask(pool: Pool, model: str, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{pool.port}/v2/models/{model}/infer",
        content=body,
        headers={"Content-Type": TYPE, **headers},
        timeout=PATIENCE_S,
    )


def test_front_ends_have_loaded_pyarrow_before_the_first_body(everyday: Pool) -> None:
    """Loading it then would hold up all other requests, for seconds where its files are cold."""
    assert everyday.pids("frontend")
    for pid in everyday.pids("frontend"):
        assert "libarrow" in Path(f"/proc/{pid}/maps").read_text()


def test_rows_go_in_and_come_out_as_arrow(everyday: Pool) -> None:
    answer = ask(everyday, "affine", affine_body())
    assert (answer.status_code, answer.headers["content-type"]) == (200, TYPE)
    table = pa.ipc.open_stream(answer.content).read_all()
    y = table["y"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(y, X * 2 + 1)
    assert table.schema.metadata[b"batchpool.model_name"] == b"affine"
    lists = ask(everyday, "affine", affine_body(), Accept=f"{TYPE};tensor=list")
    found = pa.ipc.open_stream(lists.content).read_all()["y"]
    assert pa.types.is_fixed_size_list(found.type)
    assert found.to_pylist() == (X * 2 + 1).tolist()


def test_texts_and_rows_of_different_sizes(everyday: Pool) -> None:
    texts = pa.record_batch({"text": [f"text {i}" for i in range(9)]})
    answer = ask(everyday, "echo", stream(texts))
    found = pa.ipc.open_stream(answer.content).read_all().to_pydict()
    assert found["text"] == [f"text {i}".encode() for i in range(9)]
    ids = [[1, 2], [], [3]]
    batch = pa.record_batch({"ids": pa.array(ids, pa.list_(pa.int64()))})
    answer = ask(everyday, "ragged", stream(batch))
    found = pa.ipc.open_stream(answer.content).read_all().to_pydict()
    assert found == {"next": [[2, 3], [], [4]], "sum": [3, 0, 3]}


def test_a_long_body_is_read_beside_the_loop(everyday: Pool) -> None:
    texts = pa.record_batch({"text": ["x" * 4096] * 128})
    body = stream(texts)
    assert len(body) > 256 * 1024
    answer = ask(everyday, "echo", body)
    assert pa.ipc.open_stream(answer.content).read_all()["length"].to_pylist() == [4096] * 128


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_errors_are_json_and_the_callers(everyday: Pool, coding: str) -> None:
    nulls = pa.record_batch({"text": pa.array(["a", None])})
    answer = ask(everyday, "echo", stream(nulls), **{"Accept-Encoding": coding})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("column 'text': row 1 is null")


def test_broken_bodies_are_no_fault_of_the_server(everyday: Pool) -> None:
    chance = random.Random(3)
    body = affine_body(X[:8])
    with httpx.Client(timeout=PATIENCE_S) as client:
        for _ in range(200):
            broken = bytearray(body)
            for _ in range(chance.choice((1, 2, 8))):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            answer = client.post(
                f"http://127.0.0.1:{everyday.port}/v2/models/affine/infer",
                content=bytes(broken),
                headers={"Content-Type": TYPE},
            )
            assert answer.status_code in (200, 400, 413), answer.text
    assert ask(everyday, "affine", affine_body()).status_code == 200


def test_the_description_of_the_api_tells_of_it(everyday: Pool) -> None:
    document = httpx.get(f"http://127.0.0.1:{everyday.port}/openapi.json", timeout=60).json()
    infer = document["paths"]["/v2/models/affine/infer"]["post"]
    assert TYPE in infer["requestBody"]["content"]
    assert TYPE in infer["responses"]["200"]["content"]
