"""Records' values as rows, and outputs as records' values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from batchpool.consume.topics import Topic, topic_of
from batchpool.consume.values import ValueReader, ValueWriter
from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor

X = Tensor("x", "float32", (2,))
BIAS = Tensor("bias", "float32", (), default=0.0)
TEXT = Tensor("text", "bytes", max_bytes=8)
Y = (Tensor("y", "float32", (2,)),)
NUMBERS = ModelSpec("m", "numpy", (X, BIAS), Y)
TEXTS = ModelSpec("m", "numpy", (TEXT,), Y)


@pytest.mark.parametrize(
    ("spec", "form", "columns", "value", "row"),
    [
        (NUMBERS, "json", {}, b'{"x": [1, 2], "other": 1}', {"x": [1, 2]}),
        (NUMBERS, "json", {}, b'{"x": [1, 2], "bias": 3}', {"x": [1, 2], "bias": 3}),
        (NUMBERS, "json", {"x": "f"}, b'{"f": [1, 2], "x": 9}', {"x": [1, 2]}),
        (NUMBERS, "json", {}, b"[1, 2]", {"x": [1, 2]}),
        (TEXTS, "json", {}, b'"hello"', {"text": "hello"}),
        (TEXTS, "raw", {}, b"\xff\x00", {"text": b"\xff\x00"}),
    ],
)
def test_a_row(spec: ModelSpec, form: str, columns: Any, value: bytes, row: Any) -> None:
    assert ValueReader(spec, form, columns).row(value) == row


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "no value"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"y": 1}', "has no 'x', which is input 'x'; it has 'y'"),
        (b"{}", "it has nothing"),
    ],
)
def test_a_value_that_is_no_row_is_told_so(value: bytes | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ValueReader(NUMBERS, "json", {}).row(value)


def test_flags_that_do_not_fit_the_model_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="has no input 'z'; it has 'x', 'bias'"):
        ValueReader(NUMBERS, "json", {"z": "z"})
    with pytest.raises(ConfigError, match="--value raw"):
        ValueReader(NUMBERS, "raw", {})


def test_outputs_are_json_that_holds_their_values() -> None:
    outputs = (
        Tensor("y", "float32", (2,)),
        Tensor("half", "bfloat16"),
        Tensor("label", "bytes", max_bytes=8),
        Tensor("names", "bytes", (2,), max_bytes=8),
    )
    row = {
        "y": np.array([0.5, np.nan], np.float32),
        "half": np.uint16(0x3FC0),
        "label": b"cat",
        "names": np.array([b"a", b"\xff"], object),
    }
    assert json.loads(ValueWriter(outputs).value(row)) == {
        "y": [0.5, None],
        "half": 1.5,
        "label": "cat",
        "names": ["a", "\ufffd"],
    }


def test_topics() -> None:
    assert topic_of("kafka://a:1,b:2/t.x", "--to") == Topic("a:1,b:2", "t.x")
    assert topic_of("kafka:///t", "--to", "a:1") == Topic("a:1", "t")
    for text, said in (
        ("t", "kafka://HOST:PORT/TOPIC was expected"),
        ("kafka://a:1", "is no name of a topic"),
        ("kafka://a:1/x/y", "is no name of a topic"),
        ("kafka:///t", "names no broker"),
    ):
        with pytest.raises(ConfigError, match=said):
            topic_of(text, "--to")
