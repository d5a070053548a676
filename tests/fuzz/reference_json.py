"""The meaning of JSON bodies: the protocol's, and tensors by name."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from typing import Any

from tests.fuzz.reference_tensors import (
    Input,
    MinusZero,
    Model,
    Refused,
    Rows,
    Undecided,
    as_rows,
    check_shape,
    flat,
    from_bytes,
    is_integer,
    number,
    parameters,
    text,
)

__all__ = ["Found", "Refused", "Undecided", "outputs_of", "plain_rows", "protocol_rows"]


@dataclass
class Found:
    """The content of a document."""

    rows: Rows
    parameters: dict[str, Any]
    outputs: list[tuple[str, bool]] | None = None
    id: str | None = None
    may_be_late: bool = False


class Twice(dict[str, Any]):
    """An object, or a map, in which a member stands twice."""


def read_json(content: bytes) -> Any:
    """A document by the letter of RFC 8259; objects with a member twice are `Twice`."""
    try:
        return json.loads(
            content.decode(), parse_constant=_refuse, parse_float=_finite, parse_int=_integer,
            object_pairs_hook=_object,
        )  # fmt: skip
    except (ValueError, RecursionError):
        raise Refused("JSON") from None


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _integer(written: str) -> int:
    return MinusZero() if written == "-0" else int(written)


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(written)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for name in (*found, *(value for value in found.values() if isinstance(value, str))):
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ValueError("surrogate")
    return found if len(found) == len(pairs) else Twice(found)


def _only(value: Any, names: set[str]) -> dict[str, Any]:
    """An object with no other members than these."""
    if not isinstance(value, dict):
        raise Refused("no object")
    if isinstance(value, Twice):
        raise Undecided("twice")
    if not value.keys() <= names:
        raise Refused("member")
    return value


# -- the protocol ---------------------------------------------------------------------------

_MEMBERS = {"inputs", "outputs", "id", "parameters", "model_name", "model_version"}
_SHARED = {"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"}


def protocol_rows(model: Model, document: Any, tail: bytes) -> Found:
    head = _only(document, _MEMBERS)
    if head.get("id") is not None and not isinstance(head["id"], str):
        raise Refused("id")
    if not isinstance(head.get("inputs"), list):
        raise Refused("inputs")
    rows: Rows = {}
    sizes: list[int] | None = None
    at, n = 0, 0
    for given in head["inputs"]:
        form = _only(given, {"name", "datatype", "shape", "parameters", "data"})
        name = form.get("name")
        tensor, is_sizes = tensor_of(model, name)
        if name in rows or (is_sizes and sizes is not None):
            raise Refused("twice")
        shape = form.get("shape")
        if form.get("datatype") != tensor.datatype or not isinstance(shape, list):
            raise Refused("datatype")
        own = check_shape(tensor, [_whole(size) for size in shape])
        if n and own != n:
            raise Refused("rows")
        n = own
        size = _binary_size(form)
        whole = [_whole(s) for s in shape]
        if size is None:
            found = _json_rows(tensor, form, whole)
        else:
            if not 0 <= size <= len(tail) - at:
                raise Refused("binary size")
            found = from_bytes(tensor, whole, tail[at : at + size])
            at += size
        if is_sizes:
            sizes = [row[0] for row in found]
        else:
            rows[str(name)] = found
    if at != len(tail):
        raise Refused("left over")
    given_parameters, binary, late = parameters(model, _scalars(head.get("parameters")))
    outputs = outputs_of(model, head.get("outputs"), binary)
    return Found(
        complete(model, rows, sizes), given_parameters, outputs, head.get("id") or None, late
    )


def tensor_of(model: Model, name: Any) -> tuple[Input, bool]:
    if name == "ids.sizes" and "ids" in model.inputs:
        return Input("INT64", (1,)), True
    if not isinstance(name, str) or name not in model.inputs:
        raise Refused("name")
    return model.inputs[name], False


def _whole(value: Any) -> int:
    """A size."""
    if not is_integer(value):
        raise Refused("size")
    return int(value)


def _binary_size(form: dict[str, Any]) -> int | None:
    extra = form.get("parameters")
    size = None
    if extra is not None:
        extra = _only(extra, {"binary_data_size", *_SHARED})
        if any(extra.get(name) is not None for name in _SHARED):
            raise Refused("shared memory")
        if "binary_data_size" in extra:
            size = _whole(extra["binary_data_size"])
    if (size is None) != ("data" in form):
        raise Refused("one source")
    return size


def _json_rows(tensor: Input, form: dict[str, Any], shape: list[int]) -> list[Any]:
    data = form["data"]
    if not isinstance(data, list):
        raise Refused("data")
    values = flat(data)
    if tensor.datatype == "BYTES":
        if not all(isinstance(value, str) for value in values):
            raise Refused("text")
        return as_rows(shape, [text(tensor, value) for value in values])
    return as_rows(shape, [number(tensor.datatype, value) for value in values])


def _scalars(given: Any) -> Any:
    if isinstance(given, Twice):
        raise Undecided("twice")
    return given


def outputs_of(model: Model, asked: Any, binary: bool) -> list[tuple[str, bool]] | None:
    """The outputs asked for; None for all of them as JSON."""
    if asked is not None and not isinstance(asked, list):
        raise Refused("outputs")
    if not asked:
        return [(name, True) for name in model.outputs] if binary else None
    found: list[tuple[str, bool]] = []
    for output in asked:
        form = _only(output, {"name", "parameters"})
        name = form.get("name")
        known = (*model.outputs, *(["ids.sizes"] if "ids" in model.outputs else []))
        if name not in known or name in [other for other, _ in found]:
            raise Refused("output")
        as_bytes = binary
        extra = form.get("parameters")
        if extra is not None:
            extra = _only(extra, {"binary_data", "classification", *_SHARED})
            if any(extra.get(other) is not None for other in _SHARED):
                raise Refused("shared memory")
            if extra.get("classification") not in (None, 0, False):
                raise Undecided("classification")
            if "binary_data" in extra:
                if type(extra["binary_data"]) is not bool:
                    raise Refused("binary_data")
                as_bytes = extra["binary_data"]
        found.append((str(name), as_bytes))
    return found


def complete(model: Model, rows: Rows, sizes: list[int] | None) -> Rows:
    """The rows with every input there, and those of `ids` cut to their own sizes."""
    if rows.keys() != model.inputs.keys():
        raise Refused("missing")
    if sizes is not None:
        if not all(0 <= size <= len(row) for size, row in zip(sizes, rows["ids"], strict=True)):
            raise Refused("sizes")
        rows["ids"] = [row[:size] for size, row in zip(sizes, rows["ids"], strict=True)]
    return rows


# -- tensors by name ------------------------------------------------------------------------


def plain_rows(model: Model, document: dict[str, Any]) -> Found:
    """The meaning of a document that is none of the protocol's."""
    members = {*model.inputs, "instances", "inputs", "parameters", "outputs"}
    head = dict(_only(document, members))
    outputs = _plain_outputs(model, head.pop("outputs", []))
    written = _scalars(head.pop("parameters", {}))
    if isinstance(written, dict):
        written = {
            name: int(value)
            if type(value) is float and value.is_integer() and model.parameters.get(name) != "FP32"
            else value
            for name, value in written.items()
        }
    given, binary, late = parameters(model, written)
    if binary:
        raise Refused("binary output")
    if "instances" in head:
        if len(head) > 1:
            raise Refused("together")
        return Found(_instances(model, head["instances"]), given, outputs, may_be_late=late)
    if "inputs" in head:
        if len(head) > 1:
            raise Refused("together")
        columns = head["inputs"]
        if not isinstance(columns, dict) or columns.keys() == {"b64"}:
            columns = {_only_name(model): columns}
    else:
        columns = head
    _only(columns, set(model.inputs))
    if not columns:
        raise Refused("no input")
    if all(_depth(value) <= len(model.inputs[name].shape) for name, value in columns.items()):
        columns = {name: [value] for name, value in columns.items()}
    return Found(_columns(model, columns), given, outputs, may_be_late=late)


