"""Answers read back by their form, and compared with what the reference decoder understood."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import msgpack

from tests.fuzz.reference import Meaning
from tests.fuzz.reference_tensors import MODELS, Input, Rows, from_bytes
from tests.unit.frontend.frontend_double import RawAnswer

_OUTPUTS = {name: dict(model.inputs) for name, model in MODELS.items()}
_KNOBS, _SIZES = Input("FP64", (2,)), Input("INT64", (1,))


class Wrong(AssertionError):
    """An answer that is not what the request means."""


def expected_rows(model: str, found: Meaning) -> Rows:
    """The rows of every output."""
    rows = dict(found.rows)
    if model == "mixed":
        top_k = float(found.parameters.get("top_k", 5))
        ratio = float(found.parameters.get("ratio", 1.0))
        n = len(rows["ids"])
        rows["knobs"] = [[top_k, ratio]] * n
        rows["ids.sizes"] = [[len(row)] for row in rows["ids"]]
    return rows


def is_text(model: str, found: Meaning) -> bool:
    """False where an output that JSON must carry is no UTF-8."""
    name = {"blob": "x", "mixed": "text"}.get(model)
    if name is None or found.answer in ("binary", "msgpack"):
        return True
    if found.outputs is not None and (name, False) not in found.outputs:
        return True
    try:
        for element in found.rows[name]:
            element.decode()
    except UnicodeDecodeError:
        return False
    return True


def check(model: str, found: Meaning, answer: RawAnswer) -> None:
    """Raise Wrong unless the answer has the rows that the request has."""
    expected = expected_rows(model, found)
    if found.answer == "plain":
        asked = tuple(name for name, _ in found.outputs or ()) or MODELS[model].outputs
        document = json.loads(answer.body, parse_constant=_refuse)
        _check_plain(asked, expected, document, bare=len(MODELS[model].outputs) == 1)
        return
    names = [name for name, _ in found.outputs or ()] or list(MODELS[model].outputs)
    ragged = model == "mixed" and len({len(row) for row in expected["ids"]}) > 1
    if ragged and "ids" in names and "ids.sizes" not in names:
        names.append("ids.sizes")
    if found.answer == "msgpack":
        document = msgpack.unpackb(answer.body, raw=False)
        tensors = [
            (name, form["dtype"], form["shape"], _of_msgpack(model, name, form))
            for name, form in document["outputs"].items()
        ]
    else:
        document, tensors = _protocol(model, answer)
    if (document.get("id") or None) != found.id:
        raise Wrong(f"id {document.get('id')!r}")
    if [name for name, *_ in tensors] != names:
        raise Wrong(f"outputs {[name for name, *_ in tensors]}; expected {names}")
    for name, datatype, shape, values in tensors:
        tensor = _tensor(model, name)
        if datatype != tensor.datatype:
            raise Wrong(f"{name}: {datatype}")
        _compare(name, _padded(tensor, expected[name]), values, as_json=found.answer == "json")
        if shape[0] != len(expected[name]):
            raise Wrong(f"{name}: shape {shape}")


def _refuse(word: str) -> Any:
    raise Wrong(f"{word} in JSON")


def _tensor(model: str, name: str) -> Input:
    if name == "knobs":
        return _KNOBS
    return _SIZES if name == "ids.sizes" else _OUTPUTS[model][name]


def _protocol(model: str, answer: RawAnswer) -> tuple[Any, list[tuple[str, str, list[int], Any]]]:
    length = answer.headers.get("inference-header-content-length")
    at = len(answer.body) if length is None else int(length)
    document = json.loads(answer.body[:at], parse_constant=_refuse)
    tensors = []
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        name, shape = output["name"], output["shape"]
        if size is None:
            values = _split(shape, output["data"])
        else:
            values = _from_bytes(model, name, shape, answer.body[at : at + size])
            at += size
        tensors.append((name, output["datatype"], shape, values))
    if at != len(answer.body):
        raise Wrong("bytes are left over behind the answer")
    return document, tensors


def _from_bytes(model: str, name: str, shape: list[int], content: bytes) -> Any:
    if name == "knobs":
        return _split(shape, list(struct.unpack(f"<{len(content) // 8}d", content)))
    return from_bytes(_tensor(model, name), shape, content)


def _of_msgpack(model: str, name: str, form: Any) -> Any:
    if isinstance(form["data"], list):
        return form["data"]
    return _from_bytes(model, name, form["shape"], form["data"])


def _split(shape: list[int], flat: list[Any]) -> Any:
    if math.prod(shape) != len(flat):
        raise Wrong(f"{len(flat)} values of shape {shape}")
    if len(shape) == 1:
        return flat
    step = len(flat) // shape[0]
    return [_split(shape[1:], flat[i * step : (i + 1) * step]) for i in range(shape[0])]


def _padded(tensor: Input, rows: list[Any]) -> list[Any]:
    """Rows of one dynamic dimension filled up with zeros to the longest."""
    if not tensor.shape or tensor.shape[0] >= 0:
        return rows
    most = max(map(len, rows))
    return [row + [0] * (most - len(row)) for row in rows]


def _check_plain(names: tuple[str, ...], expected: Rows, document: Any, *, bare: bool) -> None:
    """The members and the nesting of the answer follow from those of the request, which the
    reference does not keep: every way to write the rows is right."""
    columns = {name: expected[name] for name in names}
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    ways: list[Any] = [columns, {"outputs": columns}, {"predictions": rows}]
    if len(rows) == 1:
        ways += [rows[0], {"outputs": rows[0]}]
    if bare:
        only = columns[names[0]]
        ways += [{"outputs": only}, {"predictions": only}, {"outputs": only[0]}]
    if not any(_equal(way, document, as_json=True) for way in ways):
        raise Wrong(f"plain answer {document!r}; the rows are {expected!r}")


def _compare(name: str, expected: Any, found: Any, *, as_json: bool) -> None:
    if not _equal(expected, found, as_json=as_json):
        raise Wrong(f"{name}: {found!r}; expected {expected!r}")


def _equal(expected: Any, found: Any, *, as_json: bool) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(_equal(v, found[k], as_json=as_json) for k, v in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(expected) == len(found)
            and all(_equal(a, b, as_json=as_json) for a, b in zip(expected, found, strict=True))
        )
    if isinstance(expected, bytes):
        return found == expected or (as_json and found == expected.decode(errors="replace"))
    if isinstance(expected, float) and not math.isfinite(expected):
        if found is None:
            return as_json
        return bool(isinstance(found, float) and str(found) == str(expected))
    if isinstance(expected, float):
        # In JSON a float32 is written with as many digits as it needs.
        if type(found) not in (int, float):
            return False
        same = found == expected or _float32(found) == expected
        return same and math.copysign(1, found) == math.copysign(1, expected)
    return type(found) is type(expected) and found == expected


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf
