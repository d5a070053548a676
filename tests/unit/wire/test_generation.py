"""The JSON of a generator's answers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.generation import GenerationAnswers
from batchpool.wire.plain_answers import array_json
from tests.unit.specs import STORY


def test_a_part_has_the_new_tokens_and_the_last_the_reason() -> None:
    answers = GenerationAnswers(STORY, "1")
    assert answers.answer(None, np.array([5, 6], "i4"), None) == (
        b'{"model_name":"m","model_version":"1","token":[5,6]}'
    )
    assert answers.answer("one", np.empty(0, "i4"), "stop") == (
        b'{"model_name":"m","model_version":"1","id":"one","token":[],"finish_reason":"stop"}'
    )


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "bool", "float32", "bfloat16"])
def test_a_lone_token_is_written_as_one_of_several(dtype: str) -> None:
    tokens = Tensor("token", dtype, (Dim(8),))
    spec = replace(STORY, outputs=(tokens, STORY.outputs[1]))
    found = np.array([1], tokens.np_dtype)
    answer = json.loads(GenerationAnswers(spec, "1").answer(None, found, None))
    assert json.dumps(answer["token"]).encode() == array_json(tokens, found)


def test_tokens_of_any_shape_and_names_that_json_escapes() -> None:
    spec = ModelSpec(
        'a"b',
        "numpy",
        (Tensor("prompt", "int32", (Dim(4),)),),
        (Tensor("code", "float32", (Dim(8), 2)), Tensor("finish_reason", "bytes", max_bytes=8)),
        generates=True,
    )
    codes = np.array([[1, 2.5], [np.nan, 4]], "f4")
    answer = GenerationAnswers(spec, "1").answer('x"\n', codes, None)
    assert b"\n" not in answer, "an event is one line"
    assert json.loads(answer) == {
        "model_name": 'a"b', "model_version": "1", "id": 'x"\n', "code": [[1, 2.5], [None, 4]],
    }  # fmt: skip
