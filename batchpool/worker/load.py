"""Importing a model class, and checking that it declares the tensors that the pool serves.

The file may change between the time when the pool reads a model's declaration and the time when a
worker imports the class; a restarted worker imports the current file. Rows that were laid out for
other tensors must not reach such a class.
"""

from __future__ import annotations

import importlib
import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model


def load_class(import_name: str) -> type[Model]:
    """The class MODULE:CLASS; modules of the current directory are found.

    Raises ImportError, AttributeError or TypeError with a clear text, and whatever the module
    raises.
    """
    module_name, colon, class_name = import_name.partition(":")
    if not colon or not module_name or not class_name:
        raise ImportError(f"{import_name!r} is not of the form MODULE:CLASS")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    # Python's import ignores a FIFO or a socket of that name, as if there were no file.
    file = Path(here, *module_name.split(".")).with_suffix(".py")
    if file.exists() and not file.is_file():
        raise ImportError(f"{file} is not a regular file")
    found: Any = importlib.import_module(module_name)
    for part in class_name.split("."):
        if not hasattr(found, part):
            raise AttributeError(f"module {module_name!r} has no {class_name!r}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise TypeError(f"{import_name} is not a subclass of batchpool.Model")
    return found


def check_declaration(served: ModelSpec, found: ModelSpec) -> None:
    """Raise ModelError, naming the first difference, unless framework and tensors are equal."""
    found = ModelSpec.from_wire(found.to_wire())  # as the served one came here
    differences = [("framework", served.framework, found.framework)]
    for kind in ("inputs", "outputs", "parameters"):
        pairs = zip_longest(getattr(served, kind), getattr(found, kind))
        # Compared as text, because a pad of NaN is not equal to itself.
        differences += [(kind, repr(was), repr(now)) for was, now in pairs]
    for kind, was, now in differences:
        if was != now:
            raise ModelError(
                f"the code on disk declares other tensors than model {served.name!r} as it is"
                f" served: among its {kind} {now}; {was} was expected. A reload brings it in"
            )
