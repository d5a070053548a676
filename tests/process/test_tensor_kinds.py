"""Texts, lists and parameters of every kind, from a caller through a pool to the model and back."""

from __future__ import annotations

import concurrent.futures as cf
import json
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.process.pool_under_test import Pool, serving
from tests.process.web import ask, outputs

MODELS = "tests.process.tensor_models"
INFER = "/v2/models/greet/infer"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    greet = {"import": f"{MODELS}:Greet", "batch_sizes": [4, 8], "max_wait_ms": 20}
    with serving(greet, f"{MODELS}:Masked") as pool:
        yield pool


def body(*names: str, **parameters: Any) -> bytes:
    inputs = [{"name": "name", "shape": [len(names)], "datatype": "BYTES", "data": list(names)}]
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def test_text_parameters_of_several_callers_ride_in_one_padded_batch(pool: Pool) -> None:
    """C16: each caller's own, or its default."""
    with pool.client() as client, cf.ThreadPoolExecutor(4) as threads:
        asked = [({"language": "de", "times": 2}, b"hallo hallo Eva"), ({}, b"hello Eva"),
                 ({"language": b"de"}, b"hallo Eva"), ({"language": ""}, b"Eva"),
                 ({"language": "l\0"}, b"l\0 Eva")]  # fmt: skip
        futures = [
            threads.submit(client.infer, "greet", name=[b"Eva"], parameters=parameters)
            for parameters, _ in asked * 5
        ]
        for future, (_, said) in zip(futures, asked * 5, strict=True):
            assert future.result()["said"].tolist() == [said]
        with pytest.raises(bp.TooLarge, match="parameter 'language' has 9 bytes; at most 8 fit"):
            client.infer("greet", name=[b"Eva"], parameters={"language": "Mandarins"})
        with pytest.raises(bp.InvalidRequest, match="parameter 'language' is None"):
            client.infer("greet", name=[b"Eva"], parameters={"language": None})


def test_text_parameters_over_http(pool: Pool) -> None:
    found = outputs(ask(pool, INFER, body("Eva", "Al", language="de")))
    assert found["said"] == ["hallo Eva", "hallo Al"]
    assert ask(pool, INFER, body("Eva", language=5)).refused == (400, "invalid_request")
    assert ask(pool, INFER, body("Eva", language="Mandarins")).refused == (413, "too_large")
    refused = ask(pool, INFER, body("Eva", language=None))
    assert refused.refused == (400, "invalid_request")
    assert "parameter 'language' is null" in refused.object["error"]


def test_lists_of_numbers_are_outputs(pool: Pool) -> None:
    with pool.client() as client:
        found = client.infer("greet", name=["Eva", "Ale"])
        assert (found["letters"].dtype, found["letters"].tolist()) == ("int64", [3, 3])
        assert (found["codes"].dtype, found["codes"].tolist()) == (
            "uint8",
            [list(b"Eva"), list(b"Ale")],
        )


def test_an_input_that_is_left_out_has_its_default_in_each_row(pool: Pool) -> None:
    with pool.client() as client:
        found = client.infer("masked", ids=[[5], [1, 2, 3], []])
        assert (found["sum"].tolist(), found["ones"].tolist()) == ([5, 6, 0], [1, 3, 0])
        found = client.infer("masked", ids=[[5, 6], [1, 2]], mask=[[1, 0], [0, 0]])
        assert (found["sum"].tolist(), found["ones"].tolist()) == ([5, 0], [1, 0])
    ids = {"name": "ids", "shape": [2, 2], "datatype": "INT64", "data": [5, 0, 1, 2]}
    answer = ask(pool, "/v2/models/masked/infer", json.dumps({"inputs": [ids]}).encode())
    assert outputs(answer) == {"sum": [5, 3], "ones": [2, 2]}
