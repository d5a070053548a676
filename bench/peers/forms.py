"""The bytes of a row of 512 float32 and of its answer on the wire of each server.

raw       the row's 2,048 bytes; the answer ends in as many, perhaps after a head of fixed length
triton    Open Inference Protocol: a JSON head and binary tensors
json      {"x": [[...]]} and [[...]]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH = 512
ROW_BYTES = 4 * WIDTH
Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Form:
    """encode: a row to a body.  decode: an answer's body to a row; ValueError: it is none.
    is_fixed: whether all right answers are of one length."""

    encode: Callable[[Row], bytes]
    decode: Callable[[bytes], Row]
    headers: Mapping[str, str] = field(default_factory=dict)
    is_fixed: bool = True


def _tail(body: bytes) -> Row:
    if len(body) < ROW_BYTES:
        raise ValueError(f"an answer of {len(body)} bytes: {body[:200]!r}")
    return np.frombuffer(body[-ROW_BYTES:], dtype=np.float32)


def _from_json(body: bytes) -> Row:
    values: Any = np.asarray(json.loads(body), dtype=np.float32)
    if values.size != WIDTH:
        raise ValueError(f"an answer of {values.size} values")
    row: Row = values.reshape(WIDTH)
    return row


_OCTETS = {"Content-Type": "application/octet-stream"}
_TRITON_HEAD = json.dumps(
    {
        "inputs": [
            {
                "name": "x",
                "shape": [1, WIDTH],
                "datatype": "FP32",
                "parameters": {"binary_data_size": ROW_BYTES},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
).encode()

RAW = Form(lambda row: row.tobytes(), _tail, _OCTETS)
OURS = Form(RAW.encode, _tail, _OCTETS | {"Inference-Header-Content-Length": "0"})
TRITON = Form(
    lambda row: _TRITON_HEAD + row.tobytes(),
    _tail,
    _OCTETS | {"Inference-Header-Content-Length": str(len(_TRITON_HEAD))},
)
JSON = Form(
    lambda row: json.dumps({"x": [row.tolist()]}).encode(),
    _from_json,
    {"Content-Type": "application/json"},
    is_fixed=False,
)
