"""Open Inference Protocol answers, byte for byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InternalError, InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest, OutputChoice
from tests.unit.wire.calls import AFFINE, MIXED, echo, floats, split

Y = np.array([[1, 2, 3, 4]], "f4")
MIXED_OUT: dict[str, Array] = {
    "score": np.array([[0.5, -1], [2, 3]], "f4"),
    "label": np.array([b"", "é".encode()], object),
    "half": np.array([[1, 2], [3, 4]], "f2"),
}


def request(*choices: tuple[str, bool], id: str | None = None) -> InferRequest:
    outputs = tuple(OutputChoice(name, binary) for name, binary in choices)
    return InferRequest(id, Rows(1, {}, {}), outputs, None, 0, "json")


def answer(
    spec: ModelSpec, asked: InferRequest, outputs: dict[str, Array], **more: Any
) -> tuple[dict[str, Any], bytes]:
    return split(*Codec(spec, "3").encode(asked, outputs, **more))


def test_a_json_answer_in_full() -> None:
    headers, body = Codec(AFFINE).encode(request(("y", False), id="42"), {"y": Y})
    assert body == (
        b'{"id":"42","model_name":"affine","model_version":"1","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[1,4],"data":[1.0,2.0,3.0,4.0]}]}'
    )
    assert headers == [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]


def test_a_binary_answer_in_full() -> None:
    headers, body = Codec(AFFINE).encode(request(("y", True)), {"y": Y})
    text = (
        b'{"model_name":"affine","model_version":"1","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}'
    )
    assert body == text + floats(1, 2, 3, 4)
    assert headers == [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", b"%d" % len(text)),
        (b"content-length", b"%d" % len(body)),
    ]


def test_mixed_outputs_in_the_order_asked() -> None:
    """C51: binary parts follow the JSON in that order with their sizes."""
    asked = request(("half", True), ("score", False), ("label", True))
    head, tail = answer(MIXED, asked, MIXED_OUT)
    label = b"\0\0\0\0" + struct.pack("<I", 2) + "é".encode()
    assert head == {
        "model_name": "mixed",
        "model_version": "3",
        "outputs": [
            {
                "name": "half",
                "datatype": "FP16",
                "shape": [2, 2],
                "parameters": {"binary_data_size": 8},
            },
            {"name": "score", "datatype": "FP32", "shape": [2, 2], "data": [0.5, -1, 2, 3]},
            {
                "name": "label",
                "datatype": "BYTES",
                "shape": [2],
                "parameters": {"binary_data_size": len(label)},
            },
        ],
    }
    assert tail == np.array([1, 2, 3, 4], "<f2").tobytes() + label


@pytest.mark.parametrize("id", ['"\\ü\n\x00😀', "x" * 1000])
def test_the_id_is_echoed_exactly(id: str) -> None:
    """C51: whatever characters it has."""
    assert answer(AFFINE, request(("y", True), id=id), {"y": Y})[0]["id"] == id


def test_no_id_is_no_id() -> None:
    """C51: nothing is echoed where nothing came."""
    assert "id" not in answer(AFFINE, request(("y", True)), {"y": Y})[0]


def test_parameters_of_the_answer_are_there_only_if_there_are_any() -> None:
    asked = request(("y", False))
    head, _ = answer(AFFINE, asked, {"y": Y}, model_parameters={"batch": 3, "reason": "full"})
    assert head["parameters"] == {"batch": 3, "reason": "full"}
    for none in (None, {}):
        assert "parameters" not in answer(AFFINE, asked, {"y": Y}, model_parameters=none)[0]


def test_what_json_has_no_number_for_is_null_and_binary_keeps_it() -> None:
    """C53: NaN and infinities; -0.0 and denormals are numbers."""
    values = np.array([[np.nan, np.inf], [-np.inf, -0.0], [5e-324, 1e300]], "f8")
    spec = echo("float64", (2,))
    head, _ = answer(spec, request(("x", False)), {"x": values})
    assert head["outputs"][0]["data"] == [None, None, None, -0.0, 5e-324, 1e300]
    assert str(head["outputs"][0]["data"][3]) == "-0.0"
    _, tail = answer(spec, request(("x", True)), {"x": values})
    assert tail == values.tobytes()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [2**53 + 1, -(2**63), 2**63 - 1]),
        ("uint64", [2**53 + 1, 0, 2**64 - 1]),
        ("bool", [True, False, True]),
        ("uint8", [0, 255, 1]),
    ],
)
def test_json_values_are_exact_and_of_their_kind(dtype: str, values: list[Any]) -> None:
    """C03: the way back keeps whole numbers of all sizes."""
    array = np.array(values, dtype)
    head, _ = answer(echo(dtype), request(("x", False)), {"x": array})
    assert head["outputs"][0]["data"] == values
    assert [type(v) for v in head["outputs"][0]["data"]] == [type(v) for v in values]


def test_fp32_as_json_reads_back_to_the_same_bits() -> None:
    values = np.arange(1, 2**31, 2**23 + 12345, dtype=np.uint32).view("f4")
    values = values[np.isfinite(values)]
    head, _ = answer(echo("float32"), request(("x", False)), {"x": values})
    assert np.array(head["outputs"][0]["data"], "f4").tobytes() == values.tobytes()


def test_text_that_is_not_utf8_can_only_go_as_binary() -> None:
    spec = echo("bytes", (), 8)
    array = np.array([b"\x00\xff\xfe"], object)
    with pytest.raises(InvalidRequest, match=r"output 'x' is not UTF-8.*binary_data true"):
        answer(spec, request(("x", False)), {"x": array})
    assert answer(spec, request(("x", True)), {"x": array})[1] == b"\3\0\0\0\x00\xff\xfe"


def test_an_empty_binary_output_leaves_a_json_answer_with_its_size() -> None:
    """C05: a model's rows of nothing have their shape and datatype."""
    head, tail = answer(echo("float32", (0,)), request(("x", True)), {"x": np.empty((2, 0), "f4")})
    assert head["outputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2, 0], "parameters": {"binary_data_size": 0}}
    ]
    assert tail == b""


