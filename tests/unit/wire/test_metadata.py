"""The JSON objects of metadata, config and health."""

from __future__ import annotations

from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire import metadata
from tests.unit.specs import STORY
from tests.unit.wire.calls import AFFINE, MIXED


def test_server_metadata_lists_only_what_works() -> None:
    """C51: extensions that are there, and no others."""
    assert metadata.server_metadata("1.2.3") == {
        "name": "batchpool",
        "version": "1.2.3",
        "extensions": [
            "binary_tensor_data", "classification", "generate", "model_configuration",
            "model_repository", "parameters", "schedule_policy", "statistics",
        ],
    }  # fmt: skip


def test_a_generator_says_so() -> None:
    assert metadata.model_metadata(STORY)["generates"] is True
    assert metadata.model_metadata(STORY)["outputs"] == [
        {"name": "token", "datatype": "INT32", "shape": [-1, -1]},
        {"name": "finish_reason", "datatype": "BYTES", "shape": [-1]},
    ]
    assert "generates" not in metadata.model_metadata(AFFINE)


def test_model_metadata_shows_the_row_dimension_first() -> None:
    image = Tensor("image", "uint8", (3, Dim(224), Dim(224)))
    spec = ModelSpec("resnet", "torch", (image,), (Tensor("y", "bfloat16", (10,)),))
    assert metadata.model_metadata(spec, ["2"]) == {
        "name": "resnet",
        "versions": ["2"],
        "platform": "pytorch_batchpool",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 3, -1, -1]}],
        "outputs": [{"name": "y", "datatype": "BF16", "shape": [-1, 10]}],
    }
    assert metadata.model_metadata(MIXED)["platform"] == "numpy_batchpool"
    assert metadata.model_metadata(MIXED)["versions"] == ["1"]
    assert metadata.model_metadata(MIXED)["inputs"] == [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
    ]


def test_model_config_leaves_the_row_dimension_out() -> None:
    needed = Tensor("needed", "float32", ())
    spec = ModelSpec("mixed", "numpy", MIXED.inputs, MIXED.outputs, (*MIXED.parameters, needed))
    assert metadata.model_config(spec, 64, 10_000) == {
        "name": "mixed",
        "platform": "numpy_batchpool",
        "backend": "batchpool",
        "max_batch_size": 64,
        "input": [
            {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": []},
        ],
        "output": [
            {"name": "score", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "label", "data_type": "TYPE_STRING", "dims": []},
            {"name": "half", "data_type": "TYPE_FP16", "dims": [2]},
        ],
        "dynamic_batching": {"max_queue_delay_microseconds": 10_000},
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
        "parameters": {
            "top_k": {"string_value": "int64, default 5"},
            "needed": {"string_value": "float32, required"},
        },
    }
    assert "parameters" not in metadata.model_config(AFFINE, 1)


def test_batch_sizes_are_listed_as_the_preferred_ones() -> None:
    assert metadata.model_config(AFFINE, 64, 5, (1, 8, 64))["dynamic_batching"] == {
        "max_queue_delay_microseconds": 5,
        "preferred_batch_size": [1, 8, 64],
    }


def test_every_input_of_the_config_stands_in_the_metadata() -> None:
    for spec in (AFFINE, MIXED):
        shown = metadata.model_metadata(spec)
        config = metadata.model_config(spec, 8)
        assert [t["name"] for t in config["input"]] == [t["name"] for t in shown["inputs"]]
        assert [t["dims"] for t in config["input"]] == [t["shape"][1:] for t in shown["inputs"]]


def test_health() -> None:
    """C51: `live`, `ready` and the model's name as clients read them."""
    assert metadata.live() == {"live": True}
    assert metadata.ready(True) == {"live": True, "ready": True}
    assert metadata.ready(False) == {"live": False, "ready": False}
    assert metadata.model_ready("m", False) == {"name": "m", "ready": False}
