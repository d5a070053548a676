"""The meaning of msgpack bodies."""

from __future__ import annotations

from typing import Any

import msgpack

from tests.fuzz.reference_json import Found, Twice, complete, tensor_of
from tests.fuzz.reference_tensors import (
    Model,
    Refused,
    Rows,
    Undecided,
    as_rows,
    check_shape,
    from_bytes,
    parameters,
    text,
)


def _map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    if not all(isinstance(name, str) for name, _ in pairs):
        raise ValueError("a key is no text")
    found = dict(pairs)
    return found if len(found) == len(pairs) else Twice(found)


def msgpack_rows(model: Model, content: bytes) -> Found:
    try:
        document = msgpack.unpackb(content, raw=False, object_pairs_hook=_map, ext_hook=_refuse)
    except RecursionError:
        raise Refused("depth") from None
    except Exception:
        raise Refused("msgpack") from None
    if not isinstance(document, dict):
        raise Refused("no map")
    if isinstance(document, Twice):
        raise Undecided("twice")
    if not document.keys() <= {"inputs", "outputs", "id", "parameters"}:
        raise Refused("member")
    if document.get("id") is not None and not isinstance(document["id"], str):
        raise Refused("id")
    inputs = document.get("inputs")
    if not isinstance(inputs, dict) or isinstance(inputs, Twice):
        raise Refused("inputs")
    rows: Rows = {}
    sizes: list[int] | None = None
    n = 0
    for name, given in inputs.items():
        found = _tensor(model, name, given)
        if n and len(found) != n:
            raise Refused("rows")
        n = len(found)
        if name == "ids.sizes":
            sizes = [row[0] for row in found]
        else:
            rows[name] = found
    rows = complete(model, rows, sizes)
    given_parameters = document.get("parameters")
    if isinstance(given_parameters, Twice):
        raise Undecided("twice")
    found_parameters, _, late = parameters(model, given_parameters)
    outputs = _outputs(model, document.get("outputs"))
    return Found(rows, found_parameters, outputs, document.get("id") or None, late)


def _refuse(code: int, content: bytes) -> Any:
    raise ValueError("extension")


def _tensor(model: Model, name: str, given: Any) -> list[Any]:
    tensor, _ = tensor_of(model, name)
    if isinstance(given, Twice):
        raise Undecided("twice")
    if not isinstance(given, dict) or given.keys() != {"dtype", "shape", "data"}:
        raise Refused("tensor")
    shape = given["shape"]
    if given["dtype"] != tensor.datatype or not isinstance(shape, list):
        raise Refused("dtype")
    if not all(type(size) is int for size in shape):
        if all(type(size) is int or (type(size) is float and size.is_integer()) for size in shape):
            raise Undecided("sizes as floats")
        raise Refused("shape")
    check_shape(tensor, shape)
    content = given["data"]
    if tensor.datatype != "BYTES":
        if not isinstance(content, bytes):
            raise Refused("data")
        return from_bytes(tensor, shape, content)
    if not isinstance(content, list):
        raise Refused("data")
    return as_rows(shape, [text(tensor, element) for element in content])


def _outputs(model: Model, asked: Any) -> list[tuple[str, bool]] | None:
    if asked is None or asked == []:
        return None
    if not isinstance(asked, list):
        raise Refused("outputs")
    known = (*model.outputs, *(["ids.sizes"] if "ids" in model.outputs else []))
    for i, name in enumerate(asked):
        if not isinstance(name, str) or name not in known or name in asked[:i]:
            raise Refused("output")
    return [(name, True) for name in asked]
