"""The text of one sequence, piece by piece as its tokens come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batchpool.client.sequence_tokens import SequenceTokens
from batchpool.core.tensors.dtypes import Array
from batchpool.text.generated_text import GeneratedText

# A caller that reads slowly finds thousands at once when it goes on; so many become text in 2 ms.
_TOKENS_OF_A_PIECE = 256


class SequenceText:
    """tokens: of the sequence, which is taken back at a stop string. finish_reason: "stop" or
    "length" once the last piece was given, None before, and where the caller ended it."""

    def __init__(self, tokens: SequenceTokens, text: GeneratedText) -> None:
        self.tokens = tokens
        self.finish_reason: str | None = None
        self._text = text
        self._rest: str | None = None  # the last piece, of a stop string that came in a push
        self._waiting: Array | None = None  # tokens that have come and are no text yet

    def push_to(self, may_push: Callable[[int], bool], push: Callable[[str], None]) -> None:
        """Give pieces to `push` as `SequenceTokens.push_to` does tokens; never an empty one, nor
        the last."""

        def push_piece(new: Array) -> None:
            piece = self._text.push(new.tolist())
            if self._text.stopped:
                self._rest = piece
                self.tokens.cancel()  # wakes `next_piece`
            elif piece:
                push(piece)

        self.tokens.push_to(may_push, push_piece)

    @property
    def n_tokens(self) -> int:
        """The number of tokens that the text is made of so far."""
        return self._text.tokens

    async def next_piece(self) -> str | None:
        """Wait for more of the text, perhaps ""; None at the end. Raises what ended the sequence,
        when all text before it was given."""
        if self.finish_reason is not None:
            return None
        new = self._waiting
        if new is None:
            new = await self.tokens.next_tokens()
        else:
            await asyncio.sleep(0)  # others have their turn
            self._waiting = None
        if self._rest is not None:  # tokens that came meanwhile are behind the end of the text
            self.finish_reason = "stop"
            return self._rest
        if new is not None:
            if len(new) > _TOKENS_OF_A_PIECE:
                new, self._waiting = new[:_TOKENS_OF_A_PIECE], new[_TOKENS_OF_A_PIECE:]
            piece = self._text.push(new.tolist())
            if self._text.stopped:
                self.tokens.cancel()
                self.finish_reason = "stop"
            return piece
        reason = self.tokens.finish_reason
        if reason is None:
            return None
        rest = self._text.end()
        self.finish_reason = "stop" if self._text.stopped else reason
        return rest
