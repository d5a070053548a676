"""The longest bodies that can hold prompts which a generator takes.

A longer one is refused by its length, before its JSON is read: reading what no generator can take
would keep the interpreter from everybody else.
"""

from __future__ import annotations

import math

from batchpool.core.tensors.spec import ModelSpec

ADVICE = "shorten the prompt"
_BESIDE_BYTES = 256 << 10  # for all that stands beside prompts
_TOKEN_BYTES = 64  # far more than one takes as text or as an indented number
# Of a request that has room for many prompts, each of which may be the longest; ordinary text has
# four or five.
_TOKEN_BYTES_OF_MANY = 8
_ESCAPED = 6  # as JSON may write each byte of a text


def most_prompt_bytes(spec: ModelSpec, prompts: int = 1) -> int:
    """The most bytes of a body with so many prompts for a generator."""
    elements = math.prod(spec.inputs[0].max_shape)
    parameters = sum(_ESCAPED * (tensor.max_bytes or 0) for tensor in spec.parameters)
    each = max(_TOKEN_BYTES, _TOKEN_BYTES_OF_MANY * prompts)
    return _BESIDE_BYTES + parameters + each * elements
