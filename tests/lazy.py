"""Libraries that are imported when a test first uses them.

Every process of a parallel run collects all tests. An import of torch and its like at the top of a
file would cost each of them seconds, also those that run no test of that file.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from typing import Any

import pytest

# What takes a second and more to import, or imports others that do.
SLOW_TO_IMPORT = ("matplotlib", "pandas", "torch", "transformers")
imported_while_collecting = pytest.StashKey[list[str]]()


class Library:
    """A module, imported by the first use of one of its public attributes. It has private ones, for
    which plugins of pytest ask whatever stands in a test file, from then on."""

    # No dictionary of its own: pytest's patches look there for what to put back.
    __slots__ = ("_name",)

    _name: str

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") and self._name not in sys.modules:
            raise AttributeError(attribute)
        is_new = self._name not in sys.modules
        module = importlib.import_module(self._name)
        if is_new:
            gc.freeze()  # each search for garbage would walk its objects
            calculate_in_one_thread()
        return getattr(module, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        """Of the module, so that a patch is one."""
        setattr(importlib.import_module(self._name), attribute, value)


def calculate_in_one_thread() -> None:
    """Let torch, once it is imported, calculate in the thread that calls it. Each of its small
    products in several threads lets them spin for one another, while other tests want the cores."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads") and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def library(name: str) -> Any:
    """The module of this name, imported when it is used. Where it is not installed, the file that
    asks for it at its top is skipped."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Library(name)
