"""OpenAI's chat completions: the request's JSON to messages, and texts to answers and events.

    {"model": "story", "messages": [{"role": "user", "content": "Hi"}], "stream": true}
    {"id": "chatcmpl-...", "object": "chat.completion", "created": 0, "model": "story", "choices":
     [{"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null},
       "logprobs": null, "finish_reason": "stop"}], "usage": {...}}

The events of a stream are "chat.completion.chunk" with a member delta instead of message: first the
role, then parts of the content, last nothing but the `finish_reason`.
https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.wire.generation_options import MAX_TOKENS, GenerationOptions
from batchpool.wire.openai_members import Members, about, missing, value_of
from batchpool.wire.request import Body, brief

MESSAGES = "messages"
MAX_COMPLETION_TOKENS = "max_completion_tokens"  # the newer name, which goes before
MOST_MESSAGES = 4096
_MESSAGE_CHARACTERS = 64  # to encode as many takes as long as the template takes for a message
_NOT_OFFERED = ("audio", "tool_calls", "function_call")  # members of a message


class _Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    """A message as it comes."""

    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request. messages: each {"role", "content"}, and "name" where it has one."""

    model: str
    messages: list[dict[str, str]]
    options: GenerationOptions

    @property
    def size(self) -> int:
        """The length of the prompt in characters, about what it takes to make it. Roles and names
        are texts too, as long as their caller likes."""
        return sum(
            _MESSAGE_CHARACTERS + sum(map(len, message.values())) for message in self.messages
        )


def read_chat_request(body: Body) -> ChatRequest:
    """The request of a whole body. InvalidRequest or TooLarge name the member at fault."""
    members = Members.of(body)
    model = members.required("model", str, "a text")
    raw = members.raw(MESSAGES)
    if raw is None:
        raise missing(MESSAGES)
    expected = 'a list of {"role": text, "content": text, or a list of {"type": "text", "text"}}'
    found = value_of(MESSAGES, raw, list[_Message], expected)
    if not found:
        text = "messages is an empty list; at least one message was expected"
        raise about(MESSAGES, InvalidRequest(text))
    if len(found) > MOST_MESSAGES:
        text = f"{len(found)} messages; one request takes at most {MOST_MESSAGES}"
        raise about(MESSAGES, TooLarge(text))
    messages = [_message(message, index) for index, message in enumerate(found)]
    older = members.take(MAX_TOKENS, int, "a whole number")
    newer = members.take(MAX_COMPLETION_TOKENS, int, "a whole number")
    most, named = (older, MAX_TOKENS) if newer is None else (newer, MAX_COMPLETION_TOKENS)
    options = GenerationOptions.of(members, most, named)
    return ChatRequest(model, messages, options)


def _message(message: _Message, index: int) -> dict[str, str]:
    place = f"{MESSAGES}[{index}]"
    for name in _NOT_OFFERED:
        if getattr(message, name):
            text = f"{place}.{name}: calls of tools and sound are not offered; texts were expected"
            raise about(f"{place}.{name}", InvalidRequest(text))
    content = message.content
    if content is None:
        text = f"{place} has no content; a text, or a list of texts, was expected"
        raise about(f"{place}.content", InvalidRequest(text))
    if not isinstance(content, str):
        content = "\n".join(
            _text(part, f"{place}.content[{at}]") for at, part in enumerate(content)
        )
    plain = {"role": message.role, "content": content}
    return plain if message.name is None else {**plain, "name": message.name}


def _text(part: _Part, place: str) -> str:
    if part.type != "text" or part.text is None:
        text = (
            f'{place} is of type {brief(part.type)}; {{"type": "text", "text": ...}} was expected'
        )
        raise about(place, InvalidRequest(text))
    return part.text
