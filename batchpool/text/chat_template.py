"""Chat templates: the messages of a chat to the text of a prompt.

A template is a Jinja template as models of Hugging Face have it. It runs in Jinja's sandbox and
finds what such templates expect: `messages`, `add_generation_prompt`, the special tokens by their
names (as bos_token), `tools` and `documents` (both None), the functions `raise_exception` and
`strftime_now`, the filter `tojson`, `break` and `continue` in loops, and the block `generation`.
https://huggingface.co/docs/transformers/chat_templating_writing

Whoever sends a chat must not make a template work for long. One that joins texts to what it has
joined so far, as DeepSeek's does with system messages, copies as many characters as the square of
the messages: seconds for those that fit into one body. So what a rendering writes is counted.
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
_MOST_PROMPT_CHARACTERS = 32 << 20  # a body has fewer
_MOST_JOINED_CHARACTERS = 256 << 20  # by all `+` of one rendering: 0.1 s
_WRITTEN = "batchpool written"  # no name that a template can have


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

        Raises InvalidRequest, with the template's words, for messages that it refuses, and for
        those of which it makes too long a text.
        """
        written = _Written()
        values = {
            **self._names,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            _WRITTEN: written,
        }
        try:
            return "".join(map(written.of_prompt, self._template.generate(values)))
        except (self._error, ArithmeticError, LookupError, TypeError, ValueError) as exc:
            raise InvalidRequest(
                f"the chat template of the model refuses the messages: {exc}"[:_MOST_CHARACTERS]
            ) from exc


class _Written:
    """The characters that one rendering has written; InvalidRequest for too many."""

    def __init__(self) -> None:
        self._prompt = self._joined = 0

    def of_prompt(self, piece: str) -> str:
        """A piece of the prompt."""
        self._prompt += len(piece)
        _check_written(self._prompt, _MOST_PROMPT_CHARACTERS)
        return piece

    def joined(self, text: str) -> None:
        """A text that `+` has made of two."""
        self._joined += len(text)
        _check_written(self._joined, _MOST_JOINED_CHARACTERS)


def _check_written(count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(
            f"the chat template of the model writes more than {most} characters for the messages;"
            " send fewer or shorter ones"
        )


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class CountingEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset("+")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            found = left + right
            if isinstance(found, str):
                context.parent[_WRITTEN].joined(found)
            return found

    def raise_exception(text: object) -> None:
        raise jinja2.TemplateError(str(text))

    environment = CountingEnvironment(
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
