"""curl commands: for each model one that works unchanged, with a row of pad values.

Rows of few values are sent as JSON. Values that JSON cannot carry (FP16, BF16) and long tensors
are sent binary: the JSON part first, then as many zero bytes as the tensors have.
"""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

import numpy as np

from batchpool.core.tensors.spec import ModelSpec, Tensor

_MOST_VALUES = 64  # values of a tensor that is written as JSON
_DYNAMIC_SIZE = 3  # largest size of a dynamic dimension in a sample


def sample_shape(tensor: Tensor) -> list[int]:
    """The shape of a sample of one row."""
    sizes = zip(tensor.min_shape, tensor.max_shape, strict=True)
    return [1, *(max(least, min(most, _DYNAMIC_SIZE)) for least, most in sizes)]


def sample_request(spec: ModelSpec) -> tuple[dict[str, Any], int]:
    """(the JSON of a request of one row, the zero bytes that follow it)."""
    inputs, zeros = [], 0
    for tensor in spec.inputs:
        shape = sample_shape(tensor)
        values = math.prod(shape)
        form: dict[str, Any] = {
            "name": tensor.name,
            "shape": shape,
            "datatype": tensor.wire_dtype,
        }
        long = values > _MOST_VALUES and not tensor.is_bytes
        if tensor.element.binary_only or long:
            size = values * tensor.np_dtype.itemsize
            form["parameters"] = {"binary_data_size": size}
            zeros += size
        else:
            form["data"] = [_value(tensor)] * values
        inputs.append(form)
    request: dict[str, Any] = {"inputs": inputs}
    parameters: dict[str, Any] = {p.name: _scalar(p) for p in spec.parameters}
    if answers_binary(spec):
        parameters["binary_data_output"] = True
    if parameters:
        request["parameters"] = parameters
    return request, zeros


def plain_sample(spec: ModelSpec) -> str:
    """One row in plain JSON, as {"x": [[0, 0]]}; "" for tensors of many values."""
    inputs = {}
    for tensor in spec.inputs:
        shape = sample_shape(tensor)
        if math.prod(shape) > _MOST_VALUES:
            return ""
        inputs[tensor.name] = np.full(shape, _value(tensor), dtype=object).tolist()
    needed = {p.name: _scalar(p) for p in spec.parameters if p.default is None}
    return json.dumps({**inputs, **({"parameters": needed} if needed else {})})


def answers_binary(spec: ModelSpec) -> bool:
    """True if a response with all outputs cannot be JSON."""
    return any(tensor.element.binary_only for tensor in spec.outputs)


def _value(tensor: Tensor) -> Any:
    if tensor.is_bytes:
        return "Hello"[: tensor.max_bytes]
    if tensor.dtype == "bool":
        return bool(tensor.pad)
    return tensor.pad if math.isfinite(tensor.pad) else 0


def _scalar(parameter: Tensor) -> Any:
    if parameter.default is not None:
        return parameter.default_in_json
    return _value(parameter) if parameter.is_bytes else 1


def curl(spec: ModelSpec, server_url: str) -> str:
    """A shell command that sends the sample. server_url: as "http://localhost:8000"."""
    target = shlex.quote(f"{server_url}/v2/models/{spec.name}/infer")
    if plain := plain_sample(spec):
        return f"curl -s {target} -d {shlex.quote(plain)}"
    request, zeros = sample_request(spec)
    head = json.dumps(request)
    output = " -o answer.bin" if answers_binary(spec) else ""
    if not zeros:
        return f"curl -s{output} {target} -d {shlex.quote(head)}"
    length = len(head.encode())
    return (
        f"{{ printf %s {shlex.quote(head)}; head -c {zeros} /dev/zero; }} |\n"
        f"  curl -s{output} {target} -H 'Inference-Header-Content-Length: {length}'"
        " --data-binary @-"
    )
