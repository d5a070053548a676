"""The role `describe`: import one model, say what it is, and end.

It runs in an environment as a worker's, without `load`, so that a pool can be planned and
its metadata answered by processes that never import a user's code. The answer is one JSON
object, the last line of the standard output:

    {"ok": true, "spec": ModelSpec.to_wire(), "cuda": true}     cuda: torch has CUDA built in
    {"ok": false, "error": "one line: what went wrong, where"}
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model, spec_of
from batchpool.process.bootstrap import start

_MESSAGE_CHARACTERS = 500


def load_class(import_name: str) -> type[Model]:
    """The class MODULE:CLASS; modules of the current directory are found.

    Raises ImportError or AttributeError with a clear text, and whatever the module raises.
    """
    module_name, colon, class_name = import_name.partition(":")
    if not colon or not module_name or not class_name:
        raise ImportError(f"{import_name!r} is not of the form MODULE:CLASS")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    # Python's import passes over these, as if there were no such file.
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


def answer(import_name: str) -> dict[str, Any]:
    """The JSON object for one model. Never raises: user code may raise anything."""
    try:
        spec = spec_of(load_class(import_name))
        return {"ok": True, "spec": spec.to_wire(), "cuda": _has_cuda(spec)}
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        return {"ok": False, "error": _one_line(exc)}


def _has_cuda(spec: ModelSpec) -> bool:
    if spec.framework != "torch":
        return False
    try:
        import torch
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise ImportError(
            f"model {spec.name!r} has framework 'torch', but PyTorch is not installed;"
            ' install batchpool[torch] or set framework = "numpy"'
        ) from None
    return torch.version.cuda is not None


def _one_line(exc: BaseException) -> str:
    """The exception's class, text and the place in the user's code it came from."""
    text = " ".join(str(exc).split())
    line = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    if len(line) > _MESSAGE_CHARACTERS:
        line = line[: _MESSAGE_CHARACTERS - 3] + "..."
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    machinery = os.path.dirname(importlib.__file__)
    not_the_users = ("<", package + os.sep, machinery + os.sep)
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not frame.filename.startswith(not_the_users):
            return f"{line} ({frame.filename}:{frame.lineno})"
    return line


def main(argv: Sequence[str]) -> int:
    """`describe MODULE:CLASS [PARENT]`: print the answer; 0 when it is ok, 1 otherwise.

    PARENT: the pid of the process to die with; by hand it is left out.
    """
    if len(argv) not in (1, 2):
        print("usage: batchpool.worker.describe MODULE:CLASS [PARENT]", file=sys.stderr)
        return 2
    if len(argv) == 2:
        start(int(argv[1]))
    # Whatever the module prints, from Python or from C, goes where the log goes.
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    form = answer(argv[0])
    sys.stdout.flush()
    with open(out, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(form) + "\n")
    code = 0 if form["ok"] else 1
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not t.daemon for t in others):
        # A thread that the module started would keep this process for ever.
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
