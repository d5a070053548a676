"""All that turns text into prompts of one generator and its tokens into text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.text import Text
from batchpool.text.chat_template import ChatTemplate, Message
from batchpool.text.generated_text import GeneratedText
from batchpool.text.tokenizer import Tokenizer


class TextModel:
    """The tokenizer and the chat template of a generator. least_tokens, most_tokens: of a prompt,
    which is never empty.

    Its methods for prompts may run in any thread. Raises ConfigError for a file or a template that
    cannot be read, and where the extra `text` is not installed.
    """

    def __init__(self, text: Text, most_tokens: int, least_tokens: int = 1) -> None:
        self.tokenizer = Tokenizer(text.tokenizer)
        self._special_tokens = text.special_tokens
        self._most_tokens = most_tokens
        self._least_tokens = max(1, least_tokens)
        self._template: ChatTemplate | None = None
        if text.chat_template:
            self._template = ChatTemplate(text.chat_template, self.tokenizer.special_names)

    @property
    def has_chats(self) -> bool:
        """True where the generator has a chat template."""
        return self._template is not None

    def prompt(self, prompt: str | Sequence[int]) -> Array:
        """The tokens of a prompt that is plain text or tokens, as many as it may have; int64 [n].
        InvalidRequest for others."""
        if isinstance(prompt, str):
            tokens: Sequence[int] = self.tokenizer.encode(
                prompt, self._most_tokens, special_tokens=self._special_tokens
            )
        else:
            tokens = self.tokenizer.check(prompt, self._most_tokens)
        if not tokens:
            raise InvalidRequest("the prompt is empty; at least one token was expected")
        return self._checked(tokens)

    def chat(self, messages: Sequence[Message]) -> Array:
        """The tokens of the prompt for the answer to messages, int64 [n]. InvalidRequest for
        messages that the template refuses, and for too many or too few tokens."""
        assert self._template is not None, "a model without chats"
        text = self._template.render(messages)
        tokens = self.tokenizer.encode(text, self._most_tokens, special_tokens=False)
        if not tokens:
            raise InvalidRequest("the messages make an empty prompt; some text was expected")
        return self._checked(tokens)

    def _checked(self, tokens: Sequence[int]) -> Array:
        if len(tokens) < self._least_tokens:
            raise InvalidRequest(
                f"the prompt has {len(tokens)} tokens; the model takes at least"
                f" {self._least_tokens}: lengthen it"
            )
        return np.array(tokens, np.int64)

    def generated(self, stops: Sequence[str]) -> GeneratedText:
        """The text of one sequence, which is to end at one of these strings."""
        return GeneratedText(self.tokenizer.incremental_decoder(), stops)
