"""The JSON of a generator's answers: whole, and in parts as its tokens are made.

    {"model_name": "story", "model_version": "1", "token": [5, 6, 7], "finish_reason": "stop"}

The tokens stand under their own name; the text of a prompt that came as text stands as
"text_output" in their place. A part has what is new; the last has the reason, and perhaps nothing
new. "id" is that of the request, where it has one.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

import math

import msgspec

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.plain_answers import array_json
from batchpool.wire.text_prompts import TEXT_OUTPUT

_BEFORE_TEXT = b',"%s":' % TEXT_OUTPUT.encode()


class GenerationAnswers:
    """The answers of one generator. version: the model's, as answers show it. values_each: of one
    token."""

    def __init__(self, spec: ModelSpec, version: str) -> None:
        tokens, self._reason = spec.outputs
        self._tokens = tokens
        is_whole = tokens.np_dtype.kind in "iu" and not tokens.element.is_bfloat16
        self._are_numbers = len(tokens.max_shape) == 1 and is_whole
        self.values_each = math.prod(self._tokens.max_shape[1:])
        names = msgspec.json.encode({"model_name": spec.name, "model_version": version})
        self._head = names[:-1]
        self._before_tokens = b",%s:" % msgspec.json.encode(self._tokens.name)
        self._before_reason = b",%s:" % msgspec.json.encode(self._reason.name)

    def answer(self, request_id: str | None, tokens: Array, finish_reason: str | None) -> bytes:
        """One JSON object. tokens: [n, *token shape], any n. finish_reason: None before the
        end."""
        if self._are_numbers and len(tokens) == 1:  # of nearly every event
            new = b"%b[%d]" % (self._before_tokens, tokens[0])
        else:
            new = self._before_tokens + array_json(self._tokens, tokens)
        return self._answer(request_id, new, finish_reason)

    def text_answer(self, request_id: str | None, text: str, finish_reason: str | None) -> bytes:
        """As `answer`, with a text in place of the tokens."""
        return self._answer(request_id, _BEFORE_TEXT + msgspec.json.encode(text), finish_reason)

    def _answer(self, request_id: str | None, new: bytes, finish_reason: str | None) -> bytes:
        parts = [self._head]
        if request_id is not None:
            parts.append(b',"id":%s' % msgspec.json.encode(request_id))
        parts.append(new)
        if finish_reason is not None:
            parts += [self._before_reason, msgspec.json.encode(finish_reason)]
        return b"".join([*parts, b"}"])
