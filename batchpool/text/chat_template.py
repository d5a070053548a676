"""Chat templates: the messages of a chat to the text of a prompt.

A template is a Jinja template as models of Hugging Face have it. It runs in Jinja's sandbox and
finds what such templates expect: `messages`, `add_generation_prompt`, the special tokens by their
names (as bos_token), `tools` and `documents` (both None), the functions `raise_exception` and
`strftime_now`, the filter `tojson`, `break` and `continue` in loops, and the block `generation`.
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.text.libraries import text_libraries

Message = Mapping[str, str]

_MOST_CHARACTERS = 500  # of a template's error


class ChatTemplate:
    """One template. special_names: the special tokens by name. ConfigError for a template that is
    none."""

    def __init__(self, source: str, special_names: Mapping[str, str]) -> None:
        with text_libraries():
            import jinja2
        self._error = jinja2.TemplateError
        self._names = special_names
        try:
            self._template: Any = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as exc:
            raise ConfigError(
                f"the chat template cannot be read: line {exc.lineno}: {exc.message}"
            ) from exc

    def render(self, messages: Sequence[Message]) -> str:
        """The text of the prompt for the answer to these messages, each {"role", "content"}.

        Raises InvalidRequest, with the template's words, for messages that it refuses.
        """
        try:
            text: str = self._template.render(
                {
                    **self._names,
                    "messages": [dict(message) for message in messages],
                    "add_generation_prompt": True,
                    "tools": None,
                    "documents": None,
                }
            )
        except (self._error, ArithmeticError, LookupError, TypeError, ValueError) as exc:
            raise InvalidRequest(
                f"the chat template of the model refuses the messages: {exc}"[:_MOST_CHARACTERS]
            ) from exc
        return text


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(text: object) -> None:
        raise jinja2.TemplateError(str(text))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _generation_block()],
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def _generation_block() -> Any:
    """The block `generation`, which marks what an assistant says; here it is its contents."""
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationBlock(Extension):
        tags = {"generation"}

        def parse(self, parser: Parser) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationBlock


def _as_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of Hugging Face: unlike Jinja's own, it does not escape what HTML would."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
