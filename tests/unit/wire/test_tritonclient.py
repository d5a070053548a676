"""Against the official client library: its own requests are read, and it reads the answers."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.codec import Codec
from batchpool.wire.encoding import decode_body, encode_answer
from batchpool.wire.request import InferRequest
from tests.unit.wire.calls import AFFINE, MIXED, echo
from tests.unit.wire.strategies import JSON_NUMBERS, NUMBERS, echoes


def written(inputs: list[InferInput], **wishes: Any) -> tuple[dict[bytes, bytes], bytes]:
    body, length = InferenceServerClient.generate_request_body(inputs, **wishes)
    headers = {} if length is None else {b"inference-header-content-length": b"%d" % length}
    return headers, body


def read(
    codec: Codec, request: InferRequest, outputs: dict[str, Array], accept: bytes = b""
) -> InferResult:
    answer_headers, body = encode_answer(accept, *codec.encode(request, outputs))
    headers = dict(answer_headers)
    length = headers.get(b"inference-header-content-length")
    return InferenceServerClient.parse_response_body(
        body,
        header_length=None if length is None else int(length),
        content_encoding=headers.get(b"content-encoding", b"").decode() or None,
    )


def client_input(spec: ModelSpec, name: str, array: Array, binary: bool) -> InferInput:
    tensor = next(t for t in spec.inputs if t.name == name)
    if tensor.dtype == "bfloat16":
        array = array.view(ml_dtypes.bfloat16)
    given = InferInput(name, list(array.shape), tensor.wire_dtype)
    return given.set_data_from_numpy(array, binary_data=binary)


def client_output(result: InferResult, name: str) -> Array:
    array: Array = result.as_numpy(name)
    if array.dtype == object:  # the client leaves BYTES that came as JSON as `str`
        elements = [e.encode() if isinstance(e, str) else e for e in array.reshape(-1)]
        array.reshape(-1)[:] = elements
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


@settings(deadline=None)
@given(
    case=st.one_of(
        echoes([*JSON_NUMBERS, "bytes"], True, ("a", "b")).map(lambda case: (*case, True)),
        echoes([*NUMBERS, "bytes"], False, ("a", "b")).map(lambda case: (*case, False)),
    ),
    binary_in=st.tuples(st.booleans(), st.booleans()),
    binary_out=st.one_of(st.none(), st.tuples(st.booleans(), st.booleans())),
    id=st.sampled_from(["", "42", "ü\n"]),
)
def test_every_mix_of_json_and_binary(
    case: tuple[ModelSpec, dict[str, Array], bool],
    binary_in: tuple[bool, bool],
    binary_out: tuple[bool, bool] | None,
    id: str,
) -> None:
    spec, sent, json_able = case
    inputs = [
        client_input(spec, name, sent[name], binary or not json_able)
        for name, binary in zip(sent, binary_in, strict=True)
    ]
    outputs = None
    if binary_out is not None:
        outputs = [
            InferRequestedOutput(name, binary_data=binary or not json_able)
            for name, binary in zip(sent, binary_out, strict=True)
        ]
    codec = Codec(spec)
    request = codec.parse(*written(inputs, outputs=outputs, request_id=id))
    assert all(choice.binary for choice in request.outputs) or binary_out is not None
    result = read(codec, request, request.rows.tensors)
    response = result.get_response()
    assert response.get("id", "") == id
    assert (response["model_name"], response["model_version"]) == ("echo", "1")
    for name, array in sent.items():
        got = client_output(result, name)
        assert got.shape == array.shape
        assert (
            got.tolist() == array.tolist()
            if array.dtype == object
            else got.tobytes() == array.tobytes()
        )


def test_all_its_request_options() -> None:
    x = client_input(AFFINE, "x", np.ones((1, 4), "f4"), True)
    request = Codec(AFFINE).parse(*written([x], priority=3, timeout=2000, request_id="7"))
    assert (request.id, request.priority, request.timeout_ns) == ("7", 3, 2_000_000)
    for options in (
        {"sequence_id": 5, "sequence_start": True},
        {"sequence_id": "five"},
        {"parameters": {"top_k": 3}},
        {"outputs": [InferRequestedOutput("y", class_count=-2)]},
    ):
        with pytest.raises(InvalidRequest):
            Codec(AFFINE).parse(*written([x], **options))


@pytest.mark.parametrize("binary", [True, False])
def test_its_requests_for_classes(binary: bool) -> None:
    x = client_input(AFFINE, "x", np.ones((1, 4), "f4"), True)
    wish = InferRequestedOutput("y", binary_data=binary, class_count=2)
    codec = Codec(AFFINE)
    request = codec.parse(*written([x], outputs=[wish]))
    found = read(codec, request, {"y": np.array([[1, 4, 3, 2]], "f4")})
    assert client_output(found, "y").tolist() == [[b"4.0:1", b"3.0:2"]]


def test_its_shared_memory_requests_are_refused_in_words() -> None:
    x = InferInput("x", [1, 4], "FP32").set_shared_memory("region", 16)
    with pytest.raises(InvalidRequest, match="shared-memory extension is not offered"):
        Codec(AFFINE).parse(*written([x]))
    x = client_input(AFFINE, "x", np.ones((1, 4), "f4"), True)
    y = InferRequestedOutput("y")
    y.set_shared_memory("region", 16)
    with pytest.raises(InvalidRequest, match="shared-memory extension is not offered"):
        Codec(AFFINE).parse(*written([x], outputs=[y]))


def test_declared_parameters() -> None:
    inputs = [
        client_input(MIXED, "ids", np.ones((2, 3), "i8"), True),
        client_input(MIXED, "text", np.array(["a", "é"], object), False),
    ]
    request = Codec(MIXED).parse(*written(inputs, parameters={"top_k": 9}))
    assert request.rows.parameters == {"top_k": 9}
    assert request.rows.tensors["text"].tolist() == [b"a", "é".encode()]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(coding: str) -> None:
    values = np.arange(8, dtype="f4").reshape(2, 4)
    headers, body = written([client_input(AFFINE, "x", values, True)])
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    headers[b"content-encoding"] = coding.encode()
    codec = Codec(AFFINE)
    request = codec.parse(headers, decode_body(headers, packed, 1 << 20))
    result = read(codec, request, {"y": request.rows.tensors["x"]}, coding.encode())
    assert result.as_numpy("y").tolist() == values.tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_what_is_not_finite_reaches_the_client(binary: bool) -> None:
    spec = echo("float64")
    inputs = [client_input(spec, "x", np.zeros(4), True)]
    outputs = [InferRequestedOutput("x", binary_data=binary)]
    codec = Codec(spec)
    request = codec.parse(*written(inputs, outputs=outputs))
    got = read(codec, request, {"x": np.array([np.nan, np.inf, -np.inf, -0.0])}).as_numpy("x")
    # JSON says null for all three, which the client reads as NaN.
    expected = ["nan", "inf", "-inf", "-0.0"] if binary else ["nan", "nan", "nan", "-0.0"]
    assert [str(value) for value in got.tolist()] == expected


def test_nan_in_its_json_is_refused() -> None:
    x = client_input(AFFINE, "x", np.array([[np.nan, 1, 2, 3]], "f4"), False)
    with pytest.raises(InvalidRequest, match="malformed"):
        Codec(AFFINE).parse(*written([x]))


@pytest.mark.parametrize("binary", [True, False])
def test_empty_tensors(binary: bool) -> None:
    spec = echo("float32", (0,))
    inputs = [client_input(spec, "x", np.empty((2, 0), "f4"), binary)]
    outputs = [InferRequestedOutput("x", binary_data=binary)]
    codec = Codec(spec)
    request = codec.parse(*written(inputs, outputs=outputs))
    got = read(codec, request, {"x": np.empty((2, 0), "f4")}).as_numpy("x")
    assert (got.shape, got.dtype) == ((2, 0), np.dtype("f4"))
