"""JSON Schemas (2020-12) of a model's request and response, with the tensors it declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchpool.core.priority import LOWEST
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor

Json = dict[str, Any]


def model_schemas(spec: ModelSpec) -> Json:
    """The schemas of a model's request and response in the protocol's JSON form, by name."""
    asked = parameters_schema(spec)
    required = asked.get("required")
    sized_in, sized_out = _sizes_of(spec.inputs), _sizes_of(spec.outputs)
    request: Json = {
        "type": "object",
        "required": ["inputs", *(["parameters"] if required else [])],
        "additionalProperties": False,
        "properties": {
            "id": {"type": ["string", "null"], "description": "Comes back in the answer."},
            "parameters": asked if required else {"anyOf": [asked, {"type": "null"}]},
            "inputs": {
                **_list_of([_tensor_schema(t, sent=True) for t in (*spec.inputs, *sized_in)]),
                "minItems": sum(tensor.default is None for tensor in spec.inputs),
                "maxItems": len(spec.inputs) + len(sized_in),
            },
            "outputs": {
                "type": ["array", "null"],
                "description": "The outputs wanted; without it, all.",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"enum": [t.name for t in (*spec.outputs, *sized_out)]},
                        "parameters": {
                            "type": ["object", "null"],
                            "properties": {
                                "binary_data": {"type": "boolean"},
                                "classification": {
                                    "type": ["integer", "null", "boolean"],
                                    "minimum": 0,
                                    "description": (
                                        "so many of each row's highest values, as text"
                                        " value:index or value:index:label"
                                    ),
                                },
                            },
                        },
                    },
                },
            },
        },
    }
    response: Json = {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"const": spec.name},
            "model_version": {"type": "string"},
            "outputs": _list_of(
                [
                    _tensor_schema(t, sent=False)
                    for t in (*spec.outputs, *sized_out, *_classes_of(spec.outputs))
                ]
            ),
        },
    }
    return {"Request": request, "Response": response}


def parameters_schema(spec: ModelSpec) -> Json:
    """The schema of the parameters of a request: those of the protocol and those of the model."""
    asked: Json = {
        "type": "object",
        "properties": {
            **_own_parameters(spec),
            "timeout": {"type": "integer", "minimum": 0, "description": "microseconds, 0: none"},
            "priority": {
                "type": "integer",
                "minimum": 0,
                "maximum": LOWEST,
                "description": "1 goes first, 0 means 128",
            },
            "binary_data_output": {
                "type": "boolean",
                "description": "answer with binary tensors",
            },
        },
        "additionalProperties": False,
    }
    required = [p.name for p in spec.parameters if p.default is None]
    if required:
        asked["required"] = required
    return asked


def _own_parameters(spec: ModelSpec) -> Json:
    """The schema of each parameter of the model, by name."""
    found: Json = {parameter.name: _scalar_schema(parameter) for parameter in spec.parameters}
    if spec.generates:  # as `check_parameters` bounds it
        found["max_tokens"] |= {"minimum": 1, "maximum": spec.outputs[0].max_shape[0]}
    return found


def _sizes_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that may tell the sizes of each row of those with dynamic dimensions."""
    return [tensor.row_sizes() for tensor in tensors if tensor.dynamic]


def _classes_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of text that stand in the place of those whose classes were asked for."""
    return [
        Tensor(tensor.name, "bytes", (Dim(max(1, math.prod(tensor.max_shape))),), max_bytes=1)
        for tensor in tensors
        if not (tensor.is_bytes or tensor.dynamic)
    ]


def _list_of(kinds: list[Json]) -> Json:
    """The schema of a list whose items have these schemas, in any order."""
    return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"oneOf": kinds}}


def _tensor_schema(tensor: Tensor, *, sent: bool) -> Json:
    """The schema of one tensor. sent: of a request, where `data` may be nested."""
    schema: Json = {
        "type": "object",
        "title": f"{tensor.name}: {tensor.wire_dtype} {tensor.describe_shape()}",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": tensor.wire_dtype},
            "shape": _shape_schema(tensor, sent=sent),
            "parameters": {
                "type": ["object", "null"] if sent else "object",
                "properties": {"binary_data_size": {"type": "integer", "minimum": 0}},
            },
        },
    }
    sized: Json = {"properties": {"parameters": {"required": ["binary_data_size"]}}}
    sized["properties"]["parameters"]["type"] = "object"
    binary: Json = {"required": ["parameters"], **sized}
    if tensor.element.binary_only:
        schema["allOf"] = [binary]
        return schema
    value = value_schema(tensor, sent=sent)
    items: Json = {"anyOf": [value, {"type": "array"}]} if sent else value
    schema["properties"]["data"] = {"type": "array", "items": items}
    schema["oneOf"] = [{"required": ["data"]}, binary]
    return schema


def _shape_schema(tensor: Tensor, *, sent: bool) -> Json:
    """The schema of a tensor's shape. In answers no size is given apart: validators of OpenAPI that
    know older drafts do not take `prefixItems` there."""
    dims: list[Json] = [{"type": "integer", "minimum": 1, "description": "rows"}]
    dims += [
        {"type": "integer", "minimum": dim.least if sent else 0, "maximum": dim.max}
        if isinstance(dim, Dim)
        else {"const": dim}
        for dim in tensor.shape
    ]
    each: Json = {"prefixItems": dims} if sent else {"items": {"type": "integer", "minimum": 0}}
    return {
        "type": "array",
        **each,
        "minItems": len(dims),
        "maxItems": len(dims),
        "description": tensor.describe_shape(),
    }


def value_schema(tensor: Tensor, *, sent: bool) -> Json:
    """The schema of one element of a tensor. sent: of a request, else of an answer."""
    if tensor.is_bytes:
        return {"type": "string", "maxLength": tensor.max_bytes} if sent else {"type": "string"}
    if tensor.dtype == "bool" and not sent:
        return {"type": "boolean"}
    number = _number_schema(tensor)
    if number["type"] == "number" and not sent:
        return {"type": ["number", "null"], "description": "null: not a number, or infinite"}
    return number


def _scalar_schema(parameter: Tensor) -> Json:
    """The schema of a declared parameter's value."""
    schema = value_schema(parameter, sent=True) if parameter.is_bytes else _number_schema(parameter)
    if parameter.default is not None:
        schema["default"] = parameter.default_in_json
    return schema


def _number_schema(tensor: Tensor) -> Json:
    """The schema of one number of the tensor's dtype."""
    schema: Json
    if tensor.dtype == "bool":
        schema = {"type": ["boolean", "integer"]}
    elif tensor.np_dtype.kind in "iu" and tensor.dtype != "bfloat16":
        limits = np.iinfo(tensor.np_dtype)
        schema = {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    else:
        schema = {"type": "number"}
    return schema
