"""A table of the configuration as a dataclass whose fields carry their documentation."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from batchpool.core.config.key import Key, as_value, expectation, shown
from batchpool.core.errors import ConfigError

_KEYS: dict[type, dict[str, Key]] = {}  # of the tables that were asked for


def key_field(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field with its documentation; `facts` are further attributes of its `Key`."""
    metadata = {"default": default, "help": help, **facts}
    made: Any = {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    return field(metadata=metadata, **made)


def keys_of(table: type) -> dict[str, Key]:
    """The keys of a table's dataclass by their TOML names, in the order of the documents."""
    if table not in _KEYS:
        keys = (
            Key(**{"name": f.name, **f.metadata}, field=f.name, kind=str(f.type))
            for f in fields(table)
        )
        _KEYS[table] = {key.name: key for key in keys}
    return _KEYS[table]


def check_fields(table: Any) -> None:
    """Check the values of an instance of a table's dataclass, and store them as its keys have them.

    Raises ConfigError for the first that its key does not allow.
    """
    for key in keys_of(type(table)).values():
        value = getattr(table, key.field)
        try:
            value = as_value(key, value)
        except ValueError:
            expected = expectation(key, value)
            raise ConfigError(f"{key.name} = {shown(value)}: expected {expected}") from None
        object.__setattr__(table, key.field, value)
