"""Infer requests as JSON objects and bytes, and answers read back."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import numpy as np

from batchpool.core.tensors.dtypes import Array


def refuse_constant(text: str) -> Any:
    raise ValueError(f"not JSON: {text}")


def strict(text: bytes | str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""
    return json.loads(text, parse_constant=refuse_constant)


def numbers(name: str, array: Array, datatype: str) -> dict[str, Any]:
    """An input with its data in JSON."""
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.tolist(),
    }


def affine(*rows: float, **more: Any) -> dict[str, Any]:
    """A request of rows whose four values are all the same."""
    x = np.repeat(np.array(rows, "f4"), 4).reshape(-1, 4)
    return {"inputs": [numbers("x", x, "FP32")], **more}


def affine_answer(*rows: float) -> list[float]:
    return [2 * row + 1 for row in rows for _ in range(4)]


def binary(head: dict[str, Any], *tensors: tuple[str, str, Array]) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request whose (name, datatype, array) follow its JSON."""
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, datatype, array in tensors
    ]
    text = json.dumps({**head, "inputs": inputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return headers, text + b"".join(array.tobytes() for _, _, array in tensors)


def split(answer: httpx.Response) -> tuple[Any, bytes]:
    """The JSON and the bytes behind it of a 200 answer, its headers checked."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("inference-header-content-length")
    at = len(answer.content) if length is None else int(length)
    kind = "application/json" if length is None else "application/octet-stream"
    assert answer.headers["content-type"] == kind
    return strict(answer.content[:at]), answer.content[at:]


def packed(content: Any) -> bytes:
    return msgspec.msgpack.encode(content)
