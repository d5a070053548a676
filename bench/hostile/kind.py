"""The form of a hostile kind: a function that does its mischief for about ROUND_S."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.hostile.intruder import Intruder

ROUND = "BATCHPOOL_HOSTILE_ROUND_S"  # environment: the length of a round
ROUND_S = float(os.environ.get(ROUND, "0.5"))
LARGEST = 2**64 - 1

# Of the control socket's path, or the HTTP port as text, and a model's name.
Kind = Callable[[str, str], None]


class NotStopped(Exception):
    """The pool let a client do what it must not be able to do."""


@contextmanager
def intruding(path: str, model: str) -> Iterator[Intruder]:
    """A client that is closed at the end of a round."""
    intruder = Intruder(path, model)
    try:
        yield intruder
    finally:
        intruder.close()


def until_s() -> float:
    """The end of a round that begins now."""
    return time.monotonic() + ROUND_S
