"""The report of a process that runs a model's code for the supervisor: one JSON object.

It is the last line of the standard output, whatever the model's code prints:

    {"ok": true, ...}
    {"ok": false, "error": "one line: the error and its place in the user's code",
     "configuration": whether that is a ConfigError, as of an option}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from typing import Any

from batchpool.core.errors import ConfigError
from batchpool.process.bootstrap import print_by_lines

_MESSAGE_CHARACTERS = 500
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def print_report(make: Callable[[], dict[str, Any]], *, traced: bool = False) -> int:
    """Print the report that `make` returns, or the error that it raises; returns the exit status.
    traced: the traceback of the error goes to standard error.

    Output of the model's code, from Python or from C, goes to standard error, where the log goes.
    Does not return where threads of the model would keep the process alive.
    """
    print_by_lines()
    _flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        form = {"ok": True, **make()}
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        wrong = isinstance(exc, ConfigError)
        form = {"ok": False, "error": one_line(exc), "configuration": wrong}
        if traced:
            traceback.print_exc()
    _flush()
    with open(out, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(form) + "\n")
    code = 0 if form["ok"] else 1
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not t.daemon for t in others):
        _flush()
        os._exit(code)
    return code


def one_line(exc: BaseException) -> str:
    """The exception's class, its text, and the place in the user's code that raised it. The text of
    a ConfigError says all by itself."""
    text = " ".join("; ".join([str(exc), *getattr(exc, "__notes__", ())]).split())
    line = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    if type(exc) is ConfigError:
        line = text
    if len(line) > _MESSAGE_CHARACTERS:
        line = line[: _MESSAGE_CHARACTERS - 3] + "..."
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    machinery = os.path.dirname(importlib.__file__)
    foreign = ("<", package + os.sep, machinery + os.sep)
    raised = traceback.extract_tb(exc.__traceback__)
    frames = [frame for frame in reversed(raised) if not frame.filename.startswith(foreign)]
    # Where a library raised, the line of the user's that called it says more; where this package
    # did, a line of a library between says nothing.
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    by_package = raised and raised[-1].filename.startswith(package + os.sep)
    for frame in (own or ([] if by_package else frames))[:1]:
        return f"{line} ({frame.filename}:{frame.lineno})"
    return line


def _flush() -> None:
    """Flush the standard streams, or what the module put in their places."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, or no stream at all
            stream.flush()
