"""One key of the configuration: its documentation, and the values that it may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchpool.core.config.import_names import IMPORT_NAME, import_hint
from batchpool.core.config.ready_models import path_hint, ready_model_hint

Devices = str | tuple[int, ...]
Sizes = tuple[int, ...]
Texts = tuple[str, ...]
Options = dict[str, Any]
MOST_ROWS = 1 << 16  # rows of one batch


@dataclass(frozen=True, slots=True)
class Key:
    """The documentation of one key.

    name: in TOML.  field: in Python.  kind: the field's annotation.  least, most: the range of a
    number.  choices, pattern (with its `form` in words): the values that a text may have.  check:
    true for a text that a list may hold, whose `form` in words is that of them all.
    auto: the value that the pool chooses for 0 or "".
    """

    name: str
    field: str
    kind: str
    default: Any
    help: str
    unit: str = ""
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    check: Callable[[str], bool] | None = None
    form: str = "text"
    auto: str = ""

    @property
    def is_auto_number(self) -> bool:
        """True for a number that may be "auto", which is kept as 0."""
        return bool(self.auto) and self.kind in ("int", "float")

    @property
    def expected(self) -> str:
        """The legal values in words, for messages and documents."""
        if self.choices:
            return "one of " + ", ".join(map(shown, self.choices))
        if self.kind == "Devices":
            return '"auto", "cpu" or a list of device numbers without repeats, as [0, 1]'
        if self.kind == "Sizes":
            return f"a list of {self.unit} from 1 to {MOST_ROWS}, each larger than the one before"
        if self.kind == "Texts":
            return f"a list of {self.form}"
        if self.kind == "Options":
            return f"a table of {self.form}"
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return self.form
        kind = "a whole number" if self.kind == "int" else "a number"
        of = f" of {self.unit}" if self.unit else ""
        # 0 of a key with `auto` is how "auto" is kept, and nothing that may be written.
        least = 1 if self.auto and self.kind == "int" else self.least
        auto = ' or "auto"' if self.auto else ""
        return f"{kind}{of} from {number_text(least)} to {number_text(self.most)}{auto}"


def number_text(value: float) -> str:
    """A number as people write it into a file: a whole one with all its digits, no exponent."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def shown(value: Any) -> str:
    """A value as TOML writes it, cut to 60 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(map(shown, value)) + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{k} = {shown(v)}" for k, v in value.items()) + "}"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_value(key: Key, value: Any) -> Any:
    """A value from a file or a flag as the field's value; ValueError where it is not legal."""
    if key.is_auto_number and value == "auto":
        value = 0
    if key.kind == "Devices" and isinstance(value, (list, tuple)):
        legal = bool(value) and all(type(v) is int and v >= 0 for v in value)
        if not legal or len(set(value)) < len(value):
            raise ValueError
        return tuple(value)
    if key.kind == "Sizes":
        return _sizes(value)
    if key.kind == "Texts":
        return _texts(key, value)
    if key.kind == "Options":
        legal = type(value) is dict and all(map(str.isidentifier, value)) and is_plain(value)
    elif key.kind == "Devices":
        legal = value in ("auto", "cpu")
    elif key.kind == "bool":
        legal = type(value) is bool
    elif key.kind == "str":
        legal = type(value) is str and _legal_text(key, value)
    else:
        kinds = (int,) if key.kind == "int" else (int, float)
        legal = type(value) in kinds and key.least <= value <= key.most
        legal = legal or (key.is_auto_number and type(value) in kinds and value == 0)
    if not legal:
        raise ValueError
    return float(value) if key.kind == "float" else value


def as_written(key: Key, value: Any) -> Any:
    """`as_value` of what somebody wrote: "auto" is written so, and not as the 0 that it is kept
    as."""
    if key.is_auto_number and value == 0:
        raise ValueError
    return as_value(key, value)


def is_plain(value: Any) -> bool:
    """True for what TOML and JSON both have: texts, numbers, true, false, lists and tables of
    them. A date is none of these: it must be written as a text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (str, bool, int, float))


def expectation(key: Key, value: Any) -> str:
    """The legal values in words, and the one that was probably meant by one that is not legal."""
    if key.pattern is not IMPORT_NAME or not isinstance(value, str):
        return key.expected
    return key.expected + (ready_model_hint(value) or import_hint(value) or path_hint(value))


def _sizes(value: Any) -> Sizes:
    """Batch sizes as a tuple; ValueError where they do not rise or are out of range."""
    if not isinstance(value, (list, tuple)):
        raise ValueError
    for before, size in zip((0, *value), value, strict=False):
        if type(size) is not int or not before < size <= MOST_ROWS:
            raise ValueError
    return tuple(value)


def _texts(key: Key, value: Any) -> Texts:
    """Texts as a tuple, also of one text with commas; ValueError where one of them is not legal."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ValueError
    for text in value:
        if type(text) is not str or (key.check is not None and not key.check(text)):
            raise ValueError
    return tuple(value)


def _legal_text(key: Key, value: str) -> bool:
    if "\0" in value or (not value and not key.auto):
        return False
    if key.choices:
        return value in key.choices
    return not value or key.pattern is None or key.pattern.fullmatch(value) is not None
