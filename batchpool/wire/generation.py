"""The JSON of a generator's answers: whole, and in parts as its tokens are made.

    {"model_name": "story", "model_version": "1", "token": [5, 6, 7], "finish_reason": "stop"}

The tokens stand under their own name. A part has those that are new; the last has the reason, and
perhaps no tokens. "id" is that of the request, where it has one.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

import msgspec

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.plain_answers import array_json


class GenerationAnswers:
    """The answers of one generator. version: the model's, as answers show it."""

    def __init__(self, spec: ModelSpec, version: str) -> None:
        self._tokens, self._reason = spec.outputs
        names = msgspec.json.encode({"model_name": spec.name, "model_version": version})
        self._head = names[:-1]
        self._before_tokens = b",%s:" % msgspec.json.encode(self._tokens.name)
        self._before_reason = b",%s:" % msgspec.json.encode(self._reason.name)

    def answer(self, request_id: str | None, tokens: Array, finish_reason: str | None) -> bytes:
        """One JSON object. tokens: [n, *token shape], any n. finish_reason: None before the
        end."""
        parts = [self._head]
        if request_id is not None:
            parts.append(b',"id":%s' % msgspec.json.encode(request_id))
        parts += [self._before_tokens, array_json(self._tokens, tokens)]
        if finish_reason is not None:
            parts += [self._before_reason, msgspec.json.encode(finish_reason)]
        return b"".join([*parts, b"}"])
