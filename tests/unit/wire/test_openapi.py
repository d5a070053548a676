"""The OpenAPI document: valid for any model, and true of what is really sent and answered."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from batchpool.core.errors import Cancelled, all_errors
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.curl_samples import curl, sample_request, sample_shape
from batchpool.wire.generation import GenerationAnswers
from batchpool.wire.metadata import model_config
from batchpool.wire.openapi import document
from batchpool.wire.repository import index_entry
from batchpool.wire.schemas import model_schemas
from batchpool.wire.statistics import statistics
from tests.unit.specs import AFFINE, MIXED, STORY, model, specs

BASE = "http://localhost:8000"


def made(*specs: ModelSpec) -> dict[str, Any]:
    return document(specs, "1.2.3", BASE, {spec.name: 64 for spec in specs})


def errors_of(schema: dict[str, Any], content: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(content)]


@settings(max_examples=8, deadline=None)
@given(specs())
def test_the_document_of_any_model_is_valid(spec: ModelSpec) -> None:
    validate(made(spec))


def test_every_model_has_its_paths_and_the_server_its_own() -> None:
    found = made(AFFINE, MIXED)
    assert found["info"]["version"] == "1.2.3"
    for name in ("m", "mixed"):
        assert found["paths"][f"/v2/models/{name}/infer"]["post"]["tags"] == [name]
        for tail in ("", "/config", "/ready", "/stats"):
            assert "get" in found["paths"][f"/v2/models/{name}{tail}"]
        assert "post" in found["paths"][f"/v2/repository/models/{name}/load"]
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/metrics"):
        assert "get" in found["paths"][path]
    operations = [
        item[verb]["operationId"]
        for item in found["paths"].values()
        for verb in ("get", "post")
        if verb in item
    ]
    assert len(set(operations)) == len(operations)


def test_every_error_that_a_caller_can_meet_is_told() -> None:
    found = made(AFFINE)
    told = {
        (int(name.removeprefix("Error")), code)
        for name, response in found["components"]["responses"].items()
        for code in response["content"]["application/json"]["schema"]["properties"]["code"]["enum"]
    }
    assert told == {(kind.status, kind.code) for kind in all_errors() if kind is not Cancelled}
    infer = found["paths"]["/v2/models/m/infer"]["post"]["responses"]
    never_of_infer = {"409", "410", "501"}  # 409 and 410: of a task
    assert set(infer) == {"200", "202", *(str(status) for status, _ in told)} - never_of_infer
    assert "Retry-After" in found["components"]["responses"]["Error503"]["headers"]


def test_the_statistics_and_the_index_are_as_told() -> None:
    paths = made(AFFINE)["paths"]

    def schema(path: str, verb: str) -> dict[str, Any]:
        response = paths[path][verb]["responses"]["200"]
        found: dict[str, Any] = response["content"]["application/json"]["schema"]
        return found

    for path in ("/v2/models/stats", "/v2/models/m/stats"):
        assert errors_of(schema(path, "get"), statistics(["m"], "1", Totals())) == []
        assert errors_of(schema(path, "get"), {"model_stats": [{"name": "m"}]}) != []
    entries = [index_entry("m", "1", why_not) for why_not in ("", "no worker serves it")]
    assert errors_of(schema("/v2/repository/index", "post"), entries) == []


# -- what is asked ----------------------------------------------------------------------


@settings(deadline=None)
@given(specs())
def test_the_sample_of_any_model_is_taken_and_fits_its_schema(spec: ModelSpec) -> None:
    request, zeros = sample_request(spec)
    text = json.dumps(request).encode()
    headers = {b"inference-header-content-length": b"%d" % len(text)} if zeros else {}
    parsed = Codec(spec).parse(headers, text + bytes(zeros))
    assert parsed.rows.n == 1
    assert errors_of(model_schemas(spec)["Request"], request) == []


REQUEST: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [0.5] * 8}]
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"data": [[0, 1, 2, 3], [4, 5, 6, 7]]},
        {"data": None, "parameters": {"binary_data_size": 32}},
    ],
)
def test_the_schema_takes_what_is_right(change: dict[str, Any]) -> None:
    assert errors_of(model_schemas(AFFINE)["Request"], changed(change)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": "z"},
        {"shape": [2, 5]},
        {"shape": [0, 4]},
        {"shape": [2, 4, 1]},
        {"shape": [8]},
        {"datatype": "FP64"},
        {"data": ["one"]},
        {"data": None},
        {"parameters": {"binary_data_size": 32}},
    ],
)
def test_the_schema_refuses_what_is_wrong(change: dict[str, Any]) -> None:
    assert errors_of(model_schemas(AFFINE)["Request"], changed(change)) != []


def changed(change: dict[str, Any]) -> dict[str, Any]:
    tensor = {**REQUEST["inputs"][0], **change}
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}]}


def test_parameters_are_those_of_the_model_and_the_protocol() -> None:
    schema = model_schemas(MIXED)["Request"]
    request, _ = sample_request(MIXED)
    assert request["parameters"] == {"top_k": 5, "scale": 1}
    for parameters, fits in (
        ({"scale": 0.5}, True),
        ({"scale": 1, "top_k": 2, "timeout": 5, "priority": 255}, True),
        ({"top_k": 2}, False),  # the other has no default
        ({"scale": 1, "top_k": 2.5}, False),
        ({"scale": 1, "other": 1}, False),
        ({"scale": 1, "priority": 256}, False),
    ):
        content = {**request, "parameters": parameters}
        assert (errors_of(schema, content) == []) is fits, parameters


# -- what is answered -------------------------------------------------------------------


@settings(deadline=None)
@given(specs(), st.booleans())
def test_answers_of_any_model_fit_its_schema(spec: ModelSpec, binary: bool) -> None:
    request, zeros = sample_request(spec)
    if binary:
        request.setdefault("parameters", {})["binary_data_output"] = True
    text = json.dumps(request).encode()
    headers = {b"inference-header-content-length": b"%d" % len(text)} if zeros else {}
    codec = Codec(spec)
    fields, body = codec.encode(
        codec.parse(headers, text + bytes(zeros)), {t.name: one_row(t) for t in spec.outputs}
    )
    length = dict(fields).get(b"inference-header-content-length")
    answer = json.loads(body[: None if length is None else int(length)])
    assert errors_of(model_schemas(spec)["Response"], answer) == []


def one_row(tensor: Tensor) -> Array:
    shape = sample_shape(tensor)
    if tensor.is_bytes:
        count = int(np.prod(shape))
        return np.array([b"x"] * count, object).reshape(shape)
    values = np.zeros(shape, tensor.np_dtype)
    if values.size and tensor.dtype.startswith("float"):
        values.flat[0] = np.nan  # null in JSON
    return values


# -- commands ---------------------------------------------------------------------------


def test_a_command_for_few_values() -> None:
    words = shlex.split(curl(AFFINE, BASE))
    assert words[:3] == ["curl", "-s", f"{BASE}/v2/models/m/infer"]
    assert json.loads(words[4]) == {"x": [[0, 0, 0, 0]]}
    needed = Tensor("k", "int64"), Tensor("free", "int64", default=3)
    spec = ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, needed)
    assert json.loads(shlex.split(curl(spec, BASE))[4])["parameters"] == {"k": 1}


def test_a_command_for_an_image_sends_zeros_behind_the_json() -> None:
    spec = model(Tensor("image", "uint8", (3, 224, 224)))
    command = curl(spec, BASE)
    assert "head -c 150528 /dev/zero" in command
    assert len(command) < 500
    head = shlex.split(command)[3].removesuffix(";")
    assert f"Inference-Header-Content-Length: {len(head)}" in command
    assert json.loads(head)["inputs"][0]["parameters"] == {"binary_data_size": 150528}


def test_what_json_cannot_hold_is_asked_for_in_binary() -> None:
    spec = model(Tensor("x", "float32", (65,)), outputs=(Tensor("y", "bfloat16"),))
    command = curl(spec, BASE)
    assert "-o answer.bin" in command
    head = shlex.split(command)[3].removesuffix(";")
    assert json.loads(head)["parameters"] == {"binary_data_output": True}
    few = model(Tensor("x", "float32"), outputs=(Tensor("y", "bfloat16"),))
    assert json.loads(shlex.split(curl(few, BASE))[-1]) == {"x": [0]}, "plain JSON carries it"


def test_quotes_and_odd_names_stay_what_they_are() -> None:
    spec = model(Tensor("it's $HOME", "bytes", (Dim(9),), max_bytes=3))
    request = json.loads(shlex.split(curl(spec, BASE))[-1])
    assert request == {"it's $HOME": [["Hel"] * 3]}


def test_a_text_parameter_is_a_string_with_its_default() -> None:
    parameters = (
        Tensor("language", "bytes", max_bytes=4, default=b"en"),
        Tensor("style", "bytes", max_bytes=4),
    )
    spec = ModelSpec("m", "numpy", AFFINE.inputs, AFFINE.outputs, parameters)
    schema = model_schemas(spec)["Request"]
    properties = schema["properties"]["parameters"]["properties"]
    assert properties["language"] == {"type": "string", "maxLength": 4, "default": "en"}
    assert properties["style"] == {"type": "string", "maxLength": 4}
    request, _ = sample_request(spec)
    assert request["parameters"] == {"language": "en", "style": "Hell"}
    assert errors_of(schema, request) == []
    assert errors_of(schema, request | {"parameters": {"style": 3}}) != []
    assert errors_of(schema, request | {"parameters": {}}) != []
    config = model_config(spec, 8)["parameters"]
    assert config["language"] == {"string_value": "bytes, default en"}


def test_requests_and_answers_with_the_sizes_of_rows_fit_the_schemas() -> None:
    ids = Tensor("ids", "int64", (Dim(4),))
    spec = model(ids, outputs=(ids,))
    schemas = model_schemas(spec)
    rows = {"name": "ids", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 0, 4, 5, 6]}
    sizes = {"name": "ids.sizes", "datatype": "INT64", "shape": [2, 1], "data": [2, 3]}
    asked = {"inputs": [rows, sizes], "outputs": [{"name": "ids.sizes"}, {"name": "ids"}]}
    assert errors_of(schemas["Request"], asked) == []
    assert errors_of(schemas["Request"], {"inputs": [rows]}) == []
    assert errors_of(schemas["Request"], {"inputs": [rows, sizes | {"shape": [2, 2]}]}) != []
    codec = Codec(spec)
    request = codec.parse({}, json.dumps({"inputs": [rows, sizes]}).encode())
    outputs = {"ids": np.array([[1, 2, 0], [4, 5, 6]]), "ids.sizes": np.array([[2], [3]])}
    answer = json.loads(codec.encode(request, outputs)[1])
    assert [output["name"] for output in answer["outputs"]] == ["ids", "ids.sizes"]
    assert errors_of(schemas["Response"], answer) == []
    text = made(spec)["paths"]["/v2/models/m/infer"]["post"]["description"]
    assert "ids.sizes" in text
    assert "sizes" not in made(AFFINE)["paths"]["/v2/models/m/infer"]["post"]["description"]


def test_a_generator_has_paths_of_its_own_whose_schemas_are_true() -> None:
    validate(made(STORY))
    paths = made(STORY)["paths"]
    for tail, media_type in (("", "application/json"), ("_stream", "text/event-stream")):
        answer = paths[f"/v2/models/m/generate{tail}"]["post"]["responses"]["200"]
        assert list(answer["content"]) == [media_type]
    assert not any("/generate" in path for path in made(AFFINE)["paths"])
    schemas, answers = made(STORY)["components"]["schemas"], GenerationAnswers(STORY, "1")
    for reason in ("stop", "length", None):
        part = json.loads(answers.answer("one", np.array([5, 6], "i4"), reason))
        assert errors_of(schemas["m.GenerationPart"], part) == []
        assert (errors_of(schemas["m.Generation"], part) == []) == (reason is not None)
