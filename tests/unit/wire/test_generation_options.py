"""The members of a request for a completion or a chat, and the refusals that name them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.chats import MOST_MESSAGES, read_chat_request
from batchpool.wire.completions import MOST_PROMPTS, read_completion_request

SPEC = ModelSpec(
    "story",
    "numpy",
    (Tensor("prompt", "int32", (Dim(16),)),),
    (Tensor("token", "int32", (Dim(40),)), Tensor("finish_reason", "bytes", max_bytes=8)),
    (
        Tensor("temperature", "float32", default=0.0),
        Tensor("seed", "int64", default=0),
        Tensor("max_tokens", "int64", default=20),
    ),
    generates=True,
)
FEW = replace(SPEC, outputs=(Tensor("token", "int32", (Dim(8),)), SPEC.outputs[1]))
HI = [{"role": "user", "content": "Hi"}]


def completion(**members: Any) -> Any:
    return read_completion_request(
        json.dumps({"model": "story", "prompt": "a", **members}).encode()
    )


def chat(**members: Any) -> Any:
    return read_chat_request(json.dumps({"model": "story", "messages": HI, **members}).encode())


def refused(call: Any) -> tuple[type[PoolError], str | None, str]:
    with pytest.raises(PoolError) as caught:
        call()
    return type(caught.value), caught.value.param, caught.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts", "place"),
    [
        ("a", ["a"], "prompt"),
        (["a", "b"], ["a", "b"], "prompt[1]"),
        ([1, 2], [[1, 2]], "prompt"),
        ([[1], [2, 3]], [[1], [2, 3]], "prompt[1]"),
    ],
)
def test_the_four_forms_of_prompts(prompt: Any, prompts: Any, place: str) -> None:
    found = completion(prompt=prompt)
    assert (found.prompts, found.place(1)) == (prompts, place)


@pytest.mark.parametrize(
    ("prompt", "kind", "param", "text"),
    [
        ([], InvalidRequest, "prompt", "at least one prompt"),
        (None, InvalidRequest, "prompt", "is missing"),
        (7, InvalidRequest, "prompt", "a list of tokens"),
        ({}, InvalidRequest, "prompt", "a list of tokens"),
        (["a", 1], InvalidRequest, "prompt[1]", "a list of tokens"),
        ([1, "a"], InvalidRequest, "prompt[1]", "a list of tokens"),
        ([[1], ["a"]], InvalidRequest, "prompt[1][0]", "a list of tokens"),
        ([1.5], InvalidRequest, "prompt[0]", "a list of tokens"),
        (["a"] * (MOST_PROMPTS + 1), TooLarge, "prompt", f"at most {MOST_PROMPTS}"),
        ([[1]] * (MOST_PROMPTS + 1), TooLarge, "prompt", f"at most {MOST_PROMPTS}"),
    ],
)
def test_prompts_that_are_none(prompt: Any, kind: Any, param: str, text: str) -> None:
    found = refused(lambda: completion(prompt=prompt))
    assert found[:2] == (kind, param)
    assert text in found[2]


def test_the_numbers_of_tokens_have_their_defaults() -> None:
    assert completion().options.parameters(SPEC)["max_tokens"] == 16
    assert completion(max_tokens=None).options.parameters(SPEC)["max_tokens"] == 16
    assert completion().options.parameters(FEW)["max_tokens"] == 8
    assert completion(max_tokens=3).options.parameters(SPEC)["max_tokens"] == 3
    assert chat().options.parameters(SPEC)["max_tokens"] == 20
    assert chat(max_tokens=5).options.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).options.max_tokens == 7
    too_many = chat(max_tokens=5, max_completion_tokens=41).options
    assert refused(lambda: too_many.parameters(SPEC))[1] == "max_completion_tokens"


@pytest.mark.parametrize(("room", "tokens"), [(20, 16), (16, 16), (5, 5), (1, 1), (0, 1), (-9, 1)])
def test_a_default_of_completions_is_cut_to_what_fits(room: int, tokens: int) -> None:
    options = completion().options
    assert options.fitted(options.parameters(SPEC), room) == {
        **options.parameters(SPEC),
        "max_tokens": tokens,
    }


@pytest.mark.parametrize("request_of", [completion, chat])
def test_a_number_that_was_asked_for_is_not_cut(request_of: Any) -> None:
    options = request_of(max_tokens=15).options
    assert options.fitted(options.parameters(SPEC), 3)["max_tokens"] == 15
    assert chat().options.fitted(chat().options.parameters(SPEC), 3)["max_tokens"] == 20


def test_parameters_go_by_their_names() -> None:
    values = completion(temperature=0.5, seed=3).options.parameters(SPEC)
    assert values == {"temperature": 0.5, "seed": 3, "max_tokens": 16}
    nested = completion(parameters={"temperature": 2}).options.parameters(SPEC)
    assert nested["temperature"] == 2
    plain = ModelSpec("m", "numpy", SPEC.inputs, SPEC.outputs, SPEC.parameters[2:], generates=True)
    for temperature in (0, 1, 1.0, None):
        assert completion(temperature=temperature).options.parameters(plain) == {"max_tokens": 16}


@pytest.mark.parametrize(
    "members",
    [
        {"n": 1, "best_of": 1, "echo": False, "suffix": None, "logprobs": None, "top_p": 1.0},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "me"},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"top_logprobs": 0, "logprobs": False, "parallel_tool_calls": True, "store": True},
        {"metadata": {"a": "x" * 100_000}, "audio": None, "top_k": -1},
    ],
)
def test_members_that_ask_for_nothing_are_taken(members: dict[str, Any]) -> None:
    assert completion(**members).options.parameters(SPEC)["max_tokens"] == 16


@pytest.mark.parametrize(
    ("members", "param", "text"),
    [
        ({"n": 2}, "n", "1 was expected"),
        ({"n": True}, "n", "1 was expected"),
        ({"best_of": 3}, "best_of", "1 was expected"),
        ({"echo": True}, "echo", "false was expected"),
        ({"suffix": "x"}, "suffix", "does not offer"),
        ({"logprobs": 2}, "logprobs", "does not offer"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "{} was expected"),
        ({"presence_penalty": 0.5}, "presence_penalty", "0 was expected"),
        ({"frequency_penalty": 1}, "frequency_penalty", "0 was expected"),
        ({"top_p": 0.5}, "top_p", "1 was expected"),
        ({"tools": [{"type": "function"}]}, "tools", "[] was expected"),
        ({"response_format": {"type": "json_object"}}, "response_format", "does not offer"),
        ({"audio": {"voice": "x"}}, "audio", "no such member was expected"),
        ({"temprature": 1}, "temprature", "has the parameters: temperature, seed"),
        ({"temperature": "hot"}, "temperature", "temperature"),
        ({"seed": 2**70}, "seed", "seed"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 41}, "max_tokens", "at most 40"),
        ({"max_tokens": "many"}, "max_tokens", "a whole number"),
        ({"parameters": 3}, "parameters", "an object"),
        ({"parameters": {"pace": 3}}, "pace", "unknown member"),
        ({"logit_bias": {"a": "x" * 100_000}}, "logit_bias", "at most 65536"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "1 to 256"),
        ({"stop": ["x" * 257]}, "stop", "1 to 256"),
        ({"stop": 3}, "stop", "a list of texts"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"model": None}, "model", "is missing"),
        ({"model": 3}, "model", "a text"),
    ],
)
def test_a_refusal_names_its_member(members: dict[str, Any], param: str, text: str) -> None:
    found = refused(lambda: completion(**members).options.parameters(SPEC))
    assert found[1] == param
    assert text in found[2]


def test_stops_and_streams() -> None:
    options = completion(stop=["a", "b"], stream=True, stream_options={"include_usage": True})
    assert options.options.stops == ("a", "b")
    assert (options.options.stream, options.options.with_usage) == (True, True)
    plain = completion(stop="a", stream_options=None).options
    assert (plain.stops, plain.stream, plain.with_usage) == (("a",), False, False)


def test_messages_are_texts_or_lists_of_texts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = chat(messages=[{"role": "user", "content": parts, "name": "me"}, *HI])
    assert found.messages == [{"role": "user", "content": "a\nb", "name": "me"}, *HI]
    assert 5 < found.size < 500


def test_a_body_of_very_many_members_is_refused_before_they_are_read() -> None:
    many = {f"m{at}": 1 for at in range(300)}
    with pytest.raises(TooLarge, match="has 302 members; one request has at most 256"):
        completion(**many)


def test_long_members_are_read_up_to_a_number_of_bytes_together() -> None:
    """Which is less than a millisecond of a front end; those that ask for nothing are not read."""
    half = [1] * 20_000
    found = refused(lambda: completion(a=half, b=half, seed=3).options.parameters(SPEC))
    assert found[:2] == (TooLarge, "b")
    assert "has 60000 bytes; at most 65536 are taken for such members together" in found[2]
    parameters = completion(user="a" * 60_000, metadata=half, seed=3).options.parameters(SPEC)
    assert parameters["seed"] == 3


@pytest.mark.parametrize("member", ["role", "name", "content"])
def test_a_long_text_makes_a_long_chat_wherever_it_stands(member: str) -> None:
    """A front end takes long ones beside its event loop."""
    message = {"role": "user", "name": "me", "content": "a", member: "a" * 10_000}
    assert chat(messages=[*HI, message]).size > 10_000


@pytest.mark.parametrize(
    ("messages", "param", "text"),
    [
        ([], "messages", "at least one"),
        (None, "messages", "is missing"),
        ("Hi", "messages", "a list of"),
        ([{"role": "user"}], "messages[0].content", "has no content"),
        ([*HI, {"content": "a"}], "messages[1]", "a list of"),
        ([{"role": 1, "content": "a"}], "messages[0].role", "a list of"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
         "messages[0].content[0]", "is of type 'image_url'"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}],
         "messages[0].tool_calls", "not offered"),
        (HI * (MOST_MESSAGES + 1), "messages", f"at most {MOST_MESSAGES}"),
    ],
)  # fmt: skip
def test_messages_that_are_none(messages: Any, param: str, text: str) -> None:
    found = refused(lambda: chat(messages=messages))
    assert found[1] == param
    assert text in found[2]


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"\xff", b"[" * 5000, b'{"model": "\xff"}'])
def test_a_body_that_is_no_request(raw: bytes) -> None:
    for read in (read_completion_request, read_chat_request):
        with pytest.raises(InvalidRequest):
            read(raw)


def test_bodies_of_millions_of_values_are_refused_before_they_are_made() -> None:
    many = b'{"model": "m", "prompt": [[' + b"],[" * 1_000_000 + b"]]}"
    assert refused(lambda: read_completion_request(many))[:2] == (TooLarge, "prompt")
    members = b'{"model": "m"' + b',"a":1' * 200_000 + b"}"
    assert refused(lambda: read_completion_request(members))[0] is TooLarge


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("[1,2,3,4,5,6,7]", "7"), ("[[1],[2],[1,2,3,4,5,6,7,8,9,10,11,12,13,14]]", "at least 6")],
)
def test_too_many_numbers_are_refused_by_their_commas(prompt: str, count: str) -> None:
    raw = b'{"model": "m", "prompt": %b}' % prompt.encode()
    found = refused(lambda: read_completion_request(raw, most_tokens={"m": 5}.__getitem__))
    text = f"the prompt has {count} tokens; the model takes at most 5: shorten it"
    assert found == (InvalidRequest, "prompt", text)
    assert read_completion_request(raw, most_tokens={"m": 14}.__getitem__).prompts


@pytest.mark.parametrize("prompt", [",,,,,,,,", ["a, b, c", "d,,,,,,,,"], [1, 2, 3], [[1, 2]] * 4])
def test_commas_in_texts_and_in_several_prompts_are_none_too_many(prompt: Any) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}).encode()
    assert read_completion_request(raw, most_tokens=lambda name: 3).size > 2


def test_a_half_of_a_character_is_named() -> None:
    raw = b'{"model": "m", "prompt": "\\ud800"}'
    assert refused(lambda: read_completion_request(raw))[1:] == (
        "prompt", "prompt has half of a surrogate pair, \\ud800, at byte 26",
    )  # fmt: skip
