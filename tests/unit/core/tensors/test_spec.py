"""Declarations: what a model may declare of its tensors, and what they look like from outside."""

from __future__ import annotations

import json
import re
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.dtypes import DTYPE_OF_WIRE
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.specs import MIXED, model, specs

WIRE = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}


@pytest.mark.parametrize(("dtype", "wire"), WIRE.items())
def test_a_number_tensor(dtype: str, wire: str) -> None:
    tensor = Tensor("x", dtype, (2, Dim(3)))
    assert tensor.wire_dtype == wire
    assert DTYPE_OF_WIRE[wire] == dtype
    assert tensor.np_dtype == np.dtype("uint16" if dtype == "bfloat16" else dtype)
    assert tensor.np_dtype.isnative
    assert tensor.max_shape == (2, 3)
    assert tensor.dynamic == (1,)
    assert tensor.wire_shape == [-1, 2, -1]
    assert tensor.row_bytes == 6 * tensor.np_dtype.itemsize
    assert tensor.describe_shape() == "[n, 2, 0..3]"


def test_a_bytes_tensor() -> None:
    tensor = Tensor("text", "bytes", (Dim(3),), max_bytes=10)
    assert tensor.is_bytes
    assert (tensor.wire_dtype, DTYPE_OF_WIRE["BYTES"]) == ("BYTES", "bytes")
    assert tensor.np_dtype == np.dtype(object)
    assert tensor.row_bytes == 30
    assert tensor.stored_pad == b""


