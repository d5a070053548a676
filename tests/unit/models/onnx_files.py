"""Small files of ONNX, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def saved(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: list[Any] | None = None,
) -> Path:
    """A file of these nodes. inputs, outputs: (name, type, shape) each."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        weights or [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def mlp(folder: Path) -> Path:
    """y = relu(x @ w + b): [n, 6] -> [n, 3]."""
    numbers = np.random.default_rng(5)
    weights = [
        onnx.numpy_helper.from_array(numbers.standard_normal((6, 3)).astype(np.float32), "w"),
        onnx.numpy_helper.from_array(numbers.standard_normal(3).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["xwb"]),
        helper.make_node("Relu", ["xwb"], ["y"]),
    ]
    ends = [("x", FLOAT, ["batch", 6])], [("y", FLOAT, ["batch", 3])]
    return saved(folder / "mlp.onnx", nodes, *ends, weights)


def mlp_with_weights_apart(folder: Path, name: str = "mlp.data") -> Path:
    """The file of `mlp`, with its weights in a file of this name beside it."""
    path = mlp(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location=name, size_threshold=0)
    return path


def masked(folder: Path) -> Path:
    """doubled = ids + ids, [n, tokens]; total = sum(ids * mask) over the tokens, [n]."""
    nodes = [
        helper.make_node("Add", ["ids", "ids"], ["doubled"]),
        helper.make_node("Mul", ["ids", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis"], ["total"], keepdims=0),
    ]
    ends = (
        [("ids", INT64, ["batch", "tokens"]), ("mask", INT64, ["batch", "tokens"])],
        [("doubled", INT64, ["batch", "tokens"]), ("total", INT64, ["batch"])],
    )
    axis = [onnx.numpy_helper.from_array(np.array([1], np.int64), "axis")]
    return saved(folder / "masked.onnx", nodes, *ends, axis)


def echo(folder: Path, kind: int, shape: list[Any], name: str = "echo.onnx") -> Path:
    """y = x, of this type and shape."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return saved(folder / name, nodes, [("x", kind, shape)], [("y", kind, shape)])
