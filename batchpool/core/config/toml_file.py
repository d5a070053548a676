"""The configuration as TOML: each key of the text is checked, and the result is a `Config`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from batchpool.core.config.key import as_written, expectation, shown
from batchpool.core.config.schema import TABLES, Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import ConfigError


def near(name: str, known: Iterable[str]) -> str:
    """The end of a message: "; did you mean ...?" for a misspelt name, else the known names."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(known)}"


def load_toml(text: str, source: str) -> Config:
    """The configuration of a TOML text; `source` is its file name, for messages.

    Raises ConfigError that names source, table, key, the value and the legal values.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{source}: not valid TOML: {exc}") from None
    for name, value in document.items():
        if name not in TABLES:
            raise ConfigError(_unknown_at_top(source, name, value))
    server = document.get("server", {})
    if not isinstance(server, dict):
        raise ConfigError(f"{source}: server = {shown(server)}: expected one table [server]")
    models = document.get("model", [])
    if not isinstance(models, list) or not all(isinstance(m, dict) for m in models):
        raise ConfigError(f"{source}: [model] must be written [[model]], one for each model")
    server_values = _fields_of("server", server, f"{source}: [server]")
    parts = tuple(_model_of(m, i, source) for i, m in enumerate(models, 1))
    try:
        return Config(ServerConfig(**server_values), parts)
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc}") from None


def _unknown_at_top(source: str, name: str, value: Any) -> str:
    if name == "options":
        return (
            f"{source}: unknown table [{name}]; it is written [model.{name}], below its [[model]]"
        )
    if isinstance(value, (dict, list)):
        return f"{source}: unknown table [{name}]{near(name, TABLES)}"
    return (
        f"{source}: unknown key {name} = {shown(value)} outside of any table{_hint(name, TABLES)}"
    )


def _hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown key: the table it belongs to, or a similar name."""
    homes = {"server": "[server]", "model": "[[model]]"}
    for table, home in homes.items():
        if name in keys_of(TABLES[table]):
            return f"; it belongs into a table {home}"
    return near(name, known)


def _model_of(form: Mapping[str, Any], number: int, source: str) -> ModelConfig:
    where = f"{source}: [[model]] {number}"
    values = _fields_of("model", form, where)
    if "import_name" not in values:
        form_text = keys_of(ModelConfig)["import"].form
        raise ConfigError(f'{where}: the key "import" is missing; expected {form_text}')
    try:
        return ModelConfig(**values)
    except ConfigError as exc:  # every value is legal, but two of them contradict each other
        raise ConfigError(f"{where}: {exc}") from None


def _fields_of(table: str, form: Mapping[str, Any], where: str) -> dict[str, Any]:
    """{field: value} of a table. Raises ConfigError for unknown keys and illegal values."""
    keys = keys_of(TABLES[table])
    values: dict[str, Any] = {}
    for name, value in form.items():
        if name not in keys:
            raise ConfigError(f"{where}: unknown key {name} = {shown(value)}{_hint(name, keys)}")
        try:
            values[keys[name].field] = as_written(keys[name], value)
        except ValueError:
            raise ConfigError(
                f"{where}: {name} = {shown(value)}: expected {expectation(keys[name], value)}"
            ) from None
    return values
