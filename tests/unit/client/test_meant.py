"""A keyword that is nearly the name of an argument is answered with the argument's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import batchpool as bp
from batchpool.client.call import Call
from batchpool.client.lane_client import LaneClient
from batchpool.client.meant import ARGUMENTS, meant
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.row_source import source_of
from batchpool.client.stream_call import StreamCall
from batchpool.client.window_call import MapOptions
from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import ModelSpec, Tensor
from tests.unit.client.lane_clients import new_lane, new_lane_client, rows_of
from tests.unit.specs import AFFINE

FACTS = ModelFacts(0, AFFINE, 0.9, 30.0, 8)
X = rows_of(2).tensors["x"]
BESIDE = "; {} is an argument of infer and no input: it stands beside the inputs"
OTHERS = "; {} is an argument of stream and AsyncClient.infer, not of infer"
TEXT = ModelSpec(
    "texts",
    "numpy",
    (Tensor("text", "bytes", (), max_bytes=9), Tensor("timeout", "float32")),
    (Tensor("y", "float32"),),
    (Tensor("max_tokens", "int64", (), default=5),),
)


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_the_arguments_are_those_of_the_clients() -> None:
    for name in ("infer", "submit", "map", "stream"):
        assert set(ARGUMENTS[name]) == keywords(getattr(bp.Client, name)), name
    assert set(ARGUMENTS["AsyncClient.infer"]) == keywords(bp.AsyncClient.infer)
    for name in ("map", "stream"):
        assert set(ARGUMENTS[name]) == keywords(getattr(bp.AsyncClient, name)), name


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("timeout", "; did you mean timeout_s?"),
        ("timeout_ms", "; did you mean timeout_s in seconds?"),
        ("time_out", "; did you mean timeout_s?"),
        ("Timeout_S", "; did you mean timeout_s?"),
        ("deadline", "; did you mean timeout_s?"),
        ("dead_line", "; did you mean timeout_s?"),
        ("deadline_ms", "; did you mean timeout_s in seconds?"),
        ("timeout_s", BESIDE.format("timeout_s")),
        ("prio", "; did you mean priority?"),
        ("priorty", "; did you mean priority?"),
        ("params", "; did you mean parameters?"),
        ("parameter", "; did you mean parameters?"),
        ("output", "; did you mean outputs?"),
        ("error", "; did you mean errors?"),
        ("on_error", "; did you mean errors?"),
        ("copies", "; did you mean copy?"),
        ("inputs", "; a dict of inputs has no name: infer('model', {...})"),
        ("input", "; a dict of inputs has no name: infer('model', {...})"),
        ("window", "; window is an argument of map, not of infer"),
        ("batch_size", "; window is an argument of map, not of infer"),
        ("outage", "; outage_s is an argument of map, not of infer"),
        ("wait_for_room", OTHERS.format("wait_for_room")),
        ("socket_path", ""),
        ("picture", ""),
        ("z", ""),
    ],
)  # fmt: skip
def test_a_call_says_what_was_meant(keyword: str, told: str) -> None:
    for errors in ("raise", "return"):
        call = Call({"x": X, keyword: 3}, errors=errors)
        with pytest.raises(InvalidRequest) as caught:
            call.check(new_lane_client(), FACTS)
        assert str(caught.value) == f"model 'm' has no input {keyword!r}; it has 'x'{told}"


def test_inputs_and_parameters_of_the_model_are_meant_too() -> None:
    assert meant("txt", "infer", TEXT) == '; did you mean "text"?'
    assert meant("time_out", "infer", TEXT) == '; did you mean "timeout"?'
    assert meant("max_tokens", "stream", TEXT) == ""  # which is told without it
    assert meant("max_token", "stream", TEXT) == '; did you mean parameters={"max_tokens": ...}?'


def test_an_input_of_that_name_stays_an_input() -> None:
    spec = ModelSpec("m", "numpy", (Tensor("deadline", "float32", (4,)),), AFFINE.outputs)
    call = Call({"deadline": X})
    call.check(LaneClient(new_lane(spec, 10)), ModelFacts(0, spec, 0.9, 30.0, 8))
    assert call.rows.n == 2


def test_a_stream_and_a_map_have_arguments_of_their_own() -> None:
    assert StreamCall.function == "stream"
    assert meant("output", "stream") == (
        "; outputs is an argument of infer and submit and map and AsyncClient.infer, not of stream"
    )
    with pytest.raises(InvalidRequest, match=r"has no input 'timeout'; .*; did you mean timeout_s"):
        MapOptions().check(AFFINE, ["x", "timeout"])
    told = r"was expected; did you mean window\?"
    with pytest.raises(InvalidRequest, match=told):
        source_of(None, {"x": X, "window_size": 3})
    with pytest.raises(InvalidRequest, match=told):
        source_of([X[0]], {"chunk_size": 3})


@pytest.mark.parametrize("kind", [bp.Client, bp.AsyncClient])
def test_a_client_is_made_with_what_was_meant(kind: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"'timeout'; did you mean timeout_s\?$"):
        kind("here", timeout=3)
    with pytest.raises(TypeError, match=r"'pin'; did you mean pinned\?$"):
        kind("here", pin=True)
    with pytest.raises(TypeError, match=r"keyword argument 'priority'$"):
        kind("here", priority=3)
