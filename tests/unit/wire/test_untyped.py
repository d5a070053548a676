"""Bodies whose headers do not say that they are a tensor: pictures, plain text, octets."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest
from tests.unit.wire.calls import AFFINE, GOOD, MIXED, body_of, echo, strict

PICTURE = ModelSpec(
    "picture",
    "numpy",
    (Tensor("image", "bytes", (), max_bytes=64),),
    (Tensor("label", "int64"), Tensor("score", "float32", (2,))),
)
TEXT = echo("bytes", (), 64)
JPEG = b"\xff\xd8\xff\xe0 not text"
PLAIN = json.dumps({"x": [1, 2, 3, 4]}).encode()
ROWS = np.arange(8, dtype=np.float32)


def parse(spec: ModelSpec, kind: str, body: bytes, **headers: str) -> InferRequest:
    more = {name.replace("_", "-").lower().encode(): v.encode() for name, v in headers.items()}
    return Codec(spec).parse({b"content-type": kind.encode(), **more}, body)


@pytest.mark.parametrize("kind", ["image/jpeg", "audio/wav", "video/mp4", "Image/PNG; q=1"])
def test_media_are_the_only_input_and_answered_in_plain_json(kind: str) -> None:
    request = parse(PICTURE, kind, JPEG, Accept="*/*", X_Request_Timeout_Ms="7")
    assert request.rows.tensors["image"].tolist() == [JPEG]
    assert request.timeout_ns == 7_000_000
    codec = Codec(PICTURE)
    outputs = {"label": np.array([3]), "score": np.array([[0.5, 0.25]], np.float32)}
    assert strict(codec.encode(request, outputs)[1]) == {"label": 3, "score": [0.5, 0.25]}
    assert codec.frame(request, 1) is None
    assert codec.fixed_size_reader(request, len(JPEG)) is None


def test_octets_are_json_if_they_are_a_json_object_and_else_the_input() -> None:
    octets = "application/octet-stream"
    assert parse(AFFINE, octets, ROWS.tobytes()).rows.tensors["x"].tolist() == [
        [0, 1, 2, 3], [4, 5, 6, 7],
    ]  # fmt: skip
    assert parse(AFFINE, octets, PLAIN).form == "plain"
    headers, body = body_of(GOOD)
    assert not headers
    assert parse(AFFINE, octets, body).form == "json"
    assert parse(PICTURE, octets, b'{"image" is no JSON').rows.tensors["image"].tolist() == [
        b'{"image" is no JSON'
    ]
    with pytest.raises(InvalidRequest, match="the body is empty"):
        parse(PICTURE, octets, b"")
    with pytest.raises(InvalidRequest, match="has no input 'z'"):
        parse(AFFINE, octets, b'{"z": 1}')
    with pytest.raises(InvalidRequest, match=r"has 15 bytes; whole rows of .* steps of 16"):
        parse(AFFINE, octets, b"x" * 15)
    with pytest.raises(InvalidRequest, match="has 2 inputs, a raw body is one"):
        parse(MIXED, octets, b"x")


@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        (b"hello", True),
        (b"", True),
        (b'{"a": "text in braces"}', True),
        (b'{"x": not JSON', True),
        (b'  {"x": "hello"}', False),
        (b'{"inputs": "hello"}', False),
        (b'{"instances": ["hello"]}', False),
        (b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}', False),
    ],
)
def test_text_is_the_input_unless_it_is_a_request(body: bytes, is_text: bool) -> None:
    found = parse(TEXT, "text/plain; charset=utf-8", body).rows.tensors["x"].tolist()
    assert (found == [body]) == is_text
    assert is_text or found in ([b"hello"], [b"a"])


def test_text_of_another_charset_arrives_as_utf8() -> None:
    def taken(charset: str, body: bytes) -> bytes:
        rows = parse(TEXT, f"text/plain; charset={charset}", body).rows
        found: bytes = rows.tensors["x"].tolist()[0]
        return found

    text = "süß".encode()
    assert taken("latin-1", "süß".encode("latin-1")) == text
    assert taken('"ISO-8859-1"', "süß".encode("latin-1")) == text
    assert taken("Windows-1252", "süß".encode("cp1252")) == text
    assert taken("utf-16le", "süß".encode("utf-16le")) == text
    assert taken("UTF-8", text) == text
    assert taken("utf-8", b"\xff") == b"\xff", "it is not looked at"
    with pytest.raises(InvalidRequest, match=r"charset 'punycode' is not known here; UTF-8 was"):
        taken("punycode", b"a-" * 9)
    with pytest.raises(InvalidRequest, match=r"^the body is not utf-16le: "):
        taken("utf-16le", b"\x00\xd8")


def test_text_for_a_model_of_numbers_is_json() -> None:
    assert parse(AFFINE, "text/plain", PLAIN).rows.tensors["x"].tolist() == [[1, 2, 3, 4]]
    length = {"Inference-Header-Content-Length": "1"}
    assert parse(AFFINE, "text/plain", PLAIN, **length).form == "plain"
    with pytest.raises(InvalidRequest, match=r'text/plain and no JSON object.*works: {"x"'):
        parse(AFFINE, "text/plain", b"1 2 3 4")
    with pytest.raises(InvalidRequest, match="has no input 'z'"):
        parse(AFFINE, "text/plain", b'{"z": 1}')


RAW = {"Inference-Header-Content-Length": "0"}


@pytest.mark.parametrize(
    ("kind", "headers", "form"),
    [
        ("application/octet-stream", RAW, "raw"),
        ("application/octet-stream", {**RAW, "Accept": "*/*"}, "raw"),
        ("application/octet-stream", {**RAW, "Accept": "Application/JSON"}, "plain"),
        ("application/octet-stream", {}, "plain"),
        ("application/octet-stream", {"Accept": "application/octet-stream"}, "octets"),
        ("image/x-raw", {}, "plain"),
        ("image/x-raw", {"Accept": "application/octet-stream, application/json"}, "media"),
        ("image/x-raw", {"Accept": "application/json, application/octet-stream"}, "plain"),
    ],
)
def test_the_answer_to_raw_bytes_is_what_accept_asks_for(
    kind: str, headers: dict[str, Any], form: str
) -> None:
    request = parse(AFFINE, kind, ROWS.tobytes(), **headers)
    assert request.form == form
    codec = Codec(AFFINE)
    fields, body = codec.encode(request, {"y": ROWS.reshape(2, 4)})
    if form == "plain":
        assert strict(body) == {"y": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    else:
        assert dict(fields)[b"content-type"] == b"application/octet-stream"
        assert body.endswith(ROWS.tobytes())
    reader = codec.fixed_size_reader(request, 32)
    assert (reader is not None) == (form == "raw"), "another body of this size may be JSON"
