"""The process that imports one model class, prints its declaration, and exits.

It runs in a worker's environment and does not call `load`, so that the supervisor can plan a pool
and the front ends can serve its metadata without importing a user's code. The output is one JSON
object on the last line of the standard output:

    {"ok": true, "spec": ModelSpec.to_wire(), "cuda": true}     cuda: the framework has CUDA
    {"ok": false, "error": "one line: the error and its place in the user's code"}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from batchpool.model import spec_of
from batchpool.process.bootstrap import print_by_lines, start
from batchpool.worker.backends.select import has_cuda
from batchpool.worker.load import load_class

_MESSAGE_CHARACTERS = 500


def describe(import_name: str) -> dict[str, Any]:
    """The JSON object for one model. Catches everything that user code may raise."""
    try:
        spec = spec_of(load_class(import_name))
        return {"ok": True, "spec": spec.to_wire(), "cuda": has_cuda(spec)}
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        return {"ok": False, "error": _one_line(exc)}


def _one_line(exc: BaseException) -> str:
    """The exception's class, its text, and the place in the user's code that raised it."""
    text = " ".join(str(exc).split())
    line = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    if len(line) > _MESSAGE_CHARACTERS:
        line = line[: _MESSAGE_CHARACTERS - 3] + "..."
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    machinery = os.path.dirname(importlib.__file__)
    foreign = ("<", package + os.sep, machinery + os.sep)
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not frame.filename.startswith(foreign):
            return f"{line} ({frame.filename}:{frame.lineno})"
    return line


def _flush() -> None:
    """Flush the standard streams, or what the module put in their places."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, or no stream at all
            stream.flush()


def main(argv: Sequence[str]) -> int:
    """`python -m batchpool.worker.describe MODULE:CLASS [PARENT]`: print the JSON object.

    Returns 0 if the model could be described, 1 if not, 2 for wrong arguments. PARENT: the pid of
    the process whose death ends this one; left out when started by hand.
    """
    if len(argv) not in (1, 2):
        print("usage: batchpool.worker.describe MODULE:CLASS [PARENT]", file=sys.stderr)
        return 2
    if len(argv) == 2:
        start(int(argv[1]))
    # Output of the module, from Python or from C, goes to standard error, where the log goes.
    print_by_lines()
    _flush()
    out = os.dup(1)
    os.dup2(2, 1)
    form = describe(argv[0])
    _flush()
    with open(out, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(form) + "\n")
    code = 0 if form["ok"] else 1
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not t.daemon for t in others):
        # A thread that the module started would keep this process alive.
        _flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
