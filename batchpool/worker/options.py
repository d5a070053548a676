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
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from batchpool.core.config.key import shown
from batchpool.core.config.options import OptionText
from batchpool.core.config.toml_file import near
from batchpool.core.errors import ConfigError
from batchpool.model import Model
from batchpool.worker.option_errors import reason

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}  # of msgspec.Meta
_OF_DEFAULT = (bool, int, float, str)


class _Unfit(Exception):
    """A value does not fit a type; the text tells why. of_part: a part of it does not."""

    def __init__(self, text: str, *, of_part: bool = False) -> None:
        super().__init__(text)
        self.of_part = of_part


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
                converted[name] = _converted(value, cls, known[name])
            except _Unfit as unfit:
                raise _error(cls, f"option {name} = {shown(value)}: {unfit}") from None
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


def _converted(value: Any, cls: type[Model], parameter: inspect.Parameter) -> Any:
    """Raises _Unfit."""
    try:
        of = _type_of(cls, parameter)
    except TypeError as exc:
        raise _Unfit(str(exc)) from None
    return _of_text(value, of) if isinstance(value, OptionText) else _as(of, value)


def _of_text(text: OptionText, of: Any) -> Any:
    """The text as a value of the type: as it stands, as TOML, or as a list in its short form.

    The reason that is told is that of the form which the text has."""
    try:
        return _as(of, text, strict=False)
    except _Unfit as exc:
        unfit = exc
    try:
        as_toml = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as exc:
        if text.startswith(("[", "{")):
            why = str(exc).partition(" (at ")[0]  # of a line that nobody wrote
            raise _Unfit(f"{unfit}; it is no TOML: {why}") from None
    else:
        if isinstance(as_toml, (dict, list)):
            return _as(of, as_toml)
        with suppress(_Unfit):
            return _as(of, as_toml)
    try:
        return _as(of, text.split(","), strict=False)
    except _Unfit as exc:
        raise (exc if exc.of_part else unfit) from None


def _as(of: Any, value: Any, *, strict: bool = True) -> Any:
    """Raises _Unfit with the reason."""
    plain = str(value) if isinstance(value, OptionText) else value
    try:
        return msgspec.convert(plain, of, strict=strict, dec_hook=_made)
    except (msgspec.ValidationError, TypeError, ValueError, NotImplementedError) as exc:
        text = reason(exc, value)
        if typing.get_origin(of) is typing.Literal:
            text = f"expected {' or '.join(map(shown, typing.get_args(of)))}"
        raise _Unfit(text, of_part=" - at `" in str(exc)) from None


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
    shown_options = [_shown(cls, parameter) for parameter in known.values()]
    options = ", ".join([*shown_options, *(["any other"] if any_other else [])])
    return ConfigError(
        f"{text}; {cls.__name__} has {f'the options {options}' if options else 'none'}"
    )


def _shown(cls: type[Model], parameter: inspect.Parameter) -> str:
    of = _resolved_type(cls, parameter) or _shown_type(parameter)
    text = parameter.name if of is None else f"{parameter.name}: {of}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def _resolved_type(cls: type[Model], parameter: inspect.Parameter) -> str:
    """A type that its annotation names with other words, with its values or bounds: "int >= 1"; ""
    for any other."""
    try:
        of = _type_of(cls, parameter)
    except TypeError:
        return ""
    if typing.get_origin(of) is typing.Literal:
        return inspect.formatannotation(of).removeprefix("typing.")
    if typing.get_origin(of) is not typing.Annotated:
        return ""
    plain, *more = typing.get_args(of)
    bounds = [
        f" {sign} {bound}"
        for meta in more
        for name, sign in _BOUNDS.items()
        if (bound := getattr(meta, name, None)) is not None
    ]
    return inspect.formatannotation(plain) + " and".join(bounds)


def _shown_type(parameter: inspect.Parameter) -> str | None:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
