"""Inputs with a default: left out of a request, they are rows of it."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.metadata import model_config
from batchpool.wire.schemas import model_schemas
from tests.unit.specs import X, model

TOKENS = Dim(8, "tokens")
IDS = Tensor("ids", "int64", (TOKENS,))
SPEC = model(
    Tensor("mask", "int8", (TOKENS,), default=1, pad=0),
    IDS,
    Tensor("bias", "float32", (2,), default=0.5),
    Tensor("half", "bfloat16", default=-2),
    Tensor("style", "bytes", (1,), max_bytes=8, default="plain"),
)
ONES = {"bias": [[0.5, 0.5]] * 2, "half": [0xC000] * 2, "style": [[b"plain"]] * 2}


def listed(rows: Any) -> dict[str, Any]:
    return {name: array.tolist() for name, array in rows.tensors.items()}


def test_what_is_left_out_is_full_of_its_default() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    rows = check_rows(SPEC, {"ids": ids})
    assert rows.n == 2
    assert listed(rows) == {"ids": ids.tolist(), "mask": [[1, 1, 1]] * 2, **ONES}
    assert rows.sizes == {}
    for tensor in SPEC.inputs:
        assert rows.tensors[tensor.name].dtype == tensor.np_dtype
    given = check_rows(SPEC, {"ids": ids, "mask": ids.astype(np.int8), "style": [["a"], ["b"]]})
    assert listed(given)["mask"] == ids.tolist()
    assert listed(given)["style"] == [[b"a"], [b"b"]]


def test_a_text_default_keeps_its_last_bytes() -> None:
    spec = model(X, Tensor("style", "bytes", (1,), max_bytes=8, default="a\0\0"))
    rows = check_rows(spec, {"x": np.zeros((2, *X.max_shape), X.np_dtype)})
    assert listed(rows)["style"] == [[b"a\0\0"]] * 2


def test_a_default_of_bytes_is_text_or_refused() -> None:
    assert Tensor("style", "bytes", max_bytes=8, default="é".encode()).default == "é"
    with pytest.raises(ConfigError, match="tensor 'style': default b"):
        Tensor("style", "bytes", max_bytes=8, default=b"\xff")


def test_a_default_has_the_size_of_each_row_along_a_named_dimension() -> None:
    rows = check_rows(SPEC, {"ids": [[1], [2, 3]]})
    assert listed(rows) == {"ids": [[1, 0], [2, 3]], "mask": [[1, 1]] * 2, **ONES}
    # Beyond its own size a row of the mask is the pad when the model sees it.
    assert rows.sizes["mask"].tolist() == rows.sizes["ids"].tolist() == [[1], [2]]


def test_an_input_without_a_default_must_be_there() -> None:
    for tensors in ({}, {"mask": np.ones((2, 3), np.int8)}):
        with pytest.raises(InvalidRequest, match="input 'ids' of model 'm' is missing"):
            check_rows(SPEC, tensors)
    text = "input 'bias' has 1 rows, but input 'ids' has 2"
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        check_rows(SPEC, {"ids": [[1], [2]], "bias": [[1, 2]]})


def test_the_same_over_http() -> None:
    codec = Codec(SPEC)

    def parsed(*inputs: dict[str, Any]) -> Any:
        return codec.parse({}, json.dumps({"inputs": inputs}).encode()).rows

    ids = {"name": "ids", "datatype": "INT64", "shape": [2, 2], "data": [1, 0, 2, 3]}
    sizes = {"name": "ids.sizes", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}
    mask = {"name": "mask", "datatype": "INT8", "shape": [2, 2], "data": [1, 0, 1, 1]}
    assert listed(parsed(ids)) == {"ids": [[1, 0], [2, 3]], "mask": [[1, 1]] * 2, **ONES}
    assert listed(parsed(ids, mask))["mask"] == [[1, 0], [1, 1]]
    assert parsed(ids, sizes).sizes["mask"].tolist() == [[1], [2]]
    with pytest.raises(InvalidRequest, match="input 'ids' of model 'm' is missing"):
        parsed(mask)
    lone = {"name": "mask.sizes", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}
    with pytest.raises(InvalidRequest, match=r"'mask\.sizes' came without the input 'mask'"):
        parsed(ids, lone)


def test_metadata_names_what_is_optional() -> None:
    config = model_config(SPEC, 8)["input"]
    assert {tensor["name"]: tensor.get("optional", False) for tensor in config} == {
        "mask": True,
        "ids": False,
        "bias": True,
        "half": True,
        "style": True,
    }
    inputs = model_schemas(SPEC)["Request"]["properties"]["inputs"]
    assert (inputs["minItems"], inputs["maxItems"]) == (1, 5 + 2)  # two have sizes
    assert ModelSpec.from_wire(SPEC.to_wire()) == SPEC
    assert "optional" not in model_config(model(X), 8)["input"][0]
