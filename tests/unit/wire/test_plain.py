"""Plain JSON: tensors by name, in the shapes and with the numbers that people write."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.plain_reader import PlainReader
from batchpool.wire.request import InferRequest
from tests.unit.wire.calls import AFFINE, MIXED, echo, strict

JSON = {b"content-type": b"application/json"}
ROW = [1, 2, 3, 4]
DOUBLED = [2.0, 4.0, 6.0, 8.0]


def parse(spec: ModelSpec, body: Any, **headers: str) -> InferRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = {name.replace("_", "-").lower().encode(): v.encode() for name, v in headers.items()}
    return Codec(spec).parse(JSON | more, text)


def answer(spec: ModelSpec, body: Any, outputs: dict[str, Any] | None = None) -> Any:
    """The answer to a body; of these outputs, or of x doubled in y."""
    request = parse(spec, body)
    if outputs is None:
        outputs = {"y": request.rows.tensors["x"] * 2}
    fields, written = Codec(spec).encode(request, outputs)
    assert fields == [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(written)),
    ]
    return strict(written)


def elements(*values: bytes) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"x": [ROW, ROW]}, {"y": [DOUBLED, DOUBLED]}),
        ({"x": [ROW]}, {"y": [DOUBLED]}),
        ({"x": ROW}, {"y": DOUBLED}),
        ({"inputs": {"x": [ROW]}}, {"outputs": [DOUBLED]}),
        ({"inputs": {"x": ROW}}, {"outputs": DOUBLED}),
        ({"inputs": [ROW, ROW]}, {"outputs": [DOUBLED, DOUBLED]}),
        ({"inputs": ROW}, {"outputs": DOUBLED}),
        ({"instances": [ROW, ROW]}, {"predictions": [DOUBLED, DOUBLED]}),
        ({"instances": [{"x": ROW}, {"x": ROW}]}, {"predictions": [DOUBLED, DOUBLED]}),
    ],
)
def test_each_way_to_write_rows_has_its_answer(body: Any, expected: Any) -> None:
    assert answer(AFFINE, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"x": ROW, "id": "42"}, {"id": "42", "y": DOUBLED}),
        ({"id": 'a"b', "inputs": [ROW]}, {"id": 'a"b', "outputs": [DOUBLED]}),
        ({"instances": [ROW], "id": "4"}, {"id": "4", "predictions": [DOUBLED]}),
        ({"id": "", "x": ROW}, {"y": DOUBLED}),
        ({"id": None, "x": ROW}, {"y": DOUBLED}),
    ],
)
def test_the_id_comes_back(body: Any, expected: Any) -> None:
    assert answer(AFFINE, body) == expected


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="id is 7; a text was expected"):
        parse(AFFINE, {"id": 7, "x": ROW})


def test_an_id_alone_is_no_plain_json() -> None:
    reader = PlainReader(ModelTables(AFFINE, "1"))
    for text in (b'{"id": "1"}', b'{"id": "1", "inputs": [{"name": "x"}]}'):
        assert not reader.recognises(text)
    assert reader.recognises(b'{"id": "1", "x": [1, 2, 3, 4]}')


@pytest.mark.parametrize("of", ["inputs", "outputs"])
def test_a_model_with_a_tensor_of_that_name_has_no_other_id(of: str) -> None:
    taken, made = ("id", "y") if of == "inputs" else ("x", "id")
    inputs, outputs = (Tensor(taken, "float32", (4,)),), (Tensor(made, "float32", (4,)),)
    spec = ModelSpec("m", "numpy", inputs, outputs)
    if of == "inputs":
        assert answer(spec, {"id": ROW}, {"y": np.array([ROW])}) == {"y": ROW}
    else:
        with pytest.raises(InvalidRequest, match="has no input 'id'"):
            parse(spec, {"x": ROW, "id": "42"})


SCORES = np.array([[1, 0.5], [2, 0.25]], np.float32)
OUTPUTS = {
    "score": SCORES,
    "label": elements(b"cat", "süß".encode()),
    "half": np.array([[1, 2], [3, np.nan]], np.float16),
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"ids": [[1, 2], [3, 4]], "text": ["a", "b"]},
            {"score": [[1, 0.5], [2, 0.25]], "label": ["cat", "süß"], "half": [[1, 2], [3, None]]},
        ),
        (
            {"instances": [{"ids": [1], "text": "a"}, {"text": "b", "ids": [2]}]},
            {
                "predictions": [
                    {"score": [1, 0.5], "label": "cat", "half": [1, 2]},
                    {"score": [2, 0.25], "label": "süß", "half": [3, None]},
                ]
            },
        ),
    ],
)
def test_a_model_of_several_outputs_names_them(body: Any, expected: Any) -> None:
    assert answer(MIXED, body, OUTPUTS) == expected


def test_only_the_outputs_that_are_asked_for_come() -> None:
    one = {name: array[:1] for name, array in OUTPUTS.items()}
    body = {"ids": [1, 2], "text": "a", "outputs": ["label"]}
    assert [choice.name for choice in parse(MIXED, body).outputs] == ["label"]
    assert answer(MIXED, body, one) == {"label": "cat"}
    rows = {"instances": [{"ids": [1], "text": "a"}], "outputs": ["half", "label"]}
    assert answer(MIXED, rows, one) == {"predictions": [{"half": [1, 2], "label": "cat"}]}
    assert len(parse(MIXED, body | {"outputs": []}).outputs) == 3
    for wrong, message in (
        ("label", "outputs is 'label'; a list of their names was expected"),
        ([1], r"outputs is \[1\]; a list"),
        (["nope"], "output 'nope' is none of the model; 'mixed' has 'score', 'label', 'half'"),
        (["half", "half"], "output 'half' is asked for twice"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            parse(MIXED, body | {"outputs": wrong})


def test_one_row_of_several_inputs_is_answered_as_one_row() -> None:
    one = {name: array[:1] for name, array in OUTPUTS.items()}
    body = {"ids": [1, 2], "text": "a", "parameters": {"top_k": 2, "priority": 3, "timeout": 5}}
    request = parse(MIXED, body, X_Request_Timeout_Ms="1")
    assert request.rows.parameters == {"top_k": 2}
    assert (request.priority, request.timeout_ns) == (3, 5_000)
    assert answer(MIXED, body, one) == {"score": [1, 0.5], "label": "cat", "half": [1, 2]}


@pytest.mark.parametrize(
    ("dtype", "written", "values"),
    [
        ("int64", "[1, 2.0, 3e2, -0, -0.0]", [1, 2, 300, 0, 0]),
        ("uint8", "[255, 1.0]", [255, 1]),
        ("float32", "[1, 2.5, -1e-3]", [1, 2.5, np.float32(-1e-3)]),
        ("float16", "[1, 0.5]", [1, 0.5]),
        ("bool", "[true, false, 1, 0]", [True, False, True, False]),
    ],
)
def test_numbers_are_taken_as_people_write_them(dtype: str, written: str, values: Any) -> None:
    rows = parse(echo(dtype), b'{"x": %s}' % written.encode()).rows
    assert rows.n == len(values)
    assert rows.tensors["x"].tolist() == values


@pytest.mark.parametrize(
    ("dtype", "written", "says"),
    [
        ("uint8", "256", "the value 256 does not fit uint8"),
        ("uint8", "-1.0", "the value -1 does not fit uint8"),
        ("int8", "128", "the value 128 does not fit int8"),
        ("int32", "2147483648.0", "the value 2147483648 does not fit int32"),
        ("int32", "1e16", "the value 10000000000000000 does not fit int32"),
        ("int32", "1.5", "the value 1.5 does not fit int32"),
        ("uint64", "18446744073709551616", "the value 18446744073709551616 does not fit uint64"),
        ("uint64", "1e20", "the value 100000000000000000000 does not fit uint64"),
        ("bool", "2", "the value 2 does not fit bool"),
        ("bool", '"true"', "the value 'true' does not fit bool"),
        ("float32", "1e39", "does not fit float32"),
        ("float16", "70000", "the value 70000 does not fit float16"),
        ("bfloat16", "3.4e38", "does not fit bfloat16"),
        ("float64", "1e999", "out of range"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype: str, written: str, says: str) -> None:
    """C03: nothing wraps around, loses its fraction or becomes an infinity."""
    with pytest.raises(InvalidRequest, match=says):
        parse(echo(dtype), b'{"x": [%s]}' % written.encode())


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_of_many_digits_are_exact_or_refused(dtype: str) -> None:
    """C03: a float cannot tell 2**53 from the next one; the digits alone can."""
    most = [9007199254740993, 2**63 - 1]
    assert parse(echo(dtype), {"x": most}).rows.tensors["x"].tolist() == most
    below = parse(echo(dtype), b'{"x": [9007199254740991.0, 1e15]}').rows.tensors["x"]
    assert below.tolist() == [2**53 - 1, 10**15]
    for written in (b"9007199254740993.0", b"9007199254740992.0", b"1e18", b"%d.0" % (2**64 - 1)):
        with pytest.raises(InvalidRequest, match=r"input 'x': .* lost digits; .* without a point"):
            parse(echo(dtype), b'{"x": [%s]}' % written)
        with pytest.raises(InvalidRequest, match="may have lost digits"):
            parse(echo(dtype), b'{"instances": [%s]}' % written)


def test_minus_zero_keeps_its_sign_and_texts_keep_theirs() -> None:
    spec = ModelSpec(
        "m",
        "numpy",
        (Tensor("v", "float32", (2,)), Tensor("t", "bytes", (), max_bytes=16)),
        (Tensor("y", "float32"),),
    )
    for body in (
        b'{"v": [-0, 1], "t": "\\"-0, -0"}',
        b'{"instances": [{"v": [-0, 1], "t": "\\"-0, -0"}]}',
    ):
        rows = parse(spec, body).rows
        assert np.signbit(rows.tensors["v"]).tolist() == [[True, False]]
        assert rows.tensors["t"].tolist() == [b'"-0, -0']


def test_bfloat16_goes_in_and_out_as_numbers() -> None:
    spec = echo("bfloat16", (2,))
    request = parse(spec, {"x": [[1, -2.5]]})
    assert request.rows.tensors["x"].tolist() == [[0x3F80, 0xC020]]
    written = Codec(spec).encode(request, {"x": request.rows.tensors["x"]})[1]
    assert strict(written) == {"x": [[1.0, -2.5]]}


def test_bytes_come_as_text_or_as_base64() -> None:
    spec = echo("bytes", (), 16)
    encoded = {"b64": base64.b64encode(b"\xff\x00").decode()}
    for body, expected in (
        ({"x": ["a", encoded]}, [b"a", b"\xff\x00"]),
        ({"x": encoded}, [b"\xff\x00"]),
        ({"inputs": encoded}, [b"\xff\x00"]),
        ({"inputs": "text"}, [b"text"]),
        ({"instances": [encoded, "b"]}, [b"\xff\x00", b"b"]),
        ({"instances": [{"x": encoded}]}, [b"\xff\x00"]),
    ):
        assert parse(spec, body).rows.tensors["x"].tolist() == expected


def test_rows_of_a_dynamic_tensor_may_differ_in_size() -> None:
    spec = echo("float32", (Dim(8), 2))
    rows = [[[1, 2]], [[3, 4], [5, 6]], []]
    request = parse(spec, {"x": rows})
    assert request.rows.sizes["x"].tolist() == [[1], [2], [0]]
    outputs = {"x": request.rows.tensors["x"], "x.sizes": request.rows.sizes["x"]}
    assert strict(Codec(spec).encode(request, outputs)[1]) == {"x": rows}
    request = parse(spec, {"instances": rows})
    assert strict(Codec(spec).encode(request, outputs)[1]) == {"predictions": rows}


@pytest.mark.parametrize("shape", [(20_000,), (3, 20_000), (40_000, 1), (5, 3, 4000)])
def test_long_answers_are_written_in_steps_without_a_seam(shape: tuple[int, ...]) -> None:
    spec = echo("int32", shape[1:])
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    request = parse(spec, {"x": np.zeros((1, *shape[1:]), int).tolist()})
    assert strict(Codec(spec).encode(request, {"x": values})[1]) == {"x": values.tolist()}


WORKS = r'; this works: {"x": \[\[0, 0, 0, 0\]\]}$'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"z": [ROW]}, f"^model 'affine' has no input 'z'; it has 'x'{WORKS}"),
        ({"x": [ROW], "z": 1}, f"^model 'affine' has no input 'z'; it has 'x'{WORKS}"),
        ({}, f"neither the protocol's 'inputs' nor an input of model 'affine', .* 'x'{WORKS}"),
        ([ROW], f"Expected `object`, got `array`{WORKS}"),
        (b"", f'^the body is empty; JSON with "inputs" was expected{WORKS}'),
        (b"\xef\xbb\xbf{}", f"begins with a byte order mark; send it without{WORKS}"),
        (b'{"x": [1, 2', f"^the request's JSON: Input data was truncated{WORKS}"),
        (b'{"x": [NaN, 1, 2, 3]}', "JSON has no NaN: send such numbers as binary data"),
        ({"x": [[1, 2, 3]]}, r"input 'x' has shape \[1, 3\]; \[n, 4\] was expected"),
        ({"x": [ROW, [1]]}, "input 'x': the nested lists are ragged"),
        ({"x": [["a", 1, 2, 3]]}, "the value 'a' does not fit float32"),
        ({"x": []}, "input 'x' has"),
        ({"inputs": {}}, "neither the protocol's 'inputs' nor an input of model 'affine'"),
        ({"inputs": {"z": 1}}, "^model 'affine' has no input 'z'; it has 'x'"),
        ({"instances": []}, r"^instances is \[\]; a list with at least one row was expected"),
        ({"instances": {"x": ROW}}, "^instances is {.*}; a list with at least one row"),
        ({"instances": [{"z": ROW}]}, "^instances: row 0: model 'affine' has no input 'z'"),
        ({"instances": [{"x": ROW}, ROW]}, r"^instances: row 1 is \[1, 2, 3, 4\]; an object was"),
        ({"instances": [{"x": ROW}, {}]}, r"^instances: row 1 has \[\], but row 0 has \['x'\]"),
        ({"instances": [ROW], "x": [ROW]}, "^'instances' and 'x' came together; only one"),
        ({"x": ROW, "parameters": 1}, "^parameters is 1; an object was expected"),
        ({"x": ROW, "parameters": {"q": 1}}, "has no parameter 'q'; it declares none"),
        ({"x": ROW, "parameters": {"binary_data_output": True}}, "is answered in plain JSON"),
    ],
)
def test_what_is_wrong_is_said_with_what_works(body: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse(AFFINE, body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": [[1]]}, "has 2 inputs, so 'inputs' must name them: 'ids', 'text'"),
        ({"instances": ["a"]}, "has 2 inputs, so 'instances' must name them: 'ids', 'text'"),
        ({"ids": [[1]]}, "input 'text' of model 'mixed' is missing"),
        ({"ids": [[1.5]], "text": ["a"]}, "the value 1.5 does not fit int64"),
        (
            {"ids": [[1]], "text": [{"b64": 1}]},
            "input 'text': {'b64': 1}: a string or",
        ),
        ({"ids": [[1]], "text": [{"b64": "?"}]}, r"^input 'text': {\"b64\": '\?'} is no base64: "),
        ({"ids": [[1]], "text": [5]}, "input 'text'"),
    ],
)
def test_inputs_of_several_models_are_checked_one_by_one(body: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse(MIXED, body)


def test_a_row_that_no_slot_holds_is_too_large() -> None:
    with pytest.raises(TooLarge):
        parse(MIXED, {"ids": [[0] * 9], "text": ["a"]})


def test_an_output_that_is_no_text_cannot_be_json() -> None:
    spec = echo("bytes", (), 16)
    with pytest.raises(InvalidRequest, match=r"output 'x' is not UTF-8 text.*binary_data true"):
        Codec(spec).encode(parse(spec, {"x": ["a"]}), {"x": elements(b"\xff")})


def test_an_input_of_a_reserved_name_is_an_input() -> None:
    names = ("instances", "inputs", "parameters", "outputs")
    inputs = tuple(Tensor(name, "float32") for name in names)
    spec = ModelSpec("m", "numpy", inputs, (Tensor("y", "float32"),))
    body = {name: [2 * i + 1, 2 * i + 2] for i, name in enumerate(names)}
    rows = parse(spec, body).rows
    assert {name: array.tolist() for name, array in rows.tensors.items()} == body


def test_the_protocol_goes_first() -> None:
    request = parse(
        AFFINE, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}
    )
    assert (request.form, request.plain) == ("json", None)
    with pytest.raises(InvalidRequest, match=r"^input 'x': Object missing required field"):
        parse(AFFINE, {"inputs": [{"name": "x", "shape": [1, 4], "data": ROW}]})