@pytest.mark.parametrize("binary", [True, False])
def test_arrays_of_any_layout_come_out_row_major(binary: bool) -> None:
    """C64: in JSON and in binary."""
    square = np.arange(16, dtype="f4").reshape(4, 4)
    for array in (square.T, square[::-1], np.asfortranarray(square), square[:, ::-1]):
        head, tail = answer(AFFINE, request(("y", binary)), {"y": array})
        values = np.frombuffer(tail, "<f4").tolist() if binary else head["outputs"][0]["data"]
        assert values == array.reshape(-1).tolist()


@pytest.mark.parametrize("n", [0, 1, 16383, 16384, 16385, 40000])
def test_json_of_any_length_holds_every_value_once(n: int) -> None:
    """Long ones are written in parts."""
    head, _ = answer(echo("int64", (n,)), request(("x", False)), {"x": np.arange(n).reshape(1, n)})
    assert head["outputs"][0]["data"] == [*range(n)]


def test_a_dtype_that_is_not_the_declared_one_is_a_fault_of_ours() -> None:
    with pytest.raises(InternalError, match="float64"):
        answer(AFFINE, request(("y", True)), {"y": Y.astype("f8")})


def test_bfloat16_is_labelled_and_passed_bit_by_bit() -> None:
    """C54: BF16 is not called FP16."""
    every = np.arange(2**16, dtype="u2")
    head, tail = answer(echo("bfloat16"), request(("x", True)), {"x": every})
    assert head["outputs"][0]["datatype"] == "BF16"
    assert tail == every.tobytes()


def test_names_are_escaped() -> None:
    name = 'a"b\\c%d{}'
    spec = ModelSpec(name, "numpy", AFFINE.inputs, (Tensor(name, "float32", (4,)),))
    for binary in (True, False):
        head, _ = answer(spec, request((name, binary)), {name: Y})
        assert (head["model_name"], head["outputs"][0]["name"]) == (name, name)


def test_many_shapes_one_after_another() -> None:
    codec = Codec(AFFINE)
    for n in [*range(1, 1200), *range(1, 4)]:
        head, tail = split(*codec.encode(request(("y", True)), {"y": np.full((n, 4), n, "f4")}))
        assert head["outputs"][0]["shape"] == [n, 4]
        assert head["outputs"][0]["parameters"]["binary_data_size"] == len(tail) == 16 * n
