"""Classification over a real pool, with the official clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.process.pool_under_test import Pool, serving

X = np.array([[0.25, 0.5, 0.125], [3, 1, 2]], dtype=np.float32)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving("tests.process.tensor_models:Animals") as pool:
        yield pool


def given(rows: Any) -> list[Any]:
    made = triton.InferInput("x", list(rows.shape), "FP32")
    made.set_data_from_numpy(rows)
    return [made]


def asked(binary: bool) -> list[Any]:
    return [
        triton.InferRequestedOutput("score", binary_data=binary, class_count=2),
        triton.InferRequestedOutput("half", binary_data=binary, class_count=1),
    ]


def texts(found: Any, name: str) -> list[list[str]]:
    """The classes; those that came binary are bytes."""
    rows = found.as_numpy(name).tolist()
    return [[each.decode() if isinstance(each, bytes) else each for each in row] for row in rows]


def is_right(found: Any) -> None:
    assert texts(found, "score") == [["0.5:1:dog", "0.25:0:cat"], ["3.0:0:cat", "2.0:2:Kühe"]]
    assert texts(found, "half") == [["1.0:1"], ["6.0:0"]]


@pytest.mark.parametrize("binary", [True, False])
def test_the_blocking_client_gets_values_indices_and_labels(pool: Pool, binary: bool) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{pool.port}") as client:
        is_right(client.infer("animals", given(X), outputs=asked(binary)))
        plain = client.infer("animals", given(X), outputs=[triton.InferRequestedOutput("score")])
        assert np.array_equal(plain.as_numpy("score"), X)


@pytest.mark.parametrize("binary", [True, False])
def test_the_asynchronous_client_does_too(pool: Pool, binary: bool) -> None:
    async def work() -> None:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{pool.port}") as client:
            is_right(await client.infer("animals", given(X), outputs=asked(binary)))

    asyncio.run(work())


def test_as_many_classes_as_a_thread_encodes(pool: Pool) -> None:
    rows = np.tile(X, (500, 1))
    with triton.InferenceServerClient(f"127.0.0.1:{pool.port}") as client:
        found = client.infer("animals", given(rows), outputs=asked(True))
    assert found.as_numpy("score").shape == (1000, 2)
    assert texts(found, "score")[-1] == ["3.0:0:cat", "2.0:2:Kühe"]


def test_a_wrong_number_of_classes_is_refused(pool: Pool) -> None:
    wish = triton.InferRequestedOutput("score", class_count=-1)
    with triton.InferenceServerClient(f"127.0.0.1:{pool.port}") as client:
        with pytest.raises(InferenceServerException, match="'classification' is '-1'") as refused:
            client.infer("animals", given(X), outputs=[wish])
        assert refused.value.status() == "400"
        assert "classification" in client.get_server_metadata()["extensions"]
