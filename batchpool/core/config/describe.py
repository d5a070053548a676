"""The text of a key's default and of its allowed values, for help, messages and documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchpool.core.config.key import Key, shown


def default_text(key: Key) -> str:
    """The default as TOML writes it; "auto" for a number that the pool decides."""
    if key.auto and key.kind == "int" and key.default == 0:
        return '"auto"'
    if key.kind == "float":
        return f"{key.default:g}"
    return shown(key.default)


def values_text(key: Key) -> str:
    """The allowed values, and the one that the pool chooses where the key is left open."""
    if not key.auto:
        return key.expected
    if key.kind == "int":
        return f"{key.expected}, which is {key.auto}"
    return f'{key.expected}; "" means {key.auto}'


def options_text(options: Mapping[str, Any]) -> str:
    """The options of a model in one line, as TOML writes them."""
    return ", ".join(f"{key} = {shown(value)}" for key, value in options.items())
