"""Command-line flags for the keys of the configuration: `--max-batch 64`.

Flags and their help derive from the same dataclasses as the TOML keys, and their values pass the
same checks. A flag takes precedence over the file; a model's flag applies to every model served.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchpool.core.config.describe import default_text, values_text
from batchpool.core.config.key import Key, as_value, as_written, expectation, shown
from batchpool.core.config.options import option_of
from batchpool.core.config.ready_models import name_of_file, ready_model
from batchpool.core.config.schema import MODEL_NAME, Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import ConfigError

_METAVARS = {
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "Devices": "LIST",
    "Sizes": "LIST",
    "Texts": "LIST",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every key except `import` and `options`, which a caller adds as `--model`
    and `--option`."""
    groups = (
        ("server", "the keys of [server]", ServerConfig),
        ("model", "the keys of [[model]]; they apply to every model served", ModelConfig),
    )
    for table, title, dataclass in groups:
        group = parser.add_argument_group(title)
        for key in keys_of(dataclass).values():
            if key.field not in ("import_name", "options"):
                _add_flag(group, table, key)


def flag_of(key: Key) -> str:
    """The flag of a key, as "--max-batch"."""
    return "--" + key.name.replace("_", "-")


def _add_flag(group: argparse._ArgumentGroup, table: str, key: Key) -> None:
    text = f"{key.help}; {values_text(key)}"
    if key.default not in ("", ()):
        text += f" (default {default_text(key)})"
    facts: dict[str, Any] = {
        "dest": f"{table}.{key.field}",
        "default": None,
        "help": _as_flag(key, text).replace("%", "%%"),
    }
    if key.kind == "bool":
        group.add_argument(flag_of(key), action=argparse.BooleanOptionalAction, **facts)
        return
    group.add_argument(flag_of(key), metavar=_METAVARS[key.kind], **facts)


def with_flags(config: Config, args: argparse.Namespace) -> Config:
    """The configuration with the given flags applied. Raises ConfigError that names the flag."""
    server = _given("server", ServerConfig, vars(args))
    model = _given("model", ModelConfig, vars(args))
    if "name" in model and len(config.models) != 1:
        raise ConfigError(
            f"--name {model['name']}: names one model, but {len(config.models)} are served"
        )
    return Config(
        replace(config.server, **server),
        tuple(replace(m, **model) for m in config.models),
    )


def _given(
    table: str, dataclass: type[ServerConfig] | type[ModelConfig], args: Mapping[str, Any]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in keys_of(dataclass).values():
        text = args.get(f"{table}.{key.field}")
        if text is None:
            continue
        try:
            values[key.field] = as_written(key, _parsed(key, text))
        except ValueError:
            expected = _as_flag(key, key.expected)
            raise ConfigError(f"{flag_of(key)} {text}: expected {expected}") from None
    return values


def _parsed(key: Key, text: Any) -> Any:
    """A flag's text as the value of a TOML file; ValueError where it cannot be converted."""
    if key.is_auto_number and text == "auto":
        return text
    if key.kind == "int":
        return int(text)
    if key.kind == "float":
        return float(text)
    if key.kind == "Devices" and text not in ("auto", "cpu"):
        return [int(part) for part in text.split(",")]
    if key.kind == "Sizes":
        return [int(part) for part in text.split(",") if part]
    return text


def _as_flag(key: Key, text: str) -> str:
    """A text about legal values in the spelling of the command line: no quotes, no brackets. A key
    whose default is not the empty one, as host, must be given it: leaving it out is the default."""
    empty = "left out" if key.default in ("", ()) else "''"
    return text.replace('""', empty).replace("[]", empty).replace('"', "").replace("[0, 1]", "0,1")


def model_of(import_name: str, flag: str = "--model") -> ModelConfig:
    """The configuration of one `--model MODULE:CLASS`, or of a ready model as `onnx:PATH`; before
    each may stand `NAME=`. Raises ConfigError."""
    key = keys_of(ModelConfig)["import"]
    name, equals, rest = import_name.partition("=")
    if not equals or not MODEL_NAME.fullmatch(name):
        name, rest = "", import_name
    if (ready := ready_model(rest)) is not None:
        class_name, path = ready
        if not path:
            raise ConfigError(f"{flag} {shown(import_name)}: expected a path behind the colon")
        return ModelConfig(class_name, name or name_of_file(path), {"path": path})
    try:
        return ModelConfig(as_value(key, rest), name)
    except ValueError:
        raise ConfigError(
            f"{flag} {shown(import_name)}: expected {expectation(key, rest)}"
        ) from None


class PlacedOption(argparse.Action):
    """`--option KEY=VALUE`, kept with the number of `--model` that stand before it: it belongs to
    the last of them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = [*getattr(namespace, self.dest), (len(namespace.model), values)]
        setattr(namespace, self.dest, given)


def with_options(
    models: Sequence[ModelConfig], of_file: int, placed: Sequence[tuple[int, str]]
) -> tuple[ModelConfig, ...]:
    """The models with the options of the command line, which win over those of a file.

    of_file: the number of models that come first and are those of a file. placed: see
    `PlacedOption`; an option before every `--model` is for the only model that is served.
    Raises ConfigError.
    """
    found = list(models)
    given: dict[tuple[int, str], str] = {}
    for behind, text in placed:
        key, value = option_of(text)
        if not behind and len(found) != 1:
            raise ConfigError(
                f"--option {text}: {len(found)} models are served; expected it behind the --model"
                " that it is for, or in the [model.options] of a file's model"
            )
        at = of_file + behind - 1 if behind else 0
        if key == "path" and at >= of_file and key in found[at].options:
            raise ConfigError(
                f"--option {text}: --model names the path {shown(found[at].options[key])} already;"
                " leave one of them out"
            )
        if (at, key) in given:
            raise ConfigError(
                f"--option {text}: --option {given[at, key]} gives the same model {key!r} already;"
                " leave one of them out"
            )
        given[at, key] = text
        found[at] = replace(found[at], options={**found[at].options, key: value})
    return tuple(found)
