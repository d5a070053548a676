"""Whatever goes in comes out: random tensors through parse and encode, in every form."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgpack
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from tests.unit.wire.calls import body_of, split
from tests.unit.wire.strategies import JSON_NUMBERS, NUMBERS, echoes

NAMES = ("a", "b")


def wire_bytes(array: Array) -> bytes:
    if array.dtype != object:
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    return b"".join(struct.pack("<I", len(e)) + e for e in array.reshape(-1).tolist())


def json_values(array: Array) -> list[Any]:
    values: list[Any] = array.tolist()
    return json.loads(json.dumps(values, default=bytes.decode))


def same(tensor: Tensor, got: Array, sent: Array) -> None:
    assert got.shape == sent.shape
    assert got.dtype == tensor.np_dtype
    if tensor.is_bytes:
        assert got.tolist() == sent.tolist()
    else:
        assert got.tobytes() == sent.tobytes()


def read_output(tensor: Tensor, output: dict[str, Any], tail: bytes) -> tuple[Array, bytes]:
    """One output of an OIP answer, and what is left of the tail."""
    assert (output["name"], output["datatype"]) == (tensor.name, tensor.wire_dtype)
    if "data" in output:
        assert "parameters" not in output
        values = output["data"]
        assert not any(isinstance(value, list) for value in values)
        if tensor.is_bytes:
            values = [value.encode() for value in values]
        array = np.empty(len(values), tensor.np_dtype)
        array[:] = values
        return array.reshape(output["shape"]), tail
    size = output["parameters"]["binary_data_size"]
    part, tail = tail[:size], tail[size:]
    assert len(part) == size
    if not tensor.is_bytes:
        return np.frombuffer(part, tensor.np_dtype).reshape(output["shape"]), tail
    elements = []
    while part:
        (length,) = struct.unpack_from("<I", part)
        elements.append(part[4 : 4 + length])
        part = part[4 + length :]
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(output["shape"]), tail


@settings(deadline=None)
@given(
    case=st.one_of(
        echoes([*JSON_NUMBERS, "bytes"], True, NAMES).map(lambda case: (*case, True)),
        echoes([*NUMBERS, "bytes"], False, NAMES).map(lambda case: (*case, False)),
    ),
    binary_in=st.tuples(st.booleans(), st.booleans()),
    binary_out=st.tuples(st.booleans(), st.booleans()),
    order=st.permutations(NAMES),
    id=st.text(),
)
def test_oip_in_every_mix_of_json_and_binary(
    case: tuple[ModelSpec, dict[str, Array], bool],
    binary_in: tuple[bool, bool],
    binary_out: tuple[bool, bool],
    order: list[str],
    id: str,
) -> None:
    spec, sent, json_able = case
    tensors = {tensor.name: tensor for tensor in spec.inputs}
    inputs: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    tails: list[bytes] = []
    for name, by_bytes in zip(order, binary_in, strict=True):
        tensor = tensors[name]
        head = {"name": name, "shape": sent[name].shape, "datatype": tensor.wire_dtype}
        if by_bytes or not json_able:
            tails.append(wire_bytes(sent[name]))
            head["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            head["data"] = json_values(sent[name])
        inputs.append(head)
    for name, by_bytes in zip(order, binary_out, strict=True):
        outputs.append({"name": name, "parameters": {"binary_data": by_bytes or not json_able}})
    codec = Codec(spec)
    headers, body = body_of({"id": id, "inputs": inputs, "outputs": outputs}, *tails)
    request = codec.parse(headers, body)
    assert request.id == (id or None)
    assert request.rows.n == len(sent["a"])
    for name, tensor in tensors.items():
        same(tensor, request.rows.tensors[name], sent[name])
    head, tail = split(*codec.encode(request, request.rows.tensors))
    assert head.get("id", "") == id
    for name, output in zip(order, head["outputs"], strict=True):
        array, tail = read_output(tensors[name], output, tail)
        same(tensors[name], array, sent[name])
    assert tail == b""


@settings(deadline=None)
@given(echoes([*NUMBERS, "bytes"], False, NAMES))
def test_msgpack(case: tuple[ModelSpec, dict[str, Array]]) -> None:
    spec, sent = case

    def form(tensor: Tensor) -> dict[str, Any]:
        array = sent[tensor.name]
        packed = array.reshape(-1).tolist() if tensor.is_bytes else wire_bytes(array)
        return {"dtype": tensor.wire_dtype, "shape": list(array.shape), "data": packed}

    tensors = {tensor.name: form(tensor) for tensor in spec.inputs}
    codec = Codec(spec)
    headers = {b"content-type": b"application/msgpack"}
    request = codec.parse(headers, msgpack.packb({"inputs": tensors}))
    for tensor in spec.inputs:
        same(tensor, request.rows.tensors[tensor.name], sent[tensor.name])
    _, body = codec.encode(request, request.rows.tensors)
    assert msgpack.unpackb(body)["outputs"] == tensors


@settings(deadline=None)
@given(echoes(NUMBERS, False))
def test_raw(case: tuple[ModelSpec, dict[str, Array]]) -> None:
    spec, sent = case
    tensor = spec.inputs[0]
    rows = sent["x"]
    if len(tensor.dynamic) > 1:
        return
    if tensor.dynamic:
        rows = rows[:1]
    codec = Codec(spec)
    request = codec.parse({b"inference-header-content-length": b"0"}, wire_bytes(rows))
    same(tensor, request.rows.tensors["x"], rows)
    head, tail = split(*codec.encode(request, request.rows.tensors))
    array, tail = read_output(tensor, head["outputs"][0], tail)
    same(tensor, array, rows)
    assert tail == b""
