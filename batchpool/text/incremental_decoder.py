"""Tokens to text as they come: the pieces joined are what decoding all tokens at once would give.

A tokenizer can only decode whole sequences: what a token stands for depends on those before it (a
space in front, the parts of one UTF-8 character). So the last few tokens are decoded again with
each new one, and the part that is new is the piece. Their number does not grow with the text:

    tokens    ... c d e | f g h       "|": everything before it is shown, and is dropped
    window          d e   f g h       the tokens before "|" stay for what depends on them
    text            "de" + "fgh"      the first `shown` characters are not given again

The end of the text is held back while it may be a part of a character, where decoders write U+FFFD.

The library's own DecodeStream is faster, but it does not give the end of a text that stops within
a character, refuses to go on where bytes are no UTF-8, and reads ever more tokens meanwhile.

The one exception are tokenizers that spell rare characters as tokens of one byte ("byte fallback",
as Llama 2's): where such bytes follow a whole character and are no UTF-8, decoding all at once
replaces that character too, which has been shown by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS = 3  # in the window; with one more, those that are context are dropped
_LONG_WINDOW = 64  # tokens, where no end of a character was among them
_LEAST_KEPT = 8  # tokens of a long window, more than the bytes of a character


class IncrementalDecoder:
    """The text of one sequence of tokens. decode: of a tokenizer, leaving out its special tokens.
    special: these, which stand for no text."""

    def __init__(self, decode: Decode, special: Collection[int]) -> None:
        self._decode = decode
        self._special = special
        self._window: list[int] = []
        self._context = 0  # tokens at the beginning of the window, all shown
        self._shown = 0  # characters of the window's text

    def push(self, tokens: Sequence[int]) -> str:
        """The text that is sure now that these tokens have come, perhaps ""."""
        special = self._special
        new = [token for token in tokens if token not in special]
        if len(new) <= _LONG_WINDOW:
            return self._add(new)
        parts = range(0, len(new), _LONG_WINDOW)
        return "".join(self._add(new[at : at + _LONG_WINDOW]) for at in parts)

    def _add(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        text = self._decode(self._window + tokens)
        if not text.endswith(_REPLACEMENT):
            self._window += tokens
            piece, self._shown = text[self._shown :], len(text)
            if len(self._window) > _MOST_TOKENS:
                self._drop_context()
            self._context = len(self._window)
            return piece
        if len(tokens) > 1:  # perhaps one before the last ends with a whole character
            return "".join([self._add([token]) for token in tokens])
        self._window += tokens
        if len(self._window) > _LONG_WINDOW:
            return self._cut(text)
        sure = len(text.rstrip(_REPLACEMENT))
        piece, self._shown = text[self._shown : sure], max(self._shown, sure)
        return piece

    def end(self) -> str:
        """The rest of the text: what was held back, since no token follows."""
        return self._decode(self._window)[self._shown :] if self._window else ""

    def _drop_context(self) -> None:
        """Keep the tokens that are not context, as the context of what comes. All are shown."""
        rest = self._window[self._context :]
        text = self._decode(rest)
        # Tokens that stand for no text tell the next one nothing of what is before them.
        if text or len(self._window) > _LONG_WINDOW:
            self._window, self._shown = rest, len(text)

    def _cut(self, text: str) -> str:
        """The sure part of the text of a long window that ends within a character. Tokens before a
        place at which the window decodes in two parts as it does whole are dropped."""
        window, shown = self._window, self._shown
        for at in range(len(window) - _LEAST_KEPT, len(window)):
            before, rest = self._decode(window[:at]), self._decode(window[at:])
            if before + rest == text and len(before) >= shown:
                self._window, self._context, self._shown = window[at:], 0, 0
                return before[shown:]
        self._window, self._context, self._shown = [], 0, 0
        return text[shown:]
