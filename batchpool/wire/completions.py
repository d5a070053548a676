"""OpenAI's completions: the request's JSON to prompts, and texts to answers and events.

    {"model": "story", "prompt": "Once", "max_tokens": 16, "stream": true}
    {"id": "cmpl-...", "object": "text_completion", "created": 0, "model": "story", "choices":
     [{"index": 0, "text": " upon", "logprobs": null, "finish_reason": "length"}], "usage": {...}}

The events of a stream have the same form, with a part of one text each, `finish_reason` null but
in the last of a text, and `usage` only where `stream_options` ask for it.
https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.text.tokenizer import too_long
from batchpool.wire.generation_options import MAX_TOKENS, GenerationOptions
from batchpool.wire.openai_members import Members, about, missing, value_of
from batchpool.wire.request import Body

PROMPT = "prompt"
MOST_PROMPTS = 128  # of one request
DEFAULT_MAX_TOKENS = 16  # as OpenAI has it

_LIST_OF_LISTS = re.compile(rb"\s*\[\s*\[")
_LIST_OF_TEXTS = re.compile(rb"\s*\[\s*\"")
_EXPECTED = "a text, a list of texts, a list of tokens or a list of such lists"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request. prompts: texts, or lists of tokens. has_list: they came as a list."""

    model: str
    prompts: Sequence[str | list[int]]
    has_list: bool
    options: GenerationOptions

    @property
    def size(self) -> int:
        """The length of all prompts, in characters or tokens."""
        return sum(map(len, self.prompts))

    def place(self, index: int) -> str:
        """The name of a prompt in messages, as "prompt[1]"."""
        return f"{PROMPT}[{index}]" if self.has_list else PROMPT


def read_completion_request(
    body: Body, *, most_tokens: Callable[[str], int] | None = None
) -> CompletionRequest:
    """The request of a whole body. InvalidRequest or TooLarge name the member at fault.

    most_tokens: the tokens of the longest prompt of a model, or raises why there is no such model;
    with it, longer lists of tokens are refused by their commas, and nothing is made of them.
    """
    members = Members.of(body)
    model = members.required("model", str, "a text")
    raw = members.raw(PROMPT)
    if raw is None:
        raise missing(PROMPT)
    if most_tokens is not None:
        _check_commas(bytes(raw), most_tokens(model))
    prompts, has_list = _prompts(raw)
    max_tokens = members.take(MAX_TOKENS, int, "a whole number")
    options = GenerationOptions.of(members, max_tokens, default=DEFAULT_MAX_TOKENS)
    return CompletionRequest(model, prompts, has_list, options)


def _check_commas(written: bytes, most_tokens: int) -> None:
    """Raise InvalidRequest for a list of numbers, or of lists of them, in which one has more than
    so many for sure."""
    if written[:1] != b"[" or (count := written.count(b",") + 1) <= most_tokens:
        return
    if b'"' in written or b"{" in written:
        return
    lists = written.count(b"[") - 1
    if not lists:
        raise about(PROMPT, too_long(f"{count}", most_tokens))
    if count > lists * most_tokens and lists <= MOST_PROMPTS:
        raise about(PROMPT, too_long(f"at least {-(-count // lists)}", most_tokens))


def _prompts(raw: msgspec.Raw) -> tuple[Sequence[str | list[int]], bool]:
    """The prompts, and whether they are a list of several. The kind of the first element decides,
    so that no millions of another kind are made before one is refused."""
    written = bytes(raw)
    found: list[str] | list[list[int]]
    if written[:1] == b'"':
        return [value_of(PROMPT, raw, str, _EXPECTED)], False
    if _LIST_OF_TEXTS.match(written):
        found = value_of(PROMPT, raw, list[str], _EXPECTED)
    elif _LIST_OF_LISTS.match(written):
        if written.count(b"[") > MOST_PROMPTS + 1:
            raise _too_many(written.count(b"[") - 1)
        found = value_of(PROMPT, raw, list[list[int]], _EXPECTED)
    else:
        tokens = value_of(PROMPT, raw, list[int], _EXPECTED)
        if not tokens:
            text = "prompt is an empty list; at least one prompt was expected"
            raise about(PROMPT, InvalidRequest(text))
        return [tokens], False
    if len(found) > MOST_PROMPTS:
        raise _too_many(len(found))
    return found, True


def _too_many(count: int) -> TooLarge:
    text = f"{count} prompts; one request takes at most {MOST_PROMPTS}: send them in several"
    return about(PROMPT, TooLarge(text))
