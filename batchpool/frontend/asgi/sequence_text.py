"""The text of one sequence, piece by piece as its tokens come."""

from __future__ import annotations

from batchpool.client.sequence_tokens import SequenceTokens
from batchpool.text.generated_text import GeneratedText


class SequenceText:
    """tokens: of the sequence, which is taken back at a stop string. finish_reason: "stop" or
    "length" once the last piece was given, None before, and where the caller ended it."""

    def __init__(self, tokens: SequenceTokens, text: GeneratedText) -> None:
        self.tokens = tokens
        self.finish_reason: str | None = None
        self._text = text

    @property
    def n_tokens(self) -> int:
        """The number of tokens that the text is made of so far."""
        return self._text.tokens

    async def next_piece(self) -> str | None:
        """Wait for more of the text, perhaps ""; None at the end. Raises what ended the sequence,
        when all text before it was given."""
        if self.finish_reason is not None:
            return None
        new = await self.tokens.next_tokens()
        if new is not None:
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
