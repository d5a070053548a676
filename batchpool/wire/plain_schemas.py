"""JSON Schemas (2020-12) of a model's plain JSON: `wire/plain.py` has the forms."""

from __future__ import annotations

from collections.abc import Sequence

from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.schemas import Json, parameters_schema, value_schema

_MOST_B64 = 4  # characters of base64 for three bytes


def plain_schemas(spec: ModelSpec) -> Json:
    """The schemas of a model's plain request and response, by name."""
    needed = [tensor.name for tensor in spec.inputs if tensor.default is None]
    parameters = parameters_schema(spec)
    del parameters["properties"]["binary_data_output"]
    names = [tensor.name for tensor in spec.outputs]
    asked = {"type": "array", "items": {"enum": names}, "uniqueItems": True}
    more: Json = {"parameters": parameters, "outputs": asked}
    told: Json = {}
    if all(tensor.name != "id" for tensor in (*spec.inputs, *spec.outputs)):
        more["id"] = {"type": ["string", "null"], "description": "Comes back in the answer."}
        told["id"] = {"type": "string"}
    must = ["parameters"] if parameters.get("required") else []
    columns = _columns(spec.inputs, needed, sent=True)
    rows = _rows(spec.inputs, needed, sent=True)
    ways = [
        _object({**columns["properties"], **more}, [*needed, *must]),
        _object({"inputs": _or_only(columns, spec.inputs), **more}, ["inputs", *must]),
        _object(
            {
                "instances": {
                    "type": "array",
                    "minItems": 1,
                    "items": _or_only(rows, spec.inputs, of_rows=True),
                },
                **more,
            },
            ["instances", *must],
        ),
    ]
    columns = _columns(spec.outputs, (), sent=False)
    rows = _rows(spec.outputs, (), sent=False)
    alone = len(names) == 1
    (only, *_) = (_whole(tensor, sent=False) for tensor in spec.outputs)
    row = _row(spec.outputs[0], sent=False)
    answers = [
        _object({**columns["properties"], **told}, ()),
        _object({"outputs": only if alone else columns, **told}, ["outputs"]),
        _object(
            {"predictions": {"type": "array", "items": row if alone else rows}, **told},
            ["predictions"],
        ),
    ]
    return {"PlainRequest": {"anyOf": ways}, "PlainResponse": {"anyOf": answers}}


def row_schema(tensor: Tensor) -> Json:
    """The schema of one row of an output."""
    return _row(tensor, sent=False)


def _object(properties: Json, required: Sequence[str]) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _columns(tensors: Sequence[Tensor], needed: Sequence[str], *, sent: bool) -> Json:
    """Tensors by name: n rows each, or one row without its list."""
    return _object({tensor.name: _whole(tensor, sent=sent) for tensor in tensors}, needed)


def _rows(tensors: Sequence[Tensor], needed: Sequence[str], *, sent: bool) -> Json:
    return _object({tensor.name: _row(tensor, sent=sent) for tensor in tensors}, needed)


def _or_only(schema: Json, tensors: Sequence[Tensor], *, of_rows: bool = False) -> Json:
    """The schema, or the value alone where there is one tensor."""
    if len(tensors) > 1:
        return schema
    only = tensors[0]
    return {"anyOf": [schema, _row(only, sent=True) if of_rows else _whole(only, sent=True)]}


def _whole(tensor: Tensor, *, sent: bool) -> Json:
    row = _row(tensor, sent=sent)
    return {"anyOf": [{"type": "array", "minItems": 1, "items": row}, row]}


def _row(tensor: Tensor, *, sent: bool) -> Json:
    schema: Json = value_schema(tensor, sent=sent)
    if sent and tensor.max_bytes is not None:
        encoded = {"type": "string", "maxLength": _MOST_B64 * -(-tensor.max_bytes // 3)}
        schema = {"anyOf": [schema, _object({"b64": encoded}, ["b64"])]}
    for dim in reversed(tensor.shape):
        if isinstance(dim, Dim):
            least = {"minItems": dim.least} if sent and dim.least else {}
            schema = {"type": "array", "items": schema, **least, "maxItems": dim.max}
        else:
            schema = {"type": "array", "items": schema, "minItems": dim, "maxItems": dim}
    return schema
