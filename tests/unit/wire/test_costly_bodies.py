"""Bodies of strangers that would cost far more than their bytes: refused, or read in their time."""

from __future__ import annotations

import json

import pytest

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors import ragged
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.inputs import begins_as_json, no_number_hint
from tests.unit.wire.calls import AFFINE, ask, echo

LONG = echo("float32", (Dim(1 << 20),))


def parse(spec: ModelSpec, body: bytes, kind: bytes = b"application/json") -> object:
    return Codec(spec).parse({b"content-type": kind}, body)


def test_rows_are_not_made_as_large_as_the_largest_of_them_without_bound() -> None:
    """140 KB would take two gigabytes."""
    rows = b"[" + b",".join([b"[%s]" % b",".join([b"1"] * 20_000), *[b"[1]"] * 24_999]) + b"]"
    with pytest.raises(TooLarge, match="differ so much in size that they take 2000000000"):
        parse(LONG, b'{"x": %s}' % rows)


def test_rows_of_several_dimensions_that_differ_are_few() -> None:
    spec = echo("float32", (Dim(4), Dim(4)))
    row = [[[1]], [[1, 2], [3, 4]]]
    parse(spec, json.dumps({"x": row * 512}).encode())
    with pytest.raises(TooLarge, match="has 1026 rows of different sizes; at most 1024 at once"):
        parse(spec, json.dumps({"x": row * 513}).encode())


def test_lists_of_different_sizes_are_converted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one 250 KB of them took a second of the event loop."""
    calls = []
    convert = ragged.as_rows
    monkeypatch.setattr(ragged, "as_rows", lambda *args: calls.append(1) or convert(*args))
    rows = [[float(i)] * (1 + i % 2) for i in range(2000)]
    array, sizes = ragged.as_sized_rows(LONG.inputs[0], rows)
    assert len(calls) == 1
    assert array[:3].tolist() == [[0, 0], [1, 1], [2, 0]]
    assert sizes is not None
    assert sizes[:3].tolist() == [[1], [2], [1]]
    calls.clear()
    rows[1777] = ["a"]  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match=r"^row 1777: .*the value 'a' does not fit float32"):
        ragged.as_sized_rows(LONG.inputs[0], rows)
    assert len(calls) < 2 + 2000 / 64 + 64


@pytest.mark.parametrize("white", [b" " * 64, b"\n" * 2000])
def test_white_space_before_it_does_not_hide_json(white: bytes) -> None:
    body = white + b'{"x": [1, 2, 3, 4]}'
    assert begins_as_json(body)
    for kind in (b"application/json", b"application/octet-stream", b"text/plain"):
        request = Codec(AFFINE).parse({b"content-type": kind}, body)
        assert request.rows.tensors["x"].tolist() == [[1, 2, 3, 4]]
    assert not begins_as_json(white[:64] + b"[1]")
    text = echo("bytes", (), 4096)
    protocol = b'{"inputs": [' + white + b'{"name": "x", "datatype": "BYTES", "shape": [1],'
    request = Codec(text).parse({b"content-type": b"text/plain"}, protocol + b' "data": ["a"]}]}')
    assert request.rows.tensors["x"].tolist() == [b"a"]


def test_a_message_looks_through_the_beginning_only() -> None:
    assert no_number_hint(b'{"x": [NaN]}') == "; JSON has no NaN: send such numbers as binary data"
    assert no_number_hint(b"," * 65536 + b"[NaN]") == ""


@pytest.mark.parametrize("depth", [500, 1200, 100_000])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bytes"])
def test_deep_nesting_is_refused(depth: int, dtype: str) -> None:
    spec = echo(dtype, (2,), 8 if dtype == "bytes" else None)
    with pytest.raises(InvalidRequest):
        parse(spec, b'{"x": %s1%s}' % (b"[" * depth, b"]" * depth))


def test_classes_are_bounded_over_all_rows() -> None:
    spec = ModelSpec(
        "m", "numpy", (Tensor("x", "float32", (1,)),), (Tensor("y", "float32", (40_000,)),)
    )
    x = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}
    asked = [{"name": "y", "parameters": {"classification": 32_768}}]
    ask(spec, {"inputs": [x], "outputs": asked})
    asked = [{"name": "y", "parameters": {"classification": 32_769}}]
    with pytest.raises(TooLarge, match="asks for 65538 texts in all rows; at most 65536 stand in"):
        ask(spec, {"inputs": [x], "outputs": asked})
