"""Open Inference Protocol requests: null, minus zero, and texts as parameters."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from batchpool.core.errors import TooLarge
from batchpool.core.tensors.spec import ModelSpec, Tensor
from tests.unit.wire.calls import AFFINE, GOOD, X, ask, echo, refused


def test_null_data_and_a_null_parameter_are_no_absent_ones() -> None:
    bare = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": None}
    assert "input 'x': its data is null; a list was expected" in refused(AFFINE, {"inputs": [bare]})
    sized = bare | {"parameters": {"binary_data_size": 16}}
    assert "both came" in refused(AFFINE, {"inputs": [sized]}, X)
    unsized = GOOD["inputs"][0] | {"parameters": {"binary_data_size": None}}
    assert "got `null`" in refused(AFFINE, {"inputs": [unsized]})
    asked = GOOD | {"outputs": [{"name": "y", "parameters": {"binary_data": None}}]}
    assert "output 'y': Expected `bool`, got `null`" in refused(AFFINE, asked)
    for name in ("top_k", "timeout", "priority", "binary_data_output", "unknown"):
        text = f"parameter '{name}' is null; a value, or no such parameter, was expected"
        assert text in refused(AFFINE, GOOD | {"parameters": {name: None}})


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_minus_zero_in_json_is_the_float_minus_zero(datatype: str) -> None:
    spec = echo({"FP32": "float32", "FP64": "float64"}[datatype], (5,))
    for data in (b"[-0,0,-0.0,1,-0]", b"[[-0, 0, -0e0, -0.5, -0 ]]"):
        head = b'{"inputs":[{"name":"x","shape":[1,5],"datatype":"%s","data":%s}]}'
        found = ask(spec, head % (datatype.encode(), data)).rows.tensors["x"]
        assert np.signbit(found).tolist() == [[True, False, True, data[1:2] == b"[", True]]
        assert found[0, :3].tolist() == [0, 0, 0]


def test_minus_zero_in_json_is_the_integer_zero() -> None:
    head = b'{"inputs":[{"name":"x","shape":[-0,2],"datatype":"INT32","data":[-0,-7]}]}'
    good = head.replace(b"[-0,2]", b"[1,2]")
    assert ask(echo("int32", (2,)), good).rows.tensors["x"].tolist() == [[0, -7]]
    assert "0 rows" in refused(echo("int32", (2,)), head)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_minus_zero_as_a_parameter(dtype: str) -> None:
    parameters = (Tensor("bias", dtype), Tensor("top_k", "int64", default=5))
    spec = ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, parameters)
    text = json.dumps(GOOD | {"id": "-0"})[:-1].encode()
    for bias, negative in ((b"-0", True), (b"0", False), (b" -0.0 ", True), (b"0.0", False)):
        head = text + b', "parameters": {"top_k": -0, "bias": %s}}' % bias
        values = ask(spec, head).rows.parameters
        assert values["top_k"] == 0
        assert math.copysign(1, values["bias"]) == (-1 if negative else 1) or dtype == "bfloat16"
        if dtype == "bfloat16":
            assert values["bias"] == (0x8000 if negative else 0)


LANGUAGE = ModelSpec(
    "m",
    "numpy",
    AFFINE.inputs,
    AFFINE.outputs,
    (Tensor("language", "bytes", max_bytes=4, default="en"),),
)


def test_a_text_parameter_arrives_as_its_bytes() -> None:
    assert ask(LANGUAGE, GOOD).rows.parameters == {"language": b"en"}
    asked = GOOD | {"parameters": {"language": "déu"}}
    assert ask(LANGUAGE, asked).rows.parameters == {"language": "déu".encode()}
    wrong = GOOD | {"parameters": {"language": 3}}
    assert "parameter 'language' is a int; one bytes or str" in refused(LANGUAGE, wrong)
    long = GOOD | {"parameters": {"language": "Latin"}}
    text = refused(LANGUAGE, long, kind=TooLarge)
    assert text == "parameter 'language' has 5 bytes; at most 4 fit (max_bytes in the model)"
