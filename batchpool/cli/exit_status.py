"""Runs a command and turns its end into an exit status and one line about an error."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from batchpool.cli.parser import EXIT_USAGE, WrongUsage, parse
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.text.escape import printable
from batchpool.log import setup
from batchpool.shm.resource_errors import is_shortage, text_of

_EXIT_START = 1
_EXIT_INTERRUPTED = 130

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(words: Sequence[str]) -> int:
    """Run the command line `words`; returns its exit status."""
    try:
        code = _run(words)
        if sys.stdout is not None:  # None if the process was started without a stdout
            sys.stdout.flush()
        return code
    except (ConfigError, WrongUsage) as exc:
        _print_error(exc)
        return EXIT_USAGE
    except StartError as exc:
        _print_error(exc)
        return _EXIT_START
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader, as `head`, has closed the pipe
        return 0
    except OSError as exc:
        if is_shortage(exc):
            _print_error(text_of(exc))
            return _EXIT_START
        if exc.errno not in _CANNOT_WRITE:
            raise
        _drop_output()
        _print_error(f"cannot write the output: {exc.strerror}")
        return _EXIT_START


def _run(words: Sequence[str]) -> int:
    try:
        args = parse(words)
    except SystemExit:  # after --help or --version
        return 0
    command: Callable[..., int] = args.command
    return command(args)


def _print_error(message: object) -> None:
    text = " ".join(str(message).split())
    if setup.is_machine_readable():
        logging.getLogger("batchpool.supervisor").error("%s", text)
    else:
        with suppress(OSError):  # stderr is closed
            print("batchpool: error:", printable(text), file=sys.stderr)


def _drop_output() -> None:
    """Send further output to /dev/null, so that Python's own flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
