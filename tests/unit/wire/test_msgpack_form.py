"""The msgpack form, written and read here by the msgpack package."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest, OutputChoice
from tests.unit.wire.calls import AFFINE, MIXED, X, echo, floats

HEADERS = {b"content-type": b"application/msgpack"}
GOOD: dict[str, Any] = {"inputs": {"x": {"dtype": "FP32", "shape": [1, 4], "data": X}}}
MIXED_GOOD: dict[str, Any] = {
    "inputs": {
        "text": {"dtype": "BYTES", "shape": [2], "data": ["é", b"\xff\0"]},
        "ids": {"dtype": "INT64", "shape": [2, 1], "data": np.array([7, 8], "<i8").tobytes()},
    }
}


def ask(spec: ModelSpec, form: Any) -> InferRequest:
    body = form if isinstance(form, bytes) else msgpack.packb(form)
    return Codec(spec).parse(HEADERS, body)


def refused(spec: ModelSpec, form: Any, kind: type[PoolError] = InvalidRequest) -> str:
    with pytest.raises(kind) as caught:
        ask(spec, form)
    assert type(caught.value) is kind
    assert len(caught.value.message) < 1000
    assert ask(AFFINE, GOOD).rows.n == 1
    return caught.value.message


def tensor(**changes: Any) -> dict[str, Any]:
    return {"inputs": {"x": GOOD["inputs"]["x"] | changes}}


def test_a_request_is_views_of_the_body_and_all_outputs() -> None:
    body = msgpack.packb(GOOD)
    request = Codec(AFFINE).parse(HEADERS, body)
    assert (request.form, request.id, request.rows.n) == ("msgpack", None, 1)
    assert request.outputs == (OutputChoice("y", True),)
    x = request.rows.tensors["x"]
    assert x.tolist() == [[1, 2, 3, 4]]
    assert np.shares_memory(x, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("required", [True, False])
def test_a_bfloat16_parameter_is_a_number_in_every_form(required: bool) -> None:
    parameter = Tensor("scale", "bfloat16", default=None if required else 0.5)
    spec = replace(AFFINE, parameters=(parameter,))
    codec = Codec(spec)
    row = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    for scale, bits in ((2, 0x4000), (1.5, 0x3FC0)):
        asked = {"parameters": {"scale": scale}}
        plain = json.dumps({"inputs": [row | {"data": [1, 2, 3, 4]}], **asked}).encode()
        sized = row | {"parameters": {"binary_data_size": 16}}
        head = json.dumps({"inputs": [sized], **asked}).encode()
        length = {b"inference-header-content-length": b"%d" % len(head)}
        for headers, body in (
            ({}, plain),
            (length, head + X),
            (HEADERS, msgpack.packb(GOOD | asked)),
        ):
            assert codec.parse(headers, body).rows.parameters == {"scale": bits}
    if required:
        assert "parameter 'scale' of model 'affine' is missing" in refused(spec, GOOD)
    else:
        assert ask(spec, GOOD).rows.parameters == {"scale": 0x3F00}
    assert "parameter 'scale'" in refused(spec, GOOD | {"parameters": {"scale": 1e39}})


def test_text_parameters_outputs_and_id() -> None:
    wishes = {"id": "ü", "outputs": ["half", "label"]}
    parameters = {"top_k": 3, "timeout": 5, "priority": 1}
    request = ask(MIXED, MIXED_GOOD | wishes | {"parameters": parameters})
    assert request.id == "ü"
    assert request.outputs == (OutputChoice("half", True), OutputChoice("label", True))
    assert (request.timeout_ns, request.priority) == (5000, 1)
    assert request.rows.parameters == {"top_k": 3}
    assert request.rows.tensors["text"].tolist() == ["é".encode(), b"\xff\0"]
    assert request.rows.tensors["ids"].tolist() == [[7], [8]]


def test_the_answer_in_full() -> None:
    codec = Codec(MIXED)
    request = codec.parse(HEADERS, msgpack.packb(MIXED_GOOD | {"id": "42"}))
    outputs = {
        "score": np.array([[1, 2], [3, 4]], "f4").T,
        "label": np.array([b"\xff", b""], object),
        "half": np.empty((2, 0), "f2"),
    }
    headers, body = codec.encode(request, outputs, {"batch": 2})
    assert headers == [
        (b"content-type", b"application/msgpack"),
        (b"content-length", b"%d" % len(body)),
    ]
    assert msgpack.unpackb(body) == {
        "id": "42",
        "model_name": "mixed",
        "model_version": "1",
        "parameters": {"batch": 2},
        "outputs": {
            "score": {"dtype": "FP32", "shape": [2, 2], "data": floats(1, 3, 2, 4)},
            "label": {"dtype": "BYTES", "shape": [2], "data": [b"\xff", b""]},
            "half": {"dtype": "FP16", "shape": [2, 0], "data": b""},
        },
    }
    plain = codec.parse(HEADERS, msgpack.packb(MIXED_GOOD | {"outputs": ["score"]}))
    assert list(msgpack.unpackb(codec.encode(plain, outputs)[1])) == [
        "model_name", "model_version", "outputs"
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_bit_by_bit(dtype: str) -> None:
    spec = echo(dtype)
    every = np.arange(2**16, dtype="<u2").tobytes()
    name = "FP16" if dtype == "float16" else "BF16"
    form = {"inputs": {"x": {"dtype": name, "shape": [2**16], "data": every}}}
    codec = Codec(spec)
    request = codec.parse(HEADERS, msgpack.packb(form))
    answer = msgpack.unpackb(codec.encode(request, {"x": request.rows.tensors["x"]})[1])
    assert answer["outputs"]["x"] == {"dtype": name, "shape": [2**16], "data": every}


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (tensor(dtype="FP64"), "FP32 was expected"),
        (tensor(shape=[1, 5]), "'x' has shape"),
        (tensor(shape=[2, 4]), "needs 32"),
        (tensor(shape=[-1, 4]), "'x' has shape"),
        (tensor(shape=[2**62 + 1, 4]), "needs"),
        (tensor(shape=[2**63, 4]), "'x' has shape"),
        (tensor(shape=[0, 4], data=b""), "0 rows"),
        (tensor(shape=[1.0, 4]), "input 'x'"),
        (tensor(shape="1"), "input 'x'"),
        (tensor(data=X[:-1]), "15 bytes"),
        (tensor(data="text"), "input 'x'"),
        (tensor(data=[1, 2, 3, 4]), "input 'x'"),
        (tensor(data=None), "input 'x'"),
        (tensor(data=msgpack.ExtType(5, X)), "input 'x'"),
        (tensor(extra=1), "input 'x'"),
        ({"inputs": {"x": {"dtype": "FP32", "shape": [1, 4]}}}, "input 'x'"),
        ({"inputs": {"z": GOOD["inputs"]["x"]}}, "no input 'z'"),
        ({"inputs": {}}, "'x' of model 'affine' is missing"),
        ({"inputs": []}, "inputs"),
        ({"inputs": {1: GOOD["inputs"]["x"]}}, "inputs"),
        ({}, "inputs"),
        ([], "msgpack"),
        (GOOD | {"outputs": ["nope"]}, "no output 'nope'"),
        (GOOD | {"outputs": ["y", "y"]}, "asked for twice"),
        (GOOD | {"outputs": [{"name": "y"}]}, "outputs"),
        (GOOD | {"id": 1}, "id"),
        (GOOD | {"parameters": {"nope": 1}}, "no parameter 'nope'"),
        (GOOD | {"parameters": {"sequence_id": 1}}, "sequences"),
        (GOOD | {"parameters": {"timeout": [1]}}, "parameters"),
        (GOOD | {"parameter": {}}, "parameter"),
    ],
)
def test_what_is_wrong_is_said(form: Any, says: str) -> None:
    """C65: extension types among it."""
    assert says in refused(AFFINE, form)


def test_rows_must_agree_and_inputs_stand_once() -> None:
    ids = MIXED_GOOD["inputs"]["ids"] | {"shape": [1, 2]}
    assert "1 rows, but" in refused(MIXED, {"inputs": MIXED_GOOD["inputs"] | {"ids": ids}})
    x = msgpack.packb(GOOD["inputs"]["x"])
    twice = [b"\x81\xa6inputs" + head + (b"\xa1x" + x) * 2 for head in (
        b"\x82", b"\xde\0\2", b"\xdf\0\0\0\2"
    )]  # fmt: skip
    for body in twice:
        assert "stands twice" in refused(AFFINE, body)
    for head in (b"\x81", b"\xde\0\1", b"\xdf\0\0\0\1"):
        assert ask(AFFINE, b"\x81\xa6inputs" + head + b"\xa1x" + x).rows.n == 1


def test_text_elements_are_checked() -> None:
    spec = echo("bytes", (Dim(3),), 4)

    def text(shape: list[int], values: Any) -> dict[str, Any]:
        return {"inputs": {"x": {"dtype": "BYTES", "shape": shape, "data": values}}}

    assert ask(spec, text([1, 2], ["a", b"b"])).rows.tensors["x"].tolist() == [[b"a", b"b"]]
    assert ask(spec, text([2, 0], [])).rows.tensors["x"].shape == (2, 0)
    not_text = [msgpack.Timestamp(1), "a"]
    for wrong in ([1, "a"], [["a"], "b"], [None, "a"], ["a"], b"ab", "ab", {}, not_text):
        assert "'x'" in refused(spec, text([1, 2], wrong))
    refused(spec, text([1, 1], ["12345"]), TooLarge)
    refused(spec, text([1, 4], ["a"] * 4), TooLarge)


LYING = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\1", b"\xdd\xff\xff\xff\xff" * 5000,
    b"\xdf\xff\xff\xff\xff\xa1a" * 5000, b"\x91" * 100_000, b"\x81\xa1a" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("bomb", LYING)
def test_lying_lengths_and_endless_nesting_cost_nothing(bomb: bytes) -> None:
    """C65: 4 GiB claimed in five bytes, 100,000 levels."""
    one = b"\x81\xa6inputs\x81\xa1x\x83\xa5dtype\xa4FP32\xa5shape\x92\x01\x04\xa4data"
    text = b"\x81\xa6inputs\x81\xa1x\x83\xa5dtype\xa5BYTES\xa5shape\x91\x01\xa4data"
    wishes = b"\x82\xa7outputs" + bomb
    for spec, body in (
        (AFFINE, bomb),
        (AFFINE, b"\x81\xa6inputs" + bomb),
        (AFFINE, one + bomb),
        (echo("bytes", (), 4), text + bomb),
        (AFFINE, wishes),
    ):
        tracemalloc.start()
        refused(spec, body)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81", msgpack.packb(GOOD) + b"\0"])
def test_bodies_that_are_no_msgpack(body: bytes) -> None:
    refused(AFFINE, body)


@pytest.mark.parametrize("size", [2**20 - 4, 2**20, 2**20 + 4, 2**24])
def test_large_tensors_pass(size: int) -> None:
    """C65: around 1 MiB and at 16 MiB."""
    spec = echo("uint8", (Dim(2**24),))
    values = np.arange(size, dtype="u1")
    form = {"inputs": {"x": {"dtype": "UINT8", "shape": [1, size], "data": values.tobytes()}}}
    codec = Codec(spec)
    request = codec.parse(HEADERS, msgpack.packb(form))
    assert (request.rows.tensors["x"][0] == values).all()
    answer = msgpack.unpackb(codec.encode(request, {"x": values[None]})[1])
    assert answer["outputs"]["x"]["data"] == values.tobytes()
