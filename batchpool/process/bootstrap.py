"""The first steps of every child of the supervisor: its arguments, signals and control channel.

A child dies with its supervisor (PR_SET_PDEATHSIG), whatever kills that one; it compares its
parent's pid with the one it was given, because the parent may have died before the call. It
ignores SIGINT and SIGHUP: Ctrl+C and the end of a terminal reach its whole group, and only the
supervisor acts on them.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gc
import io
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from batchpool.control.channel import Channel
from batchpool.log import setup

_PR_SET_PDEATHSIG = 1
EXIT_LOAD_FAILED = 3
EXIT_MUST_RESTART = 4
EXIT_GAVE_UP = 5


def start(parent: int) -> None:
    """Bind this process's life to `parent`; ignore SIGINT and SIGHUP."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # blocked by `start_child` of batchpool/supervisor/children/child.py
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})


def outlast_sigterm() -> None:
    """Ignore SIGTERM: systemd and shells send it to the whole group, but only the supervisor acts
    on it and ends the others once every accepted request is answered. What a model forks or
    starts dies of it as usual."""
    own = os.getpid()

    def ignore(number: int, frame: object) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # Python takes its handlers away before it has flushed all files. Registered before a user's
    # code is there, this runs after all that the user registers, whose children ignore nothing.
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)


def print_by_lines() -> None:
    """Write each line that is printed at once, also into a file or a pipe: it is seen in order,
    and is not lost where the process is killed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def leave(code: int) -> NoReturn:
    """End this process with this exit status. Functions of atexit run, and output is written.

    Python's own end takes every object apart: 40 ms of a process of ours, half a second with torch.
    Files that nobody closed are not flushed, so this is not for a worker, where a model may have
    some; nor does it wait for threads.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, nobody reads it, or closed
            stream.flush()
    os._exit(code)


def settle() -> None:
    """Loading is over: let the garbage collector never walk what is there now.

    Of a worker with a model in torch it walked 400,000 objects, for 0.3 s each time, while its
    batches waited.
    """
    gc.collect()
    gc.freeze()


def stand_back(nice: int) -> None:
    """Let other processes have the processors first; before any thread is started, since these
    take it over. nice: more of it, 0 for an equal share. The kernel then does not let this process
    interrupt others when it wakes up, either."""
    if nice:
        os.nice(nice)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def arguments(role: str, argv: Sequence[str]) -> argparse.Namespace:
    """The flags every child is started with."""
    parser = argparse.ArgumentParser(prog=f"batchpool.{role}")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--name", default=role)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="auto")
    return parser.parse_args(argv)


def control_channel(fd: int) -> Channel:
    """The child's end of the supervisor's socket pair."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    return Channel(sock)


def log_to_stderr(role: str, args: argparse.Namespace) -> None:
    """Make stderr the log of this child, which its flags name."""
    setup.set_up(role, args.name, args.log_level, args.log_format)
