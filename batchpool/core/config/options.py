"""The options of a model: keyword arguments of its class's `__init__`, as the configuration has
them. Only a process that imports the class can check them further (`batchpool/worker/options.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from batchpool.core.config.key import shown
from batchpool.core.errors import ConfigError


class OptionText(str):
    """The value of a `--option KEY=VALUE`. The annotation of the class says what it stands for:
    the text "3" is a number where the class takes one, and a text where it takes a text."""

    __slots__ = ()


def option_of(text: str, flag: str = "--option") -> tuple[str, OptionText]:
    """The key and the value of one KEY=VALUE; the value is all that follows the first "=".

    Raises ConfigError.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier() or "\0" in value:
        raise ConfigError(
            f'{flag} {shown(text)}: expected KEY=VALUE, as "top_k=5"; KEY is an argument of the'
            " __init__ of the model's class"
        )
    return key, OptionText(value)


def texts_of(options: Mapping[str, Any]) -> list[str]:
    """The keys of the options whose type is still open, because they came as `--option`."""
    return [key for key, value in options.items() if isinstance(value, OptionText)]


def typed_options(options: Mapping[str, Any], texts: Collection[str]) -> dict[str, Any]:
    """Options of a JSON form, in which those of the keys `texts` are an `OptionText` again."""
    return {key: OptionText(value) if key in texts else value for key, value in options.items()}