@pytest.mark.parametrize(
    ("dtype", "pad", "stored"),
    [
        ("float32", 0, 0.0),
        ("float32", -1.5, -1.5),
        ("int64", -100, -100),
        ("int64", -100.0, -100),
        ("uint8", 255, 255),
        ("bool", 1, True),
        ("bool", 1.0, True),
        # bfloat16 is the upper half of a float32, rounded to nearest, ties to even.
        ("bfloat16", 1, 0x3F80),
        ("bfloat16", -2.0, 0xC000),
        ("bfloat16", 0.01, 0x3C24),
        ("bfloat16", 1 + 2**-8, 0x3F80),
        ("bfloat16", 1 + 3 * 2**-8, 0x3F82),
        ("bfloat16", float("nan"), 0x7FC0),
        ("bfloat16", float("-inf"), 0xFF80),
    ],
)
def test_the_pad_as_it_is_stored(dtype: str, pad: float, stored: float) -> None:
    found = Tensor("x", dtype, (Dim(2),), pad=pad).stored_pad
    assert found == stored
    assert np.full(1, found, Tensor("x", dtype).np_dtype)[0] == stored


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Tensor("", "int8"), "a tensor's name must be a word, not ''"),
        (lambda: Tensor(3, "int8"), "a tensor's name must be a word, not 3"),
        (lambda: Tensor("x", "float"), "tensor 'x': unknown dtype 'float'; known: bool, uint8"),
        (lambda: Tensor("x", "complex64"), "unknown dtype 'complex64'"),
        (
            lambda: Tensor("x", "int8", (-1,)),
            "tensor 'x': bad dimension -1 in its shape; a size, or",
        ),
        (lambda: Tensor("x", "int8", 4), "tensor 'x': shape is 4; a tuple was expected, as (4,)"),
        (lambda: Tensor("x", "int8", "4"), "tensor 'x': shape is '4'; a tuple was expected"),
        (lambda: Tensor("x", "int8", ("n",)), "tensor 'x': bad dimension 'n'"),
        (lambda: Tensor("x", "int8", (2.0,)), "tensor 'x': bad dimension 2.0"),
        (lambda: Tensor("x", "bytes"), "tensor 'x': dtype 'bytes' needs max_bytes"),
        (lambda: Tensor("x", "int8", max_bytes=4), "tensor 'x': max_bytes belongs to"),
        (lambda: Tensor("x", "bytes", max_bytes=0), "tensor 'x': max_bytes must be at least 1"),
        (lambda: Tensor("x", "uint8", pad=-1), "tensor 'x': pad -1 does not fit uint8"),
        (lambda: Tensor("x", "int8", pad=0.5), "tensor 'x': pad 0.5 does not fit int8"),
        (lambda: Tensor("x", "float16", pad=70000), "tensor 'x': pad 70000 does not fit float16"),
        (lambda: Tensor("x", "int8", (2,), labels="ab"), "tensor 'x': labels is 'ab'; a list of"),
        (lambda: Tensor("x", "int8", (2,), labels=["a", 1]), "tensor 'x': label 1 is no text"),
        (
            lambda: Tensor("x", "int8", (2, 2), labels=["a", "b"]),
            "tensor 'x' has 2 labels, and 4 elements a row; one label for each",
        ),
        (
            lambda: Tensor("x", "bytes", max_bytes=4, labels=["a"]),
            "tensor 'x' has labels, which belong to an output of numbers of a fixed shape",
        ),
        (lambda: Tensor("x", "int8", (Dim(2),), labels=["a", "b"]), "of a fixed shape"),
        (lambda: Dim(0), "Dim(max=0): max must be a whole number of at least 1"),
        (lambda: Dim(2.5), "Dim(max=2.5): max must be a whole number"),
    ],
)
def test_a_declaration_that_cannot_work(build: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        build()


X = Tensor("x", "float32", (4,))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ModelSpec("m", "jax", (X,), (X,)), "model 'm': framework must be 'torch' or"),
        (lambda: ModelSpec("m", "numpy", (), (X,)), "it has no input: expected inputs ="),
        (lambda: ModelSpec("m", "numpy", (X,), ()), "it has no output: expected outputs ="),
        (lambda: model(X, X), "model 'm': 'x' stands twice in its inputs"),
        (lambda: model(X, outputs=(X, X)), "model 'm': 'x' stands twice in its outputs"),
        (
            lambda: model(X, parameters=(Tensor("x", "int8"),)),
            "model 'm': 'x' stands twice in its inputs",
        ),
        (
            lambda: model(Tensor("ids", "int8", (Dim(2),)), Tensor("ids.sizes", "int8")),
            "model 'm': 'ids.sizes' among its inputs is the name of the sizes of 'ids'",
        ),
        (
            lambda: model(Tensor("x", "int8", default=1)),
            "model 'm': every input has a default; one without, which tells the number of rows",
        ),
        (
            lambda: model(X, outputs=(Tensor("y", "int8", default=1),)),
            "model 'm': output 'y' has a default",
        ),
        (
            lambda: model(Tensor("x", "int8", (2,), labels=["a", "b"])),
            "model 'm': 'x' has labels, which belong to an output",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "int8", labels=["a"], default=1),)),
            "model 'm': 'k' has labels, which belong to an output",
        ),
        (
            lambda: model(X, Tensor("mask", "int8", (2,), default=[1, 1])),
            "model 'm': input 'mask' has the default [1, 1]; one int8, which fills the row, was",
        ),
        (
            lambda: model(X, Tensor("mask", "int8", (2,), default=300)),
            "model 'm': input 'mask' has the default 300; one int8",
        ),
        (
            lambda: model(X, Tensor("mask", "int8", (Dim(4),), default=1)),
            "so each of its dynamic dimensions must have the name of one of an input without",
        ),
        (
            lambda: model(X, Tensor("mask", "int8", (Dim(4, "t"),), default=1)),
            "so each of its dynamic dimensions must have the name of one of an input without",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "int8", (2,)),)),
            "model 'm': parameter 'k' has shape [2]; one number or string was expected",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "bytes", max_bytes=3, default="long"),)),
            "model 'm': its default: parameter 'k' has 4 bytes; at most 3 fit (max_bytes in the"
            " model)",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "bytes", max_bytes=3, default=5),)),
            "model 'm': its default: parameter 'k' is a int; one bytes or str was expected",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "int8", default=300),)),
            "model 'm': its default: parameter 'k': the value 300 does not fit int8",
        ),
        (
            lambda: model(X, parameters=(Tensor("k", "int8", default="5"),)),
            "model 'm': its default: parameter 'k': the value '5' does not fit int8",
        ),
    ],
)
def test_a_model_that_cannot_work(build: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        build()


def test_an_output_may_be_named_like_an_input() -> None:
    spec = model(X, outputs=(X,))
    assert spec.inputs == spec.outputs == (X,)


@settings(max_examples=50, deadline=None)
@given(specs())
def test_a_model_survives_the_control_channel_and_json(spec: ModelSpec) -> None:
    form = spec.to_wire()
    assert ModelSpec.from_wire(msgpack.unpackb(msgpack.packb(form))) == spec
    assert ModelSpec.from_wire(json.loads(json.dumps(form))) == spec


def test_every_field_of_a_tensor_survives() -> None:
    named = Tensor("ids", "int64", (Dim(7, "tokens"), 3), pad=-1)
    text = Tensor("t", "bytes", (), max_bytes=5)
    named_elements = Tensor("y", "float32", (2, 1), labels=["cat", "Kühe"])
    assert named_elements.labels == ("cat", "Kühe")
    outputs = (named, named_elements)
    spec = ModelSpec("m", "torch", (named, text), outputs, (Tensor("k", "int32", default=3),))
    assert ModelSpec.from_wire(spec.to_wire()) == spec
    assert ModelSpec.from_wire(MIXED.to_wire()) == MIXED
