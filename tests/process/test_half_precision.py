"""FP16 and BF16 through a real pool: every bit pattern, the right label, the right rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.lazy import library
from tests.process.pool_under_test import Pool, serving
from tests.process.web import HEADER_LENGTH, Answer, ask

torch = library("torch")

MODELS = "tests.process.half_models"
WIDTH = 256  # of its tensors
EVERY = np.arange(2**16, dtype="<u2").reshape(-1, WIDTH)
ROWS = len(EVERY)
SINGLES = {
    0.01: 0x3C24,  # 0x3C23 with its bits cut
    1.00390625: 0x3F80,  # halfway between two, the lower of which is even
    1.01171875: 0x3F82,  # halfway between two, the upper of which is even
    -1.01171875: 0xBF82,
    3.4e38: 0x7F80,  # nearer to 2**128 than to the largest: infinity
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(f"{MODELS}:TorchHalves", f"{MODELS}:NumpyHalves") as pool:
        yield pool


def infer(pool: Pool, model: str, arrays: dict[str, Any], datatypes: dict[str, str]) -> Answer:
    """All inputs and outputs in binary."""
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": datatypes[name],
         "parameters": {"binary_data_size": array.nbytes}}
        for name, array in arrays.items()
    ]  # fmt: skip
    form = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(form).encode()
    body = head + b"".join(array.tobytes() for array in arrays.values())
    return ask(pool, f"/v2/models/{model}/infer", body, {HEADER_LENGTH: f"{len(head)}"})


def bits(answer: Answer) -> dict[str, tuple[str, Any]]:
    """{output: (datatype, its bits)} of outputs that have two bytes each."""
    assert answer.status == 200, answer
    at = int(answer.headers[HEADER_LENGTH])
    found = {}
    for output in json.loads(answer.body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        values = np.frombuffer(answer.body[at : at + size], "<u2").reshape(output["shape"])
        found[output["name"]] = output["datatype"], values
        at += size
    assert at == len(answer.body)
    return found


@pytest.mark.parametrize("model", ["torchhalves", "numpyhalves"])
@pytest.mark.long
def test_every_bit_pattern_comes_back_under_its_own_name(pool: Pool, model: str) -> None:
    """C54: all 65,536 of each type; FP16 is called FP16 and BF16 is called BF16."""
    arrays: dict[str, Any] = {"half": EVERY, "brain": EVERY}
    datatypes = {"half": "FP16", "brain": "BF16"}
    if model == "torchhalves":
        arrays["single"], datatypes["single"] = np.zeros(ROWS, "<f4"), "FP32"
    found = bits(infer(pool, model, arrays, datatypes))
    for name, datatype in (("half", "FP16"), ("brain", "BF16")):
        assert found[name][0] == datatype
        assert np.array_equal(found[name][1], EVERY)


def test_a_bfloat16_is_rounded_to_the_nearest(pool: Pool) -> None:
    """C54: 0.01 and halfway values, as torch in a model and as batchpool for a caller's numbers."""
    singles = np.array([*SINGLES], "<f4")
    zeros = np.zeros((len(singles), WIDTH), "<u2")
    arrays = {"half": zeros, "brain": zeros, "single": singles}
    datatypes = {"half": "FP16", "brain": "BF16", "single": "FP32"}
    found = bits(infer(pool, "torchhalves", arrays, datatypes))
    assert found["rounded"][0] == "BF16"
    assert found["rounded"][1].tolist() == [*SINGLES.values()]
    finite = [value for value, pattern in SINGLES.items() if pattern != 0x7F80]
    row = [*finite, *[0.0] * (WIDTH - len(finite))]
    with pool.client() as client:
        brain = client.infer("numpyhalves", half=np.zeros((1, WIDTH), "f2"), brain=[row])["brain"]
    assert brain.dtype == np.uint16
    assert brain[0, : len(finite)].tolist() == [SINGLES[value] for value in finite]


def test_json_is_refused_with_the_way_that_works(pool: Pool) -> None:
    """C54: the protocol's JSON has no numbers of half precision."""
    tensors = [
        {"name": name, "shape": [1, WIDTH], "datatype": datatype, "data": [0.5] * WIDTH}
        for name, datatype in (("half", "FP16"), ("brain", "BF16"))
    ]
    body = json.dumps({"inputs": tensors}).encode()
    refused = ask(pool, "/v2/models/numpyhalves/infer", body)
    assert refused.refused == (400, "invalid_request")
    assert "binary_data" in refused.object["error"]
