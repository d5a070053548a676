"""Which models embed, what a request may say, and the bytes of an answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import Forbidden, InvalidRequest, Overloaded, PoolError, TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.embeddings import EmbeddingModel, embedding_answer, read_embedding_request
from batchpool.wire.openai import error_headers, error_object, is_openai_path
from batchpool.wire.text_routes import check_makes_texts

TEXT = Tensor("text", "bytes", (), max_bytes=64)
VECTOR = Tensor("vector", "float32", (2,))
TOKENS = Tensor("prompt_tokens", "int64", ())
TRUNCATED = Tensor("truncated", "bool", ())


def spec(inputs: list[Tensor], outputs: list[Tensor], *parameters: Tensor) -> ModelSpec:
    return ModelSpec("m", "numpy", tuple(inputs), tuple(outputs), parameters)


def model(*outputs: Tensor) -> EmbeddingModel:
    found = EmbeddingModel.of(spec([TEXT], list(outputs)))
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_vector_of_any_float_is_an_embedding(dtype: str) -> None:
    found = model(Tensor("v", dtype, (7,)))
    assert (found.dimensions, found.outputs) == (7, ["v"])


def test_an_output_that_counts_tokens_may_stand_before_or_behind_it() -> None:
    for outputs in ([VECTOR, TOKENS], [TOKENS, VECTOR]):
        assert model(*outputs).outputs == ["vector", "prompt_tokens"]


def test_a_model_that_embeds_is_asked_for_texts() -> None:
    """Chats and completions name the path of embeddings, not one of the other protocol."""
    with pytest.raises(
        InvalidRequest, match=r"^'m' is no generator and makes no texts; ask it at /v1/embeddings$"
    ):
        check_makes_texts(spec([TEXT], [VECTOR]))
    with pytest.raises(InvalidRequest, match=r"ask it at /v2/models/m/infer$"):
        check_makes_texts(spec([Tensor("x", "float32", (2,))], [VECTOR]))


@pytest.mark.parametrize(
    "other",
    [
        spec([TEXT, Tensor("x", "float32", (2,))], [VECTOR]),
        spec([Tensor("text", "bytes", (1,), max_bytes=64)], [VECTOR]),
        spec([Tensor("x", "float32", (2,))], [VECTOR]),
        spec([TEXT], [VECTOR, Tensor("more", "float32", (2,))]),
        spec([TEXT], [TOKENS]),
        spec([TEXT], [Tensor("v", "int64", (2,))]),
        spec([TEXT], [Tensor("v", "float32", (2, 2))]),
        spec([TEXT], [Tensor("v", "float32", ())]),
        spec([TEXT], [Tensor("v", "float32", (Dim(3),))]),
        spec([TEXT], [VECTOR, Tensor("prompt_tokens", "float32", ())]),
        spec([TEXT], [VECTOR, Tensor("prompt_tokens", "int64", (1,))]),
        spec([TEXT], [VECTOR, Tensor("truncated", "int64", ())]),
        spec([TEXT], [VECTOR, Tensor("truncated", "bool", (1,))]),
        spec([TEXT], [TRUNCATED]),
        spec([TEXT], [VECTOR], Tensor("needed", "int64", ())),
    ],
)
def test_other_models_do_not_embed(other: ModelSpec) -> None:
    assert EmbeddingModel.of(other) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_both_encodings_hold_the_same_values(dtype: str) -> None:
    found = model(Tensor("v", dtype, (2,)))
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    array = stored if dtype == "bfloat16" else values.astype(dtype)
    for binary in (False, True):
        answer = json.loads(embedding_answer(found, [{"v": array}], binary=binary))
        vectors = [each["embedding"] for each in answer["data"]]
        if binary:
            vectors = [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in vectors]
        assert vectors == values.tolist()
        assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_windows_are_joined_and_their_tokens_added() -> None:
    parts = [
        {"vector": np.full((n, 2), n, np.float32), "prompt_tokens": np.full(n, 10 * n)}
        for n in (2, 1)
    ]
    answer = json.loads(embedding_answer(model(VECTOR, TOKENS), parts, binary=False))
    assert [(each["index"], each["embedding"][0]) for each in answer["data"]] == [
        (0, 2.0), (1, 2.0), (2, 1.0),
    ]  # fmt: skip
    assert answer["usage"] == {"prompt_tokens": 50, "total_tokens": 50}


def test_texts_that_were_cut_are_told_over_all_windows() -> None:
    found = model(TOKENS, TRUNCATED, VECTOR)
    assert found.outputs == ["vector", "prompt_tokens", "truncated"]
    parts = [
        {"vector": np.zeros((n, 2), np.float32), "prompt_tokens": np.ones(n, np.int64),
         "truncated": np.arange(n) == n - 1}
        for n in (2, 3)
    ]  # fmt: skip
    answer = json.loads(embedding_answer(found, parts, binary=True))
    assert [each.get("truncated") for each in answer["data"]] == [None, True, None, None, True]


def test_a_number_that_is_none_is_null_in_json() -> None:
    array = np.array([[np.nan, np.inf]], np.float32)
    answer = json.loads(embedding_answer(model(VECTOR), [{"vector": array}], binary=False))
    assert answer["data"][0]["embedding"] == [None, None]


def read(**members: Any) -> Any:
    return read_embedding_request(json.dumps({"model": "m", "input": "a", **members}).encode())


def test_null_stands_for_an_option_that_is_absent() -> None:
    found = read(encoding_format=None, dimensions=None, user=None, parameters=None)
    assert (found.binary, found.texts) == (False, ["a"])
    assert model(VECTOR).rows(found).n == 1


def test_texts_are_utf_8_in_their_slots() -> None:
    rows = model(VECTOR).rows(read(input=["ü", "\0"]))
    assert rows.tensors["text"].tolist() == ["ü".encode(), b"\0"]


@pytest.mark.parametrize("dimensions", [0, -1, 2**24 + 1, 1.5, "2"])
def test_dimensions_are_told_their_range(dimensions: object) -> None:
    with pytest.raises(InvalidRequest, match="a whole number from 1 to 16777216 was expected"):
        read(dimensions=dimensions)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (b'{"a": 1e999}', "parameters has a number that no float64 holds"),
        (b"[1]", "parameters: an object was expected"),
        (b'{"a": "\xff"}', "parameters: an object was expected"),
    ],
)
def test_parameters_are_told_what_is_wrong_with_them(parameters: bytes, text: str) -> None:
    body = b'{"model": "m", "input": "x", "parameters": %b}' % parameters
    with pytest.raises(InvalidRequest, match=text):
        model(VECTOR).rows(read_embedding_request(body))


def test_other_dimensions_than_the_vectors_are_refused() -> None:
    assert model(VECTOR).rows(read(dimensions=2)).n == 1
    with pytest.raises(InvalidRequest, match="have 2, and cannot be shortened") as caught:
        model(VECTOR).rows(read(dimensions=1))
    assert caught.value.param == "dimensions"


def test_a_text_that_is_too_long_is_named_by_its_place() -> None:
    for texts, param in (("x" * 65, "input"), (["a", "x" * 65], "input[1]")):
        with pytest.raises(TooLarge) as caught:
            model(VECTOR).rows(read(input=texts))
        assert error_object(caught.value, {})["error"]["param"] == param


@pytest.mark.parametrize("count", [2049, 100_000])
def test_more_texts_than_one_request_takes_are_refused(count: int) -> None:
    with pytest.raises(TooLarge, match="at most 2048") as caught:
        read(input=["\\"] * count)
    assert caught.value.param == "input"


def test_quotes_within_a_long_text_are_no_texts() -> None:
    assert len(read(input=['"' * 300_000, "a"]).texts) == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [(InvalidRequest("x"), "invalid_request_error"), (Overloaded("x"), "server_error")],
)
def test_an_error_has_the_clients_shape(error: PoolError, kind: str) -> None:
    found = error_object(error, {})["error"]
    assert (found["message"], found["type"], found["param"]) == ("x", kind, None)
    assert found["code"] == error.code


def test_the_finer_time_to_retry_is_a_header_too() -> None:
    assert error_headers(Overloaded("x", 250)) == {"Retry-After": "1", "Retry-After-Ms": "250"}
    assert error_headers(Forbidden("x")) == {}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 10**4000}, "dimensions"),
        ({"dimensions": 2.0}, "dimensions"),
        ({"x" * 100_000: 1}, "x" * 80),
        ({"parameters": {"x": "y" * (64 << 10)}}, "parameters"),
        ({"parameters": [1]}, "parameters"),
    ],
)
def test_the_refusal_of_a_large_member_is_short(members: dict[str, Any], param: str) -> None:
    with pytest.raises((InvalidRequest, TooLarge)) as caught:
        model(VECTOR).rows(read(**members))
    assert caught.value.param == param
    assert len(caught.value.message) < 300


def test_parameters_that_are_nested_too_deeply_are_refused() -> None:
    nested = b'{"model":"m","input":"a","parameters":{"x":' + b"[" * 900 + b"]" * 900 + b"}}"
    with pytest.raises(InvalidRequest):
        model(VECTOR).rows(read_embedding_request(nested))


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(InvalidRequest, match="input has half of a surrogate pair") as caught:
        read_embedding_request(b'{"model":"m","input":"\\ud800"}')
    assert caught.value.param == "input"


def test_only_paths_below_v1_are_openais() -> None:
    assert is_openai_path("/v1/models?limit=1")
    for path in ("", "/v1", "/v10/models", "/v2/models/v1/infer", "/x?/v1/"):
        assert not is_openai_path(path)
