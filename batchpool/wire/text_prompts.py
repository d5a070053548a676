"""A generator's prompt as text: the JSON of `generate` as Triton's servers of language models take
it.

    {"text_input": "Once", "parameters": {"max_tokens": 16, "stop": [".", "!"], "temperature": 0.7}}
    {"model_name": "story", "model_version": "1", "text_output": " upon", "finish_reason": "length"}

Options stand beside `text_input` or in `parameters`, and are those of completions. Other names that
such callers know: `max_new_tokens` for `max_tokens`, `stop_words` for `stop`, and two members that
are taken where they ask for nothing.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.generation_options import MAX_TOKENS, GenerationOptions
from batchpool.wire.inputs import begins_as_json
from batchpool.wire.openai_members import Members, about, value_of
from batchpool.wire.request import HEADER_LENGTH, Body, Headers, brief

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_QUOTED = b'"%s"' % TEXT_INPUT.encode()
_PARAMETERS, _MAX_NEW_TOKENS = "parameters", "max_new_tokens"
_STOP, _STOP_WORDS, _BAD_WORDS = "stop", "stop_words", "bad_words"
_EXCLUDE_INPUT = "exclude_input_in_output"
_NO_WORDS = (b'""', b"[]")


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A request. id: None when absent or empty. streams: what its member `stream` says, None when
    absent."""

    id: str | None
    prompt: str
    options: GenerationOptions
    streams: bool | None


def may_be_text_prompt(spec: ModelSpec, headers: Headers, body: Body) -> bool:
    """False for most bodies that are no text prompt: a look at the bytes, which makes nothing of
    them. A generator whose tensor has the name of the member takes tokens under it."""
    if HEADER_LENGTH in headers or not begins_as_json(body):
        return False
    if any(tensor.name == TEXT_INPUT for tensor in spec.inputs):
        return False
    return _QUOTED in (body if isinstance(body, bytes | bytearray) else bytes(body))


def read_text_prompt(body: Body) -> TextPrompt | None:
    """The request of a whole body; None for a JSON object without `text_input`. InvalidRequest or
    TooLarge name the member at fault."""
    members = Members.of(body)
    prompt = members.take(TEXT_INPUT, str, "a text")
    if prompt is None:
        return None
    request_id = members.take("id", str, "a text")
    _flatten(members)
    _take_neutral(members)
    streams = members.take("stream", bool, "true or false")
    named = MAX_TOKENS if MAX_TOKENS in members.rest else _MAX_NEW_TOKENS
    max_tokens = members.take(named, int, "a whole number")
    if "stream_options" in members.rest:
        text = "stream_options belongs to /v1/completions and /v1/chat/completions"
        raise about("stream_options", InvalidRequest(text))
    options = GenerationOptions.of(members, max_tokens, named)
    return TextPrompt(request_id or None, prompt, options, streams)


def _flatten(members: Members) -> None:
    """Put the members of `parameters` beside the others; InvalidRequest for one that both have."""
    raw = members.raw(_PARAMETERS)
    if raw is None:
        return
    inner = value_of(_PARAMETERS, raw, dict[str, msgspec.Raw], "an object")
    for name, value in Members(inner).rest.items():
        if name in members.rest:
            text = f"{brief(name)} stands in the request and in its parameters; one was expected"
            raise about(name, InvalidRequest(text))
        members.rest[name] = value


def _take_neutral(members: Members) -> None:
    """Take the members of other servers: `stop_words` is `stop`, and two have to ask for
    nothing."""
    words = members.raw(_STOP_WORDS)
    if words is not None and bytes(words).strip() not in _NO_WORDS:
        if _STOP in members.rest:
            text = "stop and stop_words came together; one of them was expected"
            raise about(_STOP_WORDS, InvalidRequest(text))
        members.rest[_STOP] = words
    bad = members.raw(_BAD_WORDS)
    if bad is not None and bytes(bad).strip() not in _NO_WORDS:
        text = "bad_words are not offered here; none, or no such member, was expected"
        raise about(_BAD_WORDS, InvalidRequest(text))
    if members.take(_EXCLUDE_INPUT, bool, "true or false") is False:
        text = f"{_EXCLUDE_INPUT} is false; the answer has the new text alone: true was expected"
        raise about(_EXCLUDE_INPUT, InvalidRequest(text))
