"""The reason for which the value of an option does not fit its argument's type, in words."""

from __future__ import annotations

import re
from typing import Any

from batchpool.core.config.key import shown
from batchpool.core.config.options import OptionText

_PLACE = re.compile(r"(?P<what>.*?)(?:, got `\w+`)? - at `\$(?P<place>(?:\.\w+|\[\d+\])+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_KINDS = {"object": "table", "array": "list"}  # as TOML calls what msgspec calls otherwise
_KIND = re.compile(r"\b(object|array)\b(?=[^`]*`)")


def reason(error: Exception, value: Any) -> str:
    """The reason as one line. Where a part of the value is wrong the word that came is named; the
    text of a whole `--option KEY=VALUE` has no type, so none is named.

    error: of msgspec, or of what the argument's type checks. value: what was converted.
    """
    text = str(error).replace("Expected", "expected")
    found = _PLACE.fullmatch(text)
    if found is not None:
        place = found["place"]
        came = shown(_at(value, place))
        text = f"{found['what']}, got {came} at {place.removeprefix('.')}"
    elif isinstance(value, OptionText):
        text = text.removesuffix(", got `str`")
    text = _KIND.sub(lambda kind: _KINDS[kind[0]], text)
    return text.replace("Object missing required field", "it lacks the field")


def _at(value: Any, place: str) -> Any:
    """The part of a value at a place, as ".layers[1]"."""
    for key, number in _STEP.findall(place):
        value = value[key] if key else value[int(number)]
    return value
