"""The raw form: the body is the tensor."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest, OutputChoice
from tests.unit.specs import model
from tests.unit.wire.calls import AFFINE, MIXED, X, echo, floats, split

RAW = {b"inference-header-content-length": b"0"}


def ask(spec: ModelSpec, body: bytes, **headers: str) -> InferRequest:
    more = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Codec(spec).parse(RAW | more, body)


@pytest.mark.parametrize("n", [1, 2, 64])
def test_a_body_of_k_rows_is_k_rows_and_a_view(n: int) -> None:
    body = floats(*range(4 * n))
    request = ask(AFFINE, body)
    assert (request.form, request.id, request.rows.n) == ("raw", None, n)
    x = request.rows.tensors["x"]
    assert (x.shape, x.dtype) == ((n, 4), np.dtype("f4"))
    assert x.reshape(-1).tolist() == list(range(4 * n))
    assert np.shares_memory(x, np.frombuffer(body, np.uint8))


def test_timeout_priority_and_defaults_come_from_headers_and_model() -> None:
    top_k = Tensor("top_k", "int64", (), default=5)
    spec = ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, (top_k,))
    request = ask(spec, X, x_request_timeout_ms="7", x_request_priority="2")
    assert (request.timeout_ns, request.priority) == (7_000_000, 2)
    assert request.rows.parameters == {"top_k": 5}
    needed = Tensor("needed", "int64", ())
    with pytest.raises(InvalidRequest, match="'needed'"):
        ask(ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, (needed,)), X)


@pytest.mark.parametrize("size", [0, 1, 15, 17, 31])
def test_a_body_of_no_whole_rows(size: int) -> None:
    with pytest.raises(InvalidRequest, match=f"'x'.* {size} bytes.*steps of 16"):
        ask(AFFINE, bytes(size))


def test_one_dynamic_dimension_makes_the_body_one_row() -> None:
    spec = echo("int16", (2, Dim(3)))
    for size in range(4):
        values = np.arange(2 * size, dtype="<i2")
        request = ask(spec, values.tobytes())
        assert request.rows.n == 1
        assert request.rows.tensors["x"].shape == (1, 2, size)
        assert request.rows.tensors["x"].reshape(-1).tolist() == values.tolist()
    with pytest.raises(TooLarge, match="larger than a slot"):
        ask(spec, bytes(16))
    with pytest.raises(InvalidRequest, match="steps of 4"):
        ask(spec, bytes(6))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (Dim(4),)])
def test_a_bytes_body_is_one_element_without_a_length(shape: tuple[int | Dim, ...]) -> None:
    spec = echo("bytes", shape, 8)
    for text in (b"", b"hello", b"\x04\0\0\0", b"\x00\xff\xfe"):
        request = ask(spec, text)
        assert request.rows.n == 1
        assert request.rows.tensors["x"].reshape(-1).tolist() == [text]
        assert request.rows.tensors["x"].shape == (1,) * (len(shape) + 1)
    with pytest.raises(TooLarge, match=r"at most 8 fit \(max_bytes in the model\)"):
        ask(spec, b"123456789")


@pytest.mark.parametrize(
    "spec",
    [
        MIXED,
        echo("float32", (Dim(2), Dim(2))),
        echo("bytes", (2,), 8),
        echo("bytes", (2, Dim(4)), 8),
        echo("float32", (0,)),
    ],
)
def test_models_that_need_the_full_form(spec: ModelSpec) -> None:
    with pytest.raises(InvalidRequest, match="send the JSON form with binary_data_size"):
        ask(spec, bytes(16))


def test_bool_bytes_are_checked_and_half_precision_is_fine() -> None:
    assert ask(echo("bool", (2,)), b"\0\1").rows.tensors["x"].tolist() == [[False, True]]
    with pytest.raises(InvalidRequest, match="0 or 1"):
        ask(echo("bool", (2,)), b"\0\2")
    every = np.arange(2**16, dtype="<u2").tobytes()
    for dtype in ("float16", "bfloat16"):
        assert ask(echo(dtype), every).rows.tensors["x"].tobytes() == every


SIZES = [  # of a row, in float32; beyond 64 KiB an array is copied without the interpreter's lock
    pytest.param(4, id="as bytes"),
    pytest.param(2**14 + 1, id="as an array"),
]


@pytest.mark.parametrize("width", SIZES)
def test_a_reader_of_one_size_gives_the_rows_of_each_body(width: int) -> None:
    spec = model(Tensor("x", "float32", (width,)))
    first, second = (np.random.default_rng(seed).random((2, width), "f4") for seed in (1, 2))
    codec = Codec(spec)
    request = ask(spec, first.tobytes())
    reader = codec.fixed_size_reader(request, first.nbytes)
    assert reader is not None
    for body in (first, second, first):
        rows = reader.rows(b"head" + body.tobytes(), 4)
        assert (rows.n, rows.parameters, rows.sizes) == (2, request.rows.parameters, {})
        assert bytes(rows.tensors["x"]) == body.tobytes()
        rows.tensors.clear()  # as where they were submitted


def test_a_reader_of_one_size_looks_at_each_bool_and_keeps_no_body() -> None:
    spec = model(Tensor("x", "bool", (2,)))
    reader = Codec(spec).fixed_size_reader(ask(spec, b"\0\1"), 2)
    assert reader is not None
    assert reader.rows(b"\1\1", 0).tensors["x"].tolist() == [[True, True]]
    with pytest.raises(InvalidRequest, match="each byte must be 0 or 1"):
        reader.rows(b"\0\2", 0)
    rows = reader.rows(b"\0\0", 0)
    reader.forget()
    assert rows.tensors == {}


def test_all_outputs_come_back_binary_behind_a_json_header() -> None:
    outputs = (Tensor("b", "float32", ()), Tensor("a", "float16", ()))
    spec = ModelSpec("m", "numpy", AFFINE.inputs, outputs)
    codec = Codec(spec)
    request = codec.parse(RAW, X)
    assert request.outputs == (OutputChoice("b", True), OutputChoice("a", True))
    head, tail = split(*codec.encode(request, {"a": np.array([1], "f2"), "b": np.array([2], "f4")}))
    assert [(o["name"], o["parameters"]) for o in head["outputs"]] == [
        ("b", {"binary_data_size": 4}),
        ("a", {"binary_data_size": 2}),
    ]
    assert tail == np.array([2], "<f4").tobytes() + np.array([1], "<f2").tobytes()
