"""Tokens that came together and are given one by one."""

from __future__ import annotations

from typing import Any

from batchpool.core.tensors.dtypes import Array


class TokenBuffer:
    """The tokens of one array [k, *token shape] that are left to be given."""

    def __init__(self) -> None:
        self._tokens: Array | None = None
        self._at = 0

    def put(self, tokens: Array) -> None:
        """Take an array when none is left of the one before."""
        self._tokens, self._at = tokens, 0

    @property
    def is_empty(self) -> bool:
        return self._tokens is None

    def take(self) -> Any:
        """The next token: a Python number where its shape is (), else an array."""
        tokens, at = self._tokens, self._at
        assert tokens is not None, "none is left"
        self._at += 1
        if self._at == len(tokens):
            self._tokens = None
        return tokens[at].item() if tokens.ndim == 1 else tokens[at]

    def take_rest(self) -> Array | None:
        """All that are left as one array; None if none is."""
        tokens, self._tokens = self._tokens, None
        return None if tokens is None else tokens[self._at :]
