"""The text of a generator: the files by which front ends turn text into prompts and tokens into
text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from batchpool.core.errors import ConfigError


@dataclass(frozen=True)
class Text:
    """A generator's tokenizer and chat template; with it front ends serve /v1/completions and
    /v1/chat/completions.

    tokenizer: path of a `tokenizer.json` (of the library tokenizers).  chat_template: a Jinja
    template as Hugging Face's; "" for a model without chats.  special_tokens: the tokenizer adds
    its own, such as that of the beginning, to a prompt that is plain text.

    Raises ConfigError for a tokenizer or a template that is no text.
    """

    tokenizer: str
    chat_template: str = ""
    special_tokens: bool = True

    def __post_init__(self) -> None:
        if not self.tokenizer or not isinstance(self.tokenizer, str):
            raise ConfigError(
                f"bp.Text: the path of a tokenizer.json was expected, not {self.tokenizer!r}"
            )
        if not isinstance(self.chat_template, str):
            raise ConfigError(
                f"bp.Text: chat_template is {self.chat_template!r}; a Jinja template was expected"
            )

    def to_wire(self) -> dict[str, Any]:
        """It as a dict of plain values, for control messages."""
        return asdict(self)

    @classmethod
    def from_wire(cls, form: Mapping[str, Any]) -> Text:
        """That which `to_wire` has described."""
        return cls(**form)
