"""Arguments of a caller, checked and converted to the units of the scheduler."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any


def check_callable(name: str, value: Any) -> None:
    """TypeError unless it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {value!r}")


def at_least_one(name: str, value: Any) -> int:
    """A whole number of at least 1; else TypeError or ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def wait_ns(max_wait_ms: Any) -> int:
    """Milliseconds, fractions too, as the nearest nanosecond; else TypeError or ValueError."""
    if isinstance(max_wait_ms, bool) or not isinstance(max_wait_ms, Real):
        raise TypeError(f"max_wait_ms must be a number of milliseconds, not {max_wait_ms!r}")
    if not 0 <= float(max_wait_ms) < math.inf:
        raise ValueError(f"max_wait_ms must be finite and at least 0, not {max_wait_ms!r}")
    return round(float(max_wait_ms) * 1e6)
