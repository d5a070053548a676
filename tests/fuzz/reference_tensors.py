"""The tensors of the fuzzer's models, and the meaning of bytes and of lists of numbers."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any


class Refused(Exception):
    """The body must be refused."""


class Undecided(Exception):
    """The rules leave open whether the body is refused, or what it means."""


class MinusZero(int):
    """The JSON number -0: 0 for an integer, -0.0 for a float."""


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Input:
    """A tensor. shape: of a row; a dynamic dimension as the negative of its maximum."""

    datatype: str
    shape: tuple[int, ...]
    most: int = 0  # bytes of an element


@dataclass(frozen=True)
class Model:
    inputs: dict[str, Input]
    outputs: tuple[str, ...]
    parameters: dict[str, str] = field(default_factory=dict)


Rows = dict[str, list[Any]]  # by input: the value of each row, as nested lists

MODELS = {
    "vector": Model({"x": Input("FP32", (3,))}, ("x",)),
    "square": Model({"x": Input("UINT8", (2, 2))}, ("x",)),
    "blob": Model({"x": Input("BYTES", (), 40)}, ("x",)),
    "mixed": Model(
        {
            "ids": Input("INT64", (-4,)),
            "text": Input("BYTES", (), 16),
            "flag": Input("BOOL", (2,)),
        },
        ("ids", "text", "flag", "knobs"),
        {"top_k": "INT64", "ratio": "FP32"},
    ),
}
_LIMITS = {"UINT8": (0, 255), "INT64": (-(2**63), 2**63 - 1)}
_SIZES = {"FP32": 4, "UINT8": 1, "INT64": 8, "BOOL": 1}
_LETTERS = {"FP32": "f", "UINT8": "B", "INT64": "q", "BOOL": "B"}


def check_shape(tensor: Input, shape: list[int]) -> int:
    """The number of rows of a tensor of this shape."""
    if len(shape) != len(tensor.shape) + 1 or any(size < 0 for size in shape) or shape[0] < 1:
        raise Refused("shape")
    for size, wanted in zip(shape[1:], tensor.shape, strict=True):
        if size > -wanted if wanted < 0 else size != wanted:
            raise Refused("shape")
    if shape[0] > 2**62 or (shape[0] > 2**20 and 0 in shape):
        raise Refused("rows")
    return shape[0]


def number(tensor: str, value: Any) -> Any:
    """A number of JSON as this datatype holds it."""
    if tensor == "BOOL":
        if type(value) is bool or (is_integer(value) and value in (0, 1)):
            return bool(value)
        raise Refused("bool")
    if tensor == "FP32":
        if isinstance(value, MinusZero):
            return -0.0
        if type(value) not in (int, float):
            raise Refused("float")
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except (OverflowError, struct.error):
            raise Refused("float range") from None
    if not is_integer(value):
        raise Refused("integer")
    least, most = _LIMITS[tensor]
    if not least <= value <= most:
        raise Refused("range")
    return int(value)


def text(tensor: Input, value: Any) -> bytes:
    """An element of BYTES."""
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise Refused("surrogate") from None
    if not isinstance(value, bytes) or len(value) > tensor.most:
        raise Refused("element")
    return value


def flat(values: Any) -> list[Any]:
    """Nested lists without a gap as one list."""
    while values and isinstance(values[0], list):
        length = len(values[0])
        if not all(isinstance(value, list) and len(value) == length for value in values):
            raise Refused("ragged")
        values = [element for value in values for element in value]
    return list(values)


def as_rows(shape: list[int], values: list[Any]) -> list[Any]:
    """Flat values as one nested list for each row."""
    if math.prod(shape) != len(values):
        raise Refused("count")

    def part(at: int, sizes: list[int]) -> Any:
        if not sizes:
            return values[at]
        step = math.prod(sizes[1:])
        return [part(at + i * step, sizes[1:]) for i in range(sizes[0])]

    step = math.prod(shape[1:])
    return [part(i * step, shape[1:]) for i in range(shape[0])]


def from_bytes(tensor: Input, shape: list[int], content: bytes) -> list[Any]:
    """The rows in a tensor's bytes."""
    if tensor.datatype == "BYTES":
        elements, at = [], 0
        while at < len(content):
            if at + 4 > len(content):
                raise Refused("length cut off")
            (size,) = struct.unpack_from("<I", content, at)
            at += 4
            if at + size > len(content):
                raise Refused("element cut off")
            elements.append(text(tensor, content[at : at + size]))
            at += size
        return as_rows(shape, elements)
    count = math.prod(shape)
    if count * _SIZES[tensor.datatype] != len(content):
        raise Refused("size")
    values = list(struct.unpack(f"<{count}{_LETTERS[tensor.datatype]}", content))
    if tensor.datatype == "BOOL":
        values = [number("BOOL", value) for value in values]
    return as_rows(shape, values)


def raw_rows(model: Model, content: bytes) -> Rows:
    """The rows of a body that is the only input's bytes."""
    if list(model.inputs) != ["x"]:
        raise Refused("several inputs")
    tensor = model.inputs["x"]
    if tensor.datatype == "BYTES":
        return {"x": [text(tensor, content)]}
    step = math.prod(tensor.shape) * _SIZES[tensor.datatype]
    if not content or len(content) % step:
        raise Refused("size")
    return {"x": from_bytes(tensor, [len(content) // step, *tensor.shape], content)}


def parameters(model: Model, given: Any) -> tuple[dict[str, Any], bool, bool]:
    """The declared parameters with their values, whether outputs are binary by default, and whether
    there is a deadline."""
    if given is None:
        return {}, False, False
    if not isinstance(given, dict):
        raise Refused("parameters")
    found: dict[str, Any] = {}
    binary = late = False
    for name, value in given.items():
        if name == "binary_data_output" and type(value) is bool:
            binary = value
        elif name in model.parameters:
            found[name] = number(model.parameters[name], value)
        elif name == "timeout" and is_integer(value) and value >= 0:
            late = value > 0
        elif name != "priority" or not is_integer(value) or not 0 <= value <= 255:
            raise Refused(name)
    return found, binary, late
