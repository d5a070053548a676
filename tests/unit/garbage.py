"""The garbage that a piece of code leaves to the collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_garbage() -> Iterator[list[str]]:
    """The names of the types of what the block leaves in circles of references, filled in after
    it. The block must have run before, so that nothing of it is made for the first time."""
    left: list[str] = []
    gc.disable()
    gc.freeze()  # what is there already is not looked through
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left += [type(found).__name__ for found in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
