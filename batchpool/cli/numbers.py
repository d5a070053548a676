"""Numbers on the command line, as argparse parses them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

_MOST = 10**9


def whole_number(most: int = _MOST) -> Callable[[str], int]:
    """A parser of whole numbers from 1 to `most`."""

    def parse(text: str) -> int:
        # The length first: int() takes long for a text of many digits.
        digits = text.lstrip("0")
        if not digits.isdecimal() or len(digits) > len(str(most)) or int(digits) > most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return int(digits)

    return parse


def seconds_to(most_s: float) -> Callable[[str], float]:
    """A parser of lengths of time in seconds, from 0 to `most_s`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most_s:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of seconds from 0 to {most_s:g}"
            )
        return value

    return parse
