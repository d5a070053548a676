"""The official clients, unmodified, against a real pool."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.process.pool_under_test import Pool

MIXES = list(itertools.product([True, False], [True, False, None]))


def at(pool: Pool) -> str:
    return f"127.0.0.1:{pool.port}"


@pytest.fixture
def client(everyday: Pool) -> Any:
    with triton.InferenceServerClient(at(everyday), concurrency=4) as client:
        yield client


def wanted(kind: Any, names: list[str], binary: bool | None) -> Any:
    """The outputs asked for; None asks for none, which means all of them."""
    return None if binary is None else [kind(name, binary_data=binary) for name in names]


def test_health_metadata_and_config(client: Any) -> None:
    """C51: an off-the-shelf client's questions."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine")
    assert client.is_model_ready("affine", "1")
    server = client.get_server_metadata()
    assert server["name"] == "batchpool"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("ragged")
    assert model["inputs"] == [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
    assert model["outputs"][1] == {"name": "sum", "datatype": "INT64", "shape": [-1]}
    config = client.get_model_config("affine")
    assert config["max_batch_size"] == 64
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]


@pytest.mark.parametrize(("binary_in", "binary_out"), MIXES)
def test_numbers_in_every_mix(client: Any, binary_in: bool, binary_out: bool | None) -> None:
    """C51: an off-the-shelf client's requests; the id comes back."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = triton.InferInput("x", [3, 4], "FP32")
    given.set_data_from_numpy(x, binary_data=binary_in)
    outputs = wanted(triton.InferRequestedOutput, ["y"], binary_out)
    found = client.infer("affine", [given], outputs=outputs, request_id="tag-7")
    assert np.array_equal(found.as_numpy("y"), x * 2 + 1)
    assert found.get_response()["id"] == "tag-7"
    assert found.get_response()["model_name"] == "affine"


@pytest.mark.parametrize(("binary_in", "binary_out"), MIXES)
def test_text_in_every_mix(client: Any, binary_in: bool, binary_out: bool | None) -> None:
    """C52: an off-the-shelf client reads what it wrote."""
    texts = ["", "a", "zwölf Boxkämpfer", "😀" * 20]
    given = triton.InferInput("text", [4], "BYTES")
    given.set_data_from_numpy(
        np.array([t.encode() for t in texts], dtype=object), binary_data=binary_in
    )
    outputs = wanted(triton.InferRequestedOutput, ["text", "length"], binary_out)
    found = client.infer("echo", [given], outputs=outputs)
    # The client gives text that came as JSON as str, and binary text as bytes.
    came = [t if isinstance(t, str) else t.decode() for t in np.ravel(found.as_numpy("text"))]
    assert came == texts
    assert found.as_numpy("length").tolist() == [len(t.encode()) for t in texts]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(client: Any, coding: str) -> None:
    x = np.ones((64, 4), dtype=np.float32)
    given = triton.InferInput("x", [64, 4], "FP32")
    given.set_data_from_numpy(x)
    found = client.infer(
        "affine",
        [given],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.array_equal(found.as_numpy("y"), x * 2 + 1)


def test_more_rows_than_a_batch_come_back_in_order(client: Any) -> None:
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    given = triton.InferInput("x", [1000, 4], "FP32")
    given.set_data_from_numpy(x)
    assert np.array_equal(client.infer("affine", [given]).as_numpy("y"), x * 2 + 1)


def test_errors_are_the_clients_own_exceptions(client: Any) -> None:
    """C51: 400 and 404 as that client expects."""
    given = triton.InferInput("x", [1, 3], "FP32")
    given.set_data_from_numpy(np.zeros((1, 3), dtype=np.float32))
    with pytest.raises(InferenceServerException, match=r"input 'x' has shape \[1, 3\]") as wrong:
        client.infer("affine", [given])
    assert wrong.value.status() == "400"
    with pytest.raises(InferenceServerException, match="there is no model 'nope'") as unknown:
        client.get_model_metadata("nope")
    assert unknown.value.status() == "404"
    assert not client.is_model_ready("nope")


# The client does not read the bodies of answers about health.
@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
def test_the_aio_client(everyday: Pool) -> None:
    async def work() -> None:
        async with triton_aio.InferenceServerClient(at(everyday)) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("echo"))["name"] == "echo"
            assert (await client.get_model_config("echo"))["max_batch_size"] == 64

            async def call(tag: int, binary_in: bool, binary_out: bool | None) -> None:
                x = np.full((2, 4), tag, dtype=np.float32)
                given = triton_aio.InferInput("x", [2, 4], "FP32")
                given.set_data_from_numpy(x, binary_data=binary_in)
                outputs = wanted(triton_aio.InferRequestedOutput, ["y"], binary_out)
                found = await client.infer("affine", [given], outputs=outputs)
                assert np.array_equal(found.as_numpy("y"), x * 2 + 1)

            calls = (call(i, *mix) for i, mix in enumerate(MIXES * 20))
            await asyncio.gather(*calls)

    asyncio.run(work())