def _plain_outputs(model: Model, asked: Any) -> list[tuple[str, bool]] | None:
    if not isinstance(asked, list):
        raise Refused("outputs")
    for i, name in enumerate(asked):
        if not isinstance(name, str) or name not in model.outputs or name in asked[:i]:
            raise Refused("output")
    return [(name, False) for name in asked] or None


def _only_name(model: Model) -> str:
    if len(model.inputs) > 1:
        raise Refused("several inputs")
    return next(iter(model.inputs))


def _instances(model: Model, instances: Any) -> Rows:
    if not isinstance(instances, list) or not instances:
        raise Refused("instances")
    first = instances[0]
    if not isinstance(first, dict) or first.keys() == {"b64"}:
        return _columns(model, {_only_name(model): instances})
    names = set(_only(first, set(model.inputs)))
    if any(_only(row, set(model.inputs)).keys() != names for row in instances):
        raise Refused("names")
    return _columns(model, {name: [row[name] for row in instances] for name in names})


def _columns(model: Model, columns: dict[str, Any]) -> Rows:
    if columns.keys() != model.inputs.keys():
        raise Refused("missing")
    rows = {name: _rows_of(model.inputs[name], value) for name, value in columns.items()}
    if len({len(values) for values in rows.values()}) > 1:
        raise Refused("rows")
    return rows


def _rows_of(tensor: Input, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise Refused("rows")
    found = [_row(tensor, value, tensor.shape) for value in values]
    return found


def _row(tensor: Input, value: Any, shape: tuple[int, ...]) -> Any:
    if not shape:
        return _element(tensor, value)
    if not isinstance(value, list):
        raise Refused("depth")
    if len(value) > -shape[0] if shape[0] < 0 else len(value) != shape[0]:
        raise Refused("size")
    return [_row(tensor, element, shape[1:]) for element in value]


def _element(tensor: Input, value: Any) -> Any:
    if tensor.datatype == "BYTES":
        if isinstance(value, dict):
            if isinstance(value, Twice):
                raise Undecided("twice")
            if value.keys() != {"b64"} or not isinstance(value["b64"], str):
                raise Refused("b64")
            try:
                value = base64.b64decode(value["b64"], validate=True)
            except (binascii.Error, ValueError):
                raise Refused("b64") from None
        return text(tensor, value)
    if tensor.datatype in ("INT64", "UINT8") and type(value) is float and value.is_integer():
        if abs(value) >= 2.0**53:  # digits may be lost
            raise Refused("digits")
        value = int(value)
    return number(tensor.datatype, value)


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        if not value:
            break
        value = value[0]
    return depth
