"""Importing a model class, and checking that it declares the tensors that the pool serves.

The file may change between the time when the pool reads a model's declaration and the time when a
worker imports the class; a restarted worker imports the current file. Rows that were laid out for
other tensors must not reach such a class.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from itertools import zip_longest
from pathlib import Path
from typing import Any

from batchpool.core.config.import_names import import_file_hint
from batchpool.core.config.paths import MODEL_PATH
from batchpool.core.config.ready_models import long_form, misspelt_ready_model
from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model

_MODELS_SHOWN = 5
# What two declarations of one model must have in common, besides the framework.
_DECLARED = (
    *("inputs", "outputs", "parameters", "features", "kept_inputs", "predictions", "kept_tensors"),
)


def load_class(import_name: str) -> type[Model]:
    """The class MODULE:CLASS.

    Its module is looked for in the current directory and the folders of BATCHPOOL_MODEL_PATH, then
    among the installed packages. Python's own modules come before all of them: a user's file
    never takes the place of one that others import.

    Raises ImportError, AttributeError or TypeError with a clear text, and whatever the module
    raises.
    """
    module_name, colon, class_name = import_name.partition(":")
    if not colon or not module_name or not class_name:
        raise ImportError(f"{import_name!r} is not of the form MODULE:CLASS")
    folders = model_folders()
    _add_to_path(folders)
    top = module_name.partition(".")[0]
    for folder in folders:
        # Python's import ignores a FIFO or a socket of that name, as if there were no file.
        file = Path(folder, *module_name.split(".")).with_suffix(".py")
        if file.exists() and not file.is_file():
            raise ImportError(f"{file} is not a regular file")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # a module that this one imports
        searched = ", ".join(folders)
        raise ModuleNotFoundError(
            f"there is no module {exc.name!r} in {searched}, nor among the installed packages"
            f"{misspelt_ready_model(import_name) or import_file_hint(import_name)}"
            f"{long_form(import_name)}",
            name=exc.name,
        ) from None
    module = found
    for part in class_name.split("."):
        if not hasattr(found, part):
            raise AttributeError(
                f"module {module_name!r} has no {class_name!r}{_whose(top)}"
                f"{_meant(import_name, module)}"
            )
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise TypeError(f"{import_name} is not a subclass of batchpool.Model")
    return found


def model_folders() -> list[str]:
    """The current directory, then the folders of BATCHPOOL_MODEL_PATH."""
    others = os.environ.get(MODEL_PATH, "").split(os.pathsep)
    return list(dict.fromkeys([os.getcwd(), *(folder for folder in others if folder)]))


def _add_to_path(folders: list[str]) -> None:
    """Put folders between Python's own modules and the installed packages."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    last = max((i for i, path in enumerate(sys.path) if path in own), default=-1)
    sys.path[last + 1 : last + 1] = [folder for folder in folders if folder not in sys.path]


def _whose(module: str) -> str:
    """A note for a file of the user's that has the name of one of Python's modules."""
    if module in sys.stdlib_module_names:
        return f"; {module!r} is a module of Python's own, so name the file otherwise"
    return ""


def _meant(import_name: str, module: Any) -> str:
    """The class that was probably meant where a module lacks the one named: another one of it, or a
    ready model, whose words are nearly those of packages."""
    return long_form(import_name) or _its_models(module) or misspelt_ready_model(import_name)


def _its_models(module: Any) -> str:
    """The models that a module has, for a message about one that it has not."""
    found = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Model)
        and value.__module__ == module.__name__
    ]
    return f"; it has {', '.join(found[:_MODELS_SHOWN])}" if found else ""


def _kind_of(spec: ModelSpec) -> str:
    return "bp.Generator" if spec.generates else "bp.Model"


def check_declaration(served: ModelSpec, found: ModelSpec) -> None:
    """Raise ModelError, naming the first difference, unless framework and tensors are equal."""
    found = ModelSpec.from_wire(found.to_wire())  # as the served one came here
    differences = [("framework", served.framework, found.framework)]
    differences += [("kinds", _kind_of(served), _kind_of(found))]
    differences += [("text", repr(served.text), repr(found.text))]
    for kind in _DECLARED:
        pairs = zip_longest(getattr(served, kind), getattr(found, kind))
        # Compared as text, because a pad of NaN is not equal to itself.
        differences += [(kind, repr(was), repr(now)) for was, now in pairs]
    for kind, was, now in differences:
        if was != now:
            raise ModelError(
                f"the code on disk declares other tensors than model {served.name!r} as it is"
                f" served: among its {kind} {now}; {was} was expected. A reload brings it in"
            )
