"""The limits that a folder tells of its tokens, and the precision of its weights on a device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from batchpool.models.tokens import Dtype, dtype_on, features_of, token_limit


@pytest.mark.parametrize(
    ("device", "dtype", "stored", "expected"),
    [
        ("cpu", "auto", {"dtype": "float16"}, "float32"),  # a CPU computes half precision slowly
        ("cuda:0", "auto", {}, "float16"),
        ("cuda:0", "auto", {"dtype": "float32"}, "float16"),
        ("cuda:0", "auto", {"torch_dtype": "bfloat16"}, "bfloat16"),
        ("cuda:0", "float32", {"dtype": "bfloat16"}, "float32"),
        ("cpu", "bfloat16", {}, "bfloat16"),
    ],
)
def test_half_precision_is_for_gpus(
    device: str, dtype: Dtype, stored: dict[str, str], expected: str
) -> None:
    assert dtype_on(device, dtype, stored) == expected


def test_the_first_file_that_tells_limits_the_tokens(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 514}
    assert token_limit(tmp_path, {}, 100) == 116
    assert token_limit(tmp_path, config, 100) == 514
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"model_max_length": 10**30}))  # as it is written for none
    assert token_limit(tmp_path, config, 100) == 514
    path.write_text(json.dumps({"model_max_length": 512}))
    assert token_limit(tmp_path, config, 100) == 512
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    assert token_limit(tmp_path, config, 100) == 256


def test_a_tokenizer_without_types_gives_zeros() -> None:
    found = features_of([[1, 2], []], None)
    assert [row.tolist() for row in found["types"]] == [[0, 0], []]
    assert {row.dtype for row in found["ids"]} == {np.dtype(np.int32)}
    found = features_of([[1, 2]], [[0, 1]])
    assert found["types"][0].tolist() == [0, 1]
