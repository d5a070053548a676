"""Damaged requests: only a PoolError comes out, or rows that fit the model."""

from __future__ import annotations

import gzip
import json
import struct

import msgpack
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchpool.core.errors import PoolError
from batchpool.core.tensors.spec import Dim
from batchpool.wire.codec import Codec
from batchpool.wire.encoding import decode_body, encode_answer
from batchpool.wire.request import InferRequest
from tests.unit.wire.calls import AFFINE, MIXED, X, body_of, one

LIMIT = 1 << 16
LENGTH = b"inference-header-content-length"
MSGPACK = {b"content-type": b"application/msgpack"}
TEXT = struct.pack("<I", 2) + b"hi"
IDS = struct.pack("<q", 7)
MIXED_HEAD = {
    "id": "42",
    "inputs": [
        one([1, 1], IDS, "INT64", "ids")["inputs"][0],
        one([1], TEXT, "BYTES", "text")["inputs"][0],
    ],
    "outputs": [{"name": "half", "parameters": {"binary_data": True}}, {"name": "score"}],
    "parameters": {"top_k": 3, "timeout": 1000, "priority": 1},
}
MIXED_MAP = {
    "id": "42",
    "inputs": {
        "ids": {"dtype": "INT64", "shape": [1, 1], "data": IDS},
        "text": {"dtype": "BYTES", "shape": [1], "data": ["hi"]},
    },
    "outputs": ["score"],
    "parameters": {"top_k": 3},
}
GOOD = [
    (AFFINE, *body_of(one([2, 4], [[1, 2, 3, 4], [5, 6, 7, 8.5]]))),
    (AFFINE, *body_of(one([1, 4], X), X)),
    (AFFINE, {LENGTH: b"0"}, X + X),
    (MIXED, *body_of(MIXED_HEAD, IDS, TEXT)),
    (MIXED, MSGPACK, msgpack.packb(MIXED_MAP)),
    (MIXED, {b"content-encoding": b"gzip"} | body_of(MIXED_HEAD, IDS, TEXT)[0],
     gzip.compress(body_of(MIXED_HEAD, IDS, TEXT)[1])),
]  # fmt: skip
CODECS = {spec.name: Codec(spec) for spec in (AFFINE, MIXED)}

# Words that mean something somewhere, so that damage gets past the first parser.
WORDS = st.sampled_from(
    [b"0", b"-1", b"1e999", b"NaN", b"null", b"true", b"[", b"]", b"{", b"}", b'"', b",", b":",
     b"99999999999999999999", b"\xff", b"\0", b"\\ud800", b"\xdd\xff\xff\xff\xff", b"[[[[", b"1.5",
     b"FP16", b"BYTES", b"shape", b"data", b"binary_data_size", b"shared_memory_region"]
)  # fmt: skip
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "drop", "double"]),
        st.floats(0, 1),
        st.integers(0, 255),
        WORDS,
    ),
    min_size=1,
    max_size=4,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [LENGTH, b"content-type", b"content-encoding", b"x-request-timeout-ms",
         b"x-request-priority"]
    ),
    st.one_of(
        st.binary(max_size=8),
        st.integers(-5, 400).map(lambda n: b"%d" % n),
        st.sampled_from([b"application/json", b"application/msgpack", b"gzip", b"deflate"]),
    ),
    max_size=2,
)  # fmt: skip


def damage(body: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, place, value, word in edits:
        at = int(place * len(body))
        if kind == "flip" and at < len(body):
            body = body[:at] + bytes([value]) + body[at + 1 :]
        elif kind == "cut":
            body = body[:at]
        elif kind == "insert":
            body = body[:at] + word + body[at:]
        elif kind == "drop":
            body = body[:at] + body[at + 1 + value % 16 :]
        elif kind == "double":
            body = body[:at] + body[at : at + value] + body[at:]
    return body


def check_fits(name: str, request: InferRequest) -> None:
    spec = AFFINE if name == "affine" else MIXED
    assert request.rows.n >= 1
    assert set(request.rows.tensors) == {tensor.name for tensor in spec.inputs}
    assert set(request.rows.parameters) == {tensor.name for tensor in spec.parameters}
    assert 0 <= request.priority <= 255
    assert request.timeout_ns is None or 0 < request.timeout_ns < 2**63
    assert {choice.name for choice in request.outputs} <= {t.name for t in spec.outputs}
    for tensor in spec.inputs:
        array = request.rows.tensors[tensor.name]
        assert array.dtype == tensor.np_dtype
        assert array.shape[0] == request.rows.n
        for size, dim in zip(array.shape[1:], tensor.shape, strict=True):
            assert size <= dim.max if isinstance(dim, Dim) else size == dim
        if tensor.is_bytes:
            assert all(
                type(element) is bytes and len(element) <= (tensor.max_bytes or 0)
                for element in array.reshape(-1)
            )


def parse(name: str, headers: dict[bytes, bytes], body: bytes) -> None:
    """Parse; any other exception than a refusal in words is the test's failure."""
    refusal: PoolError | None = None
    try:
        request = CODECS[name].parse(headers, decode_body(headers, body, LIMIT))
    except PoolError as error:
        refusal = error
    if refusal is None:
        check_fits(name, request)
    else:
        assert refusal.status in (400, 413, 415)
        assert len(refusal.message) < 2000
        json.dumps(refusal.body())


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(GOOD), EDITS, HEADERS)
@example(GOOD[0], [("insert", 0.5, 0, b"[" * 100_000)], {})
def test_damaged_requests(case: object, edits: object, more: dict[bytes, bytes]) -> None:
    spec, headers, body = case  # type: ignore[misc]
    parse(spec.name, headers | more, damage(body, edits))  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.binary(max_size=200), HEADERS)
def test_any_bytes_at_all(body: bytes, headers: dict[bytes, bytes]) -> None:
    for name in CODECS:
        parse(name, headers, body)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_accept_encoding(accept: bytes) -> None:
    headers, body = [(b"content-length", b"5")], b"12345"
    changed, packed = encode_answer(accept, headers, body)
    assert dict(changed)[b"content-length"] == b"%d" % len(packed)


def test_the_undamaged_ones_are_good() -> None:
    for spec, headers, body in GOOD:
        request = CODECS[spec.name].parse(headers, decode_body(headers, body, LIMIT))
        check_fits(spec.name, request)
        half = np.zeros((request.rows.n, 2), "f2")
        outputs = {
            "y": np.zeros((request.rows.n, 4), "f4"),
            "half": half,
            "score": half.astype("f4"),
        }
        assert CODECS[spec.name].encode(request, outputs)[1]
