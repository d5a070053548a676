"""Strings that are no text: what is said of them, and that nothing is said of those that are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.embeddings import read_embedding_request
from batchpool.wire.json_text import no_text

TEXT = ModelSpec(
    "m", "numpy", (Tensor("text", "bytes", (), max_bytes=99),), (Tensor("y", "float32"),)
)
JSON = {b"content-type": b"application/json"}
HALF = "half of a surrogate pair, "
BYTE = "a byte that is no UTF-8, "


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (rb'{"model":"m","input":["ok","a\ud800b"]}', rf"input[1] has {HALF}\ud800, at byte 29"),
        (rb'{"model":"m","input":"a\udc00"}', rf"input has {HALF}\udc00, at byte 23"),
        (rb'{"model":"m\uD83D","input":"a"}', rf"model has {HALF}\uD83D, at byte 11"),
        (rb'{"input":["\ud83d\n"],"model":"m"}', rf"input[0] has {HALF}\ud83d, at byte 11"),
        (rb'{"input":["\ud83d\ud83d\ude00"]}', rf"input[0] has {HALF}\ud83d, at byte 11"),
        (rb'{"input":["\ud83dx\ude00"]}', rf"input[0] has {HALF}\ud83d, at byte 11"),
        (rb'{"in\ud800put":"a"}', rf"a string has {HALF}\ud800, at byte 4"),
        (b'{"model":"m","input":["ok","\xc3\xa9\xff"]}', f"input[1] has {BYTE}0xff, at byte 30"),
        (b'{"input":"\xed\xa0\x80"}', f"input has {BYTE}0xed, at byte 10"),
        (rb'{"input":["\ud83d\ude00", "\\ud800", "\u0041"]}', ""),
        (b"no JSON", ""),
        (b"", ""),
    ],
)
def test_the_first_fault_is_named_with_its_place(body: bytes, fault: str) -> None:
    assert no_text(body) == fault
    if fault:
        with pytest.raises(InvalidRequest) as caught:
            read_embedding_request(body)
        assert caught.value.message == fault
        assert caught.value.param in ("input", "model", None)


@given(st.recursive(st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)))
def test_nothing_is_said_of_text(value: object) -> None:
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert no_text(written.encode()) == ""


def test_a_character_that_is_cut_by_the_limit_is_none() -> None:
    assert no_text(b'"' + b"a" * (64 * 1024 - 2) + "é".encode() + b'"') == ""


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (rb'{"text":["ok","a\ud800b"]}', rf"text[1] has {HALF}\ud800, at byte 16"),
        (b'{"text":["ok","a\xff"]}', f"text[1] has {BYTE}0xff"),
        (
            rb'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["a\ud800"]}]}',
            rf"inputs[0].data[0] has {HALF}\ud800, at byte 67",
        ),
        (
            b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["a\xff"]}]}',
            f"input 'text': its data[0] has {BYTE}0xff",
        ),
    ],
)
def test_every_form_of_json_says_the_same(body: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Codec(TEXT, "1").parse(JSON, body)
    assert fault in caught.value.message
