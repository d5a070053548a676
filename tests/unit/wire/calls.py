"""Requests written and answers read with the standard library only, for the wire tests."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, PoolError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest

AFFINE = ModelSpec(
    "affine",
    "numpy",
    (Tensor("x", "float32", (4,)),),
    (Tensor("y", "float32", (4,)),),
)
# Two inputs, three outputs of different kinds, a parameter.
MIXED = ModelSpec(
    "mixed",
    "numpy",
    (Tensor("ids", "int64", (Dim(8),)), Tensor("text", "bytes", (), max_bytes=16)),
    (
        Tensor("score", "float32", (2,)),
        Tensor("label", "bytes", (), max_bytes=16),
        Tensor("half", "float16", (2,)),
    ),
    (Tensor("top_k", "int64", (), default=5),),
)


def echo(dtype: str, shape: tuple[int | Dim, ...] = (), max_bytes: int | None = None) -> ModelSpec:
    """A model whose output `x` is its input `x`."""
    tensor = Tensor("x", dtype, shape, max_bytes=max_bytes)
    return ModelSpec("echo", "numpy", (tensor,), (tensor,))


def refuse_constant(text: str) -> Any:
    raise ValueError(f"not JSON: {text}")


def strict(text: bytes) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""
    return json.loads(text, parse_constant=refuse_constant)


def body_of(head: dict[str, Any] | bytes, *tails: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body; the header length only if something follows the JSON."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    headers = {b"inference-header-content-length": b"%d" % len(text)} if tails else {}
    return headers, text + b"".join(tails)


def ask(spec: ModelSpec, head: dict[str, Any] | bytes, *tails: bytes) -> InferRequest:
    return Codec(spec).parse(*body_of(head, *tails))


def one(shape: list[Any], source: Any, datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    """The head of a request with one input; a source of bytes goes behind it."""
    tensor: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
    if isinstance(source, bytes):
        tensor["parameters"] = {"binary_data_size": len(source)}
    else:
        tensor["data"] = source
    return {"inputs": [tensor]}


def split(headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[dict[str, Any], bytes]:
    """An OIP answer as (JSON, binary tail), after checking its lengths."""
    fields = dict(headers)
    assert len(fields) == len(headers)
    assert int(fields[b"content-length"]) == len(body)
    length = fields.get(b"inference-header-content-length")
    at = len(body) if length is None else int(length)
    assert fields[b"content-type"] == (
        b"application/json" if length is None else b"application/octet-stream"
    )
    return strict(body[:at]), body[at:]


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


X = floats(1, 2, 3, 4)


GOOD = one([1, 4], [1, 2, 3, 4])


def refused(
    spec: ModelSpec,
    head: dict[str, Any] | bytes,
    *tails: bytes,
    kind: type[PoolError] = InvalidRequest,
) -> str:
    with pytest.raises(kind) as caught:
        ask(spec, head, *tails)
    assert type(caught.value) is kind
    assert len(caught.value.message) < 1000
    # The codec still reads a good request afterwards.
    assert ask(AFFINE, GOOD).rows.n == 1
    return caught.value.message


def text_bytes(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)
