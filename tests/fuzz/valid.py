"""Valid requests of the fuzzer's models, in every wire form."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgpack

INT64 = [0, 1, -1, 7, 2**31, -(2**63), 2**63 - 1]
FLOATS = [0, -0.0, 1, 2.5, -3.25, 1e-3, 65504.0, 3.0e38]
TEXTS = ["", "a", "süß", "-0, -0", '"{[', "\x00", "x" * 16, "😀"]
DTYPES = {"vector": "FP32", "square": "UINT8", "blob": "BYTES"}


@dataclass
class Body:
    """A request: the model's name, the header fields by lower-case name, the content."""

    model: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)


Tensor = tuple[str, str, list[int], list[Any]]  # name, datatype, shape, flat values


def tensors_of(model: str, n: int, dice: Random) -> list[Tensor]:
    """The inputs of n random rows."""
    if model == "vector":
        return [("x", "FP32", [n, 3], dice.choices(FLOATS, k=3 * n))]
    if model == "square":
        return [("x", "UINT8", [n, 2, 2], dice.choices(range(256), k=4 * n))]
    if model == "blob":
        return [("x", "BYTES", [n], dice.choices(TEXTS, k=n))]
    size = dice.randrange(5)
    return [
        ("ids", "INT64", [n, size], dice.choices(INT64, k=n * size)),
        ("text", "BYTES", [n], dice.choices(TEXTS, k=n)),
        ("flag", "BOOL", [n, 2], dice.choices([False, True], k=2 * n)),
    ]


def packed(datatype: str, values: list[Any]) -> bytes:
    """The little-endian bytes of a tensor."""
    if datatype == "BYTES":
        raw = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(element)) + element for element in raw)
    letter = {"FP32": "f", "UINT8": "B", "INT64": "q", "BOOL": "?"}[datatype]
    return struct.pack(f"<{len(values)}{letter}", *values)


def nested(shape: list[int], values: list[Any]) -> Any:
    """Flat values as nested lists."""
    if len(shape) == 1:
        return values
    step = len(values) // shape[0] if shape[0] else 0
    parts = [values[i * step : (i + 1) * step] for i in range(shape[0])]
    return [nested(shape[1:], part) for part in parts]


def parameters_of(model: str, dice: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dice.random() < 0.2:
        found["priority"] = dice.choice([0, 1, 255])
    if model == "mixed" and dice.random() < 0.5:
        found["top_k"] = dice.choice([0, 3, -7])
    if model == "mixed" and dice.random() < 0.5:
        found["ratio"] = dice.choice([0.5, -0.0, 2])
    return found


def _protocol(model: str, tensors: list[Tensor], dice: Random, *, binary: bool) -> Body:
    inputs, tail = [], b""
    for name, datatype, shape, values in tensors:
        form: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if binary and dice.random() < 0.8:
            content = packed(datatype, values)
            form["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            form["data"] = values if dice.random() < 0.5 else nested(shape, values)
        inputs.append(form)
    head: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.3:
        head["id"] = dice.choice(["", "seven", "\u00fc"])
    if parameters := parameters_of(model, dice):
        head["parameters"] = parameters
    if binary and dice.random() < 0.5:
        head.setdefault("parameters", {})["binary_data_output"] = True
    if dice.random() < 0.3:
        head["outputs"] = [{"name": name} for name, *_ in tensors]
        if dice.random() < 0.5:
            head["outputs"][0]["parameters"] = {"binary_data": dice.random() < 0.5}
    text = json.dumps(head).encode()
    if dice.random() < 0.3:
        text = text.replace(b"-0.0", b"-0")
    headers = {"inference-header-content-length": str(len(text))} if binary else {}
    return Body(model, text + tail, headers)


def _raw(model: str, tensors: list[Tensor], dice: Random) -> Body:
    ((_, datatype, _, values),) = tensors
    content = values[0].encode() if datatype == "BYTES" else packed(datatype, values)
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": "0"}
    kind = dice.randrange(4)
    if kind == 1:
        headers["accept"] = "application/json"
    elif kind == 2:
        del headers["inference-header-content-length"]
    elif kind == 3:
        headers = {"content-type": dice.choice(["image/png", "text/plain"])}
    return Body(model, content, headers)


def _msgpack(model: str, tensors: list[Tensor], dice: Random) -> Body:
    inputs = {}
    for name, datatype, shape, values in tensors:
        of_text = datatype == "BYTES"
        content = [v if dice.random() < 0.5 else v.encode() for v in values] if of_text else None
        inputs[name] = {
            "dtype": datatype,
            "shape": shape,
            "data": packed(datatype, values) if content is None else content,
        }
    head: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.3:
        head["id"] = "seven"
    if parameters := parameters_of(model, dice):
        head["parameters"] = parameters
    if dice.random() < 0.3:
        head["outputs"] = [tensors[0][0]]
    return Body(model, msgpack.packb(head), {"content-type": "application/msgpack"})


def _plain(model: str, tensors: list[Tensor], dice: Random) -> Body:
    columns = {name: nested(shape, values) for name, _, shape, values in tensors}
    columns = {name: _as_written(value, dice) for name, value in columns.items()}
    kind = dice.randrange(4)
    head: dict[str, Any]
    if kind == 0:
        head = columns
    elif kind == 1:
        head = {"inputs": columns}
    elif kind == 2:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        head = {"instances": [row["x"] for row in rows] if model != "mixed" else rows}
    else:
        head = {name: value[0] for name, value in columns.items()}
    if parameters := parameters_of(model, dice):
        head["parameters"] = parameters
    if dice.random() < 0.2:
        head["outputs"] = dice.sample([name for name, *_ in tensors], 1)
    return Body(model, json.dumps(head).encode(), {"content-type": "application/json"})


def _as_written(value: Any, dice: Random) -> Any:
    """Equal values, some of them written in another way."""
    if isinstance(value, list):
        return [_as_written(element, dice) for element in value]
    if isinstance(value, str) and dice.random() < 0.2:
        return {"b64": base64.b64encode(value.encode()).decode()}
    if type(value) is int and abs(value) < 2**53 and dice.random() < 0.2:
        return float(value)
    return value


def valid(dice: Random) -> Body:
    """A random valid request."""
    model = dice.choice(["vector", "square", "blob", "mixed", "mixed"])
    tensors = tensors_of(model, dice.choice([1, 1, 2, 3]), dice)
    form = dice.choice(["json", "binary", "raw", "msgpack", "plain"])
    if form == "raw" and model == "mixed":
        form = "json"
    match form:
        case "json" | "binary":
            body = _protocol(model, tensors, dice, binary=form == "binary")
        case "raw":
            body = _raw(model, tensors, dice)
        case "msgpack":
            body = _msgpack(model, tensors, dice)
        case _:
            body = _plain(model, tensors, dice)
    if dice.random() < 0.05:
        body.headers["content-encoding"], body.content = dice.choice(
            [("gzip", gzip.compress(body.content)), ("deflate", zlib.compress(body.content))]
        )
    return body
