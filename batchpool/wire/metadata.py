"""The JSON objects of the metadata, config and health routes, as plain dicts.

GET /v2                      server_metadata
GET /v2/models/M             model_metadata: shapes with the row dimension, -1, in front
GET /v2/models/M/config      model_config: dims without it, dtypes as TYPE_FP32, ...
GET /v2/health/live          live
GET /v2/health/ready         ready: under both names, as the protocol's text says `live`
GET /v2/models/M/ready       model_ready
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchpool.core.frameworks import FRAMEWORKS
from batchpool.core.tensors.spec import ModelSpec, Tensor

# The extensions that work. schedule_policy: the parameters `priority` and `timeout`.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


def server_metadata(version: str) -> dict[str, Any]:
    """Name, version and extensions of the server."""
    return {"name": "batchpool", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(spec: ModelSpec, versions: Sequence[str] = ("1",)) -> dict[str, Any]:
    """The tensors of a model. "generates": it makes its first output token by token, and has the
    routes of the extension "generate"."""
    metadata: dict[str, Any] = {
        "name": spec.name,
        "versions": list(versions),
        "platform": FRAMEWORKS[spec.framework].platform,
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }
    if spec.generates:
        metadata["generates"] = True
    return metadata


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.wire_dtype, "shape": tensor.wire_shape}


def model_config(
    spec: ModelSpec, max_batch: int, max_wait_us: int = 0, batch_sizes: Sequence[int] = ()
) -> dict[str, Any]:
    """The model configuration. Declared parameters are listed with dtype and default.

    max_batch: most rows of a batch; larger requests are split.  max_wait_us: longest wait of a
    row for others.  batch_sizes: the allowed sizes of a batch; () for any.
    """
    config: dict[str, Any] = {
        "name": spec.name,
        "platform": FRAMEWORKS[spec.framework].platform,
        "backend": "batchpool",
        "max_batch_size": max_batch,
        "input": [_config_input(tensor) for tensor in spec.inputs],
        "output": [_config_tensor(tensor) for tensor in spec.outputs],
        "dynamic_batching": {"max_queue_delay_microseconds": max_wait_us},
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }
    if batch_sizes:
        config["dynamic_batching"]["preferred_batch_size"] = list(batch_sizes)
    if spec.parameters:
        config["parameters"] = {
            parameter.name: {"string_value": _describe(parameter)} for parameter in spec.parameters
        }
    return config


def _config_tensor(tensor: Tensor) -> dict[str, Any]:
    word = "STRING" if tensor.is_bytes else tensor.wire_dtype
    return {"name": tensor.name, "data_type": f"TYPE_{word}", "dims": tensor.wire_shape[1:]}


def _config_input(tensor: Tensor) -> dict[str, Any]:
    config = _config_tensor(tensor)
    return config if tensor.default is None else config | {"optional": True}


def _describe(parameter: Tensor) -> str:
    if parameter.default is None:
        return f"{parameter.dtype}, required"
    return f"{parameter.dtype}, default {parameter.default_in_json}"


def live() -> dict[str, Any]:
    """The object of a server that runs."""
    return {"live": True}


def ready(is_ready: bool) -> dict[str, Any]:
    """The object of a server that is ready, or not."""
    return {"live": is_ready, "ready": is_ready}


def model_ready(name: str, is_ready: bool) -> dict[str, Any]:
    """The object of a model that is ready, or not."""
    return {"name": name, "ready": is_ready}
