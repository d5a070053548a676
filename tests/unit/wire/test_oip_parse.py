"""Open Inference Protocol requests: names, sources, parameters, sizes; each refusal in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import OutputChoice
from tests.unit.wire.calls import (
    AFFINE,
    GOOD,
    MIXED,
    X,
    ask,
    body_of,
    floats,
    one,
    refused,
    text_bytes,
)

# -- what is taken ---------------------------------------------------------------------------


def test_a_json_request_has_all_outputs_as_json_and_no_wishes() -> None:
    request = ask(AFFINE, GOOD)
    assert request.id is None
    assert request.form == "json"
    assert request.outputs == (OutputChoice("y", False),)
    assert (request.timeout_ns, request.priority) == (None, 0)
    assert (request.rows.n, request.rows.parameters) == (1, {})
    x = request.rows.tensors["x"]
    assert (x.dtype, x.shape, x.tolist()) == (np.dtype("f4"), (1, 4), [[1, 2, 3, 4]])


def test_data_may_be_flat_or_nested() -> None:
    """C51: both mean equal rows."""
    flat = ask(AFFINE, one([2, 4], [1, 2, 3, 4, 5, 6, 7, 8])).rows
    nested = ask(AFFINE, one([2, 4], [[1, 2, 3, 4], [5, 6, 7, 8]])).rows
    deeper = ask(AFFINE, one([2, 4], [[[1], [2], [3], [4]], [[5], [6], [7], [8]]])).rows
    for rows in (flat, nested, deeper):
        assert rows.n == 2
        assert rows.tensors["x"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_binary_input_is_a_view_of_the_body_and_not_writable() -> None:
    head = one([1, 4], X)
    headers, body = body_of(head, X)
    x = Codec(AFFINE).parse(headers, body).rows.tensors["x"]
    assert x.tolist() == [[1, 2, 3, 4]]
    assert np.shares_memory(x, np.frombuffer(body, np.uint8))
    assert not x.flags.writeable


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_body_will_do(kind: type) -> None:
    headers, body = body_of(one([1, 4], X), X)
    assert Codec(AFFINE).parse(headers, kind(body)).rows.tensors["x"].tolist() == [[1, 2, 3, 4]]
    headers, body = body_of(GOOD)
    assert Codec(AFFINE).parse(headers, kind(body)).rows.tensors["x"].tolist() == [[1, 2, 3, 4]]


def test_header_length_equal_to_the_content_length_means_json_only() -> None:
    body = json.dumps(GOOD).encode()
    headers = {b"inference-header-content-length": b"%d" % len(body)}
    assert Codec(AFFINE).parse(headers, body).rows.n == 1


def test_json_and_binary_inputs_mix_in_both_orders() -> None:
    """C51: in either order of two inputs."""
    ids = np.array([[1, 2], [3, 4]], "<i8").tobytes()
    text = text_bytes(b"", "é".encode())
    as_json = {
        "ids": {"data": [[1, 2], [3, 4]]},
        "text": {"data": ["", "é"]},
    }
    as_bytes = {
        "ids": {"parameters": {"binary_data_size": len(ids)}},
        "text": {"parameters": {"binary_data_size": len(text)}},
    }
    head = {
        "ids": {"name": "ids", "shape": [2, 2], "datatype": "INT64"},
        "text": {"name": "text", "shape": [2], "datatype": "BYTES"},
    }
    outputs = [{"name": "score"}]
    tails = {"ids": ids, "text": text}
    for order in (("ids", "text"), ("text", "ids")):
        for binary in ((), ("ids",), ("text",), ("ids", "text")):
            inputs = [head[n] | (as_bytes if n in binary else as_json)[n] for n in order]
            request = ask(
                MIXED,
                {"inputs": inputs, "outputs": outputs},
                *(tails[n] for n in order if n in binary),
            )
            assert request.rows.n == 2
            assert request.rows.tensors["ids"].tolist() == [[1, 2], [3, 4]]
            assert request.rows.tensors["text"].tolist() == [b"", "é".encode()]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("42", "42"), ("", None), (None, None), ('"\\ü\n\x00😀', '"\\ü\n\x00😀')],
)
def test_the_id_is_kept_exactly_and_empty_means_none(given: str | None, kept: str | None) -> None:
    assert ask(AFFINE, GOOD | {"id": given}).id == kept


def test_null_means_absent_and_a_repeated_model_name_is_let_through() -> None:
    head = GOOD | {
        "outputs": None,
        "parameters": None,
        "model_name": "affine",
        "model_version": "1",
    }
    assert ask(AFFINE, head).outputs == (OutputChoice("y", False),)


# -- names -----------------------------------------------------------------------------------


def test_unknown_missing_and_repeated_inputs_are_named() -> None:
    """C04: none of them is dropped in silence."""
    x = GOOD["inputs"][0]
    assert "no input 'z'" in refused(AFFINE, {"inputs": [x, x | {"name": "z"}]})
    assert "'x' is given twice" in refused(AFFINE, {"inputs": [x, x | {"data": [9, 9, 9, 9]}]})
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    assert "'ids'" in refused(MIXED, {"inputs": [text], "outputs": [{"name": "score"}]})
    long = refused(AFFINE, {"inputs": [x | {"name": "z" * 10_000}]})
    assert len(long) < 300


def test_outputs_unknown_repeated_or_chosen() -> None:
    """C04: an output that is not there, or asked for twice, is named."""
    assert "no output 'nope'" in refused(AFFINE, GOOD | {"outputs": [{"name": "nope"}]})
    twice = GOOD | {"outputs": [{"name": "y"}, {"name": "y"}]}
    assert "'y' is asked for twice" in refused(AFFINE, twice)


MIXED_INPUTS = [
    {"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [7]},
    {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]},
]


def wish(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def test_outputs_come_as_asked_each_in_its_own_encoding() -> None:
    """C51: binary for all, for one, or overridden."""

    def outputs(asked: list[Any] | None, **parameters: Any) -> list[tuple[str, bool]]:
        head = {"inputs": MIXED_INPUTS, "outputs": asked, "parameters": parameters}
        return [(c.name, c.binary) for c in ask(MIXED, head).outputs]

    everything = [("score", True), ("label", True), ("half", True)]
    assert outputs(None, binary_data_output=True) == everything
    assert outputs([], binary_data_output=True) == everything
    assert outputs([wish("label")]) == [("label", False)]
    assert outputs([wish("label"), wish("score", binary_data=True)]) == [
        ("label", False),
        ("score", True),
    ]
    # A wish of one output wins over the wish for all.
    assert outputs([wish("half"), wish("score", binary_data=False)], binary_data_output=True) == [
        ("half", True),
        ("score", False),
    ]
    with pytest.raises(InvalidRequest, match="'half' is FP16"):
        outputs(None)


def test_the_wrong_datatype_is_refused_with_both_names() -> None:
    message = refused(AFFINE, one([1, 4], [1, 2, 3, 4], "FP64"))
    assert message == "input 'x' has datatype 'FP64'; FP32 was expected"
    refused(AFFINE, one([1, 4], [1, 2, 3, 4], "float32"))
    refused(AFFINE, one([1, 4], [1, 2, 3, 4], "nonsense" * 1000))


# -- exactly one source, sizes, leftovers ----------------------------------------------------


def test_exactly_one_source_of_data() -> None:
    bare = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
    assert "neither came" in refused(AFFINE, {"inputs": [bare]})
    assert "neither came" in refused(AFFINE, {"inputs": [bare | {"parameters": {}}]})
    both = one([1, 4], X)["inputs"][0] | {"data": [1, 2, 3, 4]}
    assert "both came" in refused(AFFINE, {"inputs": [both]}, X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_region": "r", "shared_memory_byte_size": 16},
        {"shared_memory_region": "r", "shared_memory_byte_size": 16, "binary_data": False},
        {"shared_memory_offset": 0},
    ],
)
def test_shared_memory_is_not_offered(parameters: dict[str, Any]) -> None:
    output = refused(AFFINE, GOOD | {"outputs": [wish("y", **parameters)]})
    assert "shared-memory extension is not offered" in output
    parameters.pop("binary_data", None)
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": parameters}
    assert "shared-memory extension is not offered" in refused(AFFINE, {"inputs": [tensor]})


@pytest.mark.parametrize("size", [-1, 15, 17, 2**31, 2**63, 10**4299, 16.0, "16", True])
def test_a_binary_size_that_is_wrong(size: Any) -> None:
    tensor = one([1, 4], X)["inputs"][0] | {"parameters": {"binary_data_size": size}}
    assert "'x'" in refused(AFFINE, {"inputs": [tensor]}, X)


def test_leftover_and_missing_bytes() -> None:
    assert "1 bytes are left over" in refused(AFFINE, one([1, 4], X), X, b"\0")
    assert "12 bytes are left" in refused(AFFINE, one([1, 4], X), X[:12])
    assert "left over" in refused(AFFINE, GOOD, X)


@pytest.mark.parametrize(
    "length", [b"-1", b"+3", b" 3", b"3 ", b"", b"x", b"1_0", b"0x10", b"1e2", b"9" * 5000]
)
def test_a_header_length_that_is_no_number_in_range(length: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length"):
        Codec(AFFINE).parse({b"inference-header-content-length": length}, json.dumps(GOOD).encode())


def test_a_header_length_beyond_the_body() -> None:
    body = json.dumps(GOOD).encode()
    headers = {b"inference-header-content-length": b"%d" % (len(body) + 1)}
    with pytest.raises(InvalidRequest, match=f"a whole number from 0 to {len(body)} was"):
        Codec(AFFINE).parse(headers, body)


# -- parameters ------------------------------------------------------------------------------


def mixed(**parameters: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"inputs": MIXED_INPUTS, "outputs": [{"name": "score"}]}
    return head | {"parameters": parameters}


def test_declared_parameters_reach_the_rows() -> None:
    assert ask(MIXED, mixed()).rows.parameters == {"top_k": 5}
    assert ask(MIXED, mixed(top_k=3)).rows.parameters == {"top_k": 3}
    # One request's values are its own.
    ask(MIXED, mixed()).rows.parameters["top_k"] = 9
    assert ask(MIXED, mixed()).rows.parameters == {"top_k": 5}
    for wrong in ("3", 1.5, 2**63, True, [3], {"a": 1}):
        refused(MIXED, mixed(top_k=wrong))


def test_the_protocols_words() -> None:
    request = ask(MIXED, mixed(timeout=1500, priority=2, top_k=1, binary_data_output=True))
    assert (request.timeout_ns, request.priority) == (1_500_000, 2)
    assert request.outputs == (OutputChoice("score", True),)
    assert ask(MIXED, mixed(timeout=0)).timeout_ns is None
    assert ask(MIXED, mixed(timeout=2**64 - 1)).timeout_ns == 2**63 - 1
    for name, wrong in [
        ("timeout", -1), ("timeout", 1.5), ("timeout", "1"), ("timeout", True),
        ("priority", -1), ("priority", 256), ("priority", 1.0), ("priority", False),
        ("binary_data_output", 1), ("binary_data_output", "true"),
    ]:  # fmt: skip
        assert f"'{name}'" in refused(MIXED, mixed(**{name: wrong}))


def test_headers_and_parameters_together() -> None:
    codec = Codec(AFFINE)
    body = json.dumps(GOOD | {"parameters": {"timeout": 2000, "priority": 7}}).encode()
    for header, expected in ((b"1", 1_000_000), (b"3", 2_000_000), (b"0", 2_000_000)):
        assert codec.parse({b"x-request-timeout-ms": header}, body).timeout_ns == expected
    for header, priority in ((b"3", 3), (b"255", 255), (b"0", 7)):
        assert codec.parse({b"x-request-priority": header}, body).priority == priority


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sequence_id", "sequences are not supported"),
        ("sequence_start", "sequences are not supported"),
        ("sequence_end", "sequences are not supported"),
        ("triton_enable_empty_final_response", "reserved"),
        ("temperature", "has no parameter 'temperature'; it declares 'top_k'"),
    ],
)
def test_parameters_nobody_declared(name: str, says: str) -> None:
    assert says in refused(MIXED, mixed(**{name: 1}))


def test_a_model_may_declare_a_sequence_but_not_the_protocols_words() -> None:
    def spec(name: str) -> ModelSpec:
        parameter = Tensor(name, "int64", ())
        return ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, (parameter,))

    request = ask(spec("sequence_id"), GOOD | {"parameters": {"sequence_id": 9}})
    assert request.rows.parameters == {"sequence_id": 9}
    assert "missing" in refused(spec("sequence_id"), GOOD)
    for name in ("timeout", "priority", "binary_data_output", "triton_x"):
        with pytest.raises(ConfigError, match=name):
            Codec(spec(name))


@pytest.mark.parametrize(
    "head",
    [
        GOOD | {"parameter": {}},
        GOOD | {"output": []},
        GOOD | {"id": 42},
        GOOD | {"parameters": []},
        GOOD | {"outputs": [{"name": "y", "parameters": {"binary": True}}]},
        GOOD | {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        GOOD | {"outputs": ["y"]},
        {"inputs": [GOOD["inputs"][0] | {"parameters": {"content_type": "np"}}]},
        {"inputs": [GOOD["inputs"][0] | {"dtype": "FP32"}]},
    ],
)
def test_misspelt_and_mistyped_fields_are_refused(head: dict[str, Any]) -> None:
    refused(AFFINE, head)


def test_a_fault_inside_a_tensor_names_the_tensor() -> None:
    tensor = MIXED_INPUTS[1] | {"shape": "1"}
    message = refused(MIXED, {"inputs": [MIXED_INPUTS[0], tensor]})
    assert message.startswith("input 'text': Expected `array`, got `str`")
    message = refused(AFFINE, GOOD | {"outputs": [{"name": "y", "parameters": []}]})
    assert message.startswith("output 'y': Expected `object")


def test_several_rows_in_one_request() -> None:
    values = floats(*range(4 * 70))
    rows = ask(AFFINE, one([70, 4], values), values).rows
    assert rows.n == 70
    assert rows.tensors["x"].reshape(-1).tolist() == list(range(280))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", 'the body is empty; JSON with "inputs" was expected'),
        (b"\xef\xbb\xbf{}", "the request's JSON begins with a byte order mark; send it without"),
        (
            b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1, NaN, 2, 3]}]}',
            "; JSON has no NaN: send such numbers as binary data",
        ),
        (b'{"parameters":{"a":-Infinity}}', "; JSON has no -Infinity: send such numbers as"),
    ],
)
def test_what_people_send_first_is_answered_with_what_works(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Codec(AFFINE).parse({}, body)
    assert text in str(caught.value)
