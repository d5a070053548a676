"""The options of a model as arguments of its class's `__init__`, by its annotations.

msgspec converts them: plain values strictly, so that 1.5 is no `int`, and what came as
`--option KEY=VALUE` from its text. Besides what msgspec knows a path may be asked for.
An argument without an annotation takes the type of its default, if that is a number or a text.
"""

from __future__ import annotations

import inspect
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from batchpool.core.config.key import shown
from batchpool.core.config.options import OptionText
from batchpool.core.config.toml_file import near
from batchpool.core.errors import ConfigError
from batchpool.model import Model

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OF_DEFAULT = (bool, int, float, str)


def converted_options(cls: type[Model], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the class's `__init__` takes them.

    Raises ConfigError that names the option, what came, what was expected and the options that the
    class has: for an unknown one, a missing one and one of another type.
    """
    known, any_other = _parameters(cls)
    converted = {}
    for name, value in options.items():
        if name in known:
            try:
                converted[name] = _converted(value, _type_of(cls, known[name]))
            except (msgspec.ValidationError, TypeError, ValueError, NotImplementedError) as exc:
                text = str(exc).replace("Expected", "expected")
                raise _error(cls, f"option {name} = {shown(value)}: {text}") from None
        elif any_other:
            converted[name] = str(value) if isinstance(value, OptionText) else value
        else:
            hint = near(name, known) if known else ""
            raise _error(
                cls, f"unknown option {name} = {shown(value)}{hint.partition('; known')[0]}"
            )
    for name, parameter in known.items():
        if name not in converted and parameter.default is parameter.empty:
            raise _error(cls, f"option {name} is missing")
    return converted


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converted options as what JSON and TOML have; `converted_options` makes the same of them."""
    found: dict[str, Any] = msgspec.to_builtins(dict(options), enc_hook=str)
    return found


def _parameters(cls: type[Model]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that `__init__` takes by keyword, and whether it takes any other keyword."""
    if cls.__init__ is object.__init__:
        return {}, False
    found = list(inspect.signature(cls.__init__).parameters.values())[1:]
    known = {parameter.name: parameter for parameter in found if parameter.kind in _BY_KEYWORD}
    return known, any(parameter.kind is parameter.VAR_KEYWORD for parameter in found)


def _type_of(cls: type[Model], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        of_default = type(parameter.default)
        return of_default if of_default in _OF_DEFAULT else Any
    try:
        return typing.get_type_hints(cls.__init__, include_extras=True)[parameter.name]
    except NameError as exc:  # imported for the type checker alone
        raise TypeError(f"its annotation {_shown_type(parameter)} cannot be read: {exc}") from None


def _converted(value: Any, of: Any) -> Any:
    if not isinstance(value, OptionText):
        return msgspec.convert(value, of, dec_hook=_made)
    text = str(value)
    try:
        return msgspec.convert(text, of, strict=False, dec_hook=_made)
    except msgspec.ValidationError as exc:
        for parsed in (_as_toml, _as_list):
            try:
                return msgspec.convert(parsed(text), of, strict=parsed is _as_toml, dec_hook=_made)
            except (msgspec.ValidationError, ValueError):
                continue
        raise exc from None


def _as_toml(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


def _as_list(text: str) -> list[str]:
    return text.split(",")


def _made(of: type, value: Any) -> Any:
    """The value of a type that msgspec does not make itself."""
    if isinstance(value, of):
        return value
    if of is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"an option cannot be made a {of.__name__}; expected a plain type")


def _error(cls: type[Model], text: str) -> ConfigError:
    """The error, with the options of the class at its end."""
    known, any_other = _parameters(cls)
    options = ", ".join([*map(_shown, known.values()), *(["any other"] if any_other else [])])
    return ConfigError(
        f"{text}; {cls.__name__} has {f'the options {options}' if options else 'none'}"
    )


def _shown(parameter: inspect.Parameter) -> str:
    of = _shown_type(parameter)
    text = parameter.name if of is None else f"{parameter.name}: {of}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def _shown_type(parameter: inspect.Parameter) -> str | None:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
