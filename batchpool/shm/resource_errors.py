"""Errors about exhausted resources of the kernel, in words for those who can raise the limit.

A descriptor, a page, a process may be refused at any moment, since a limit of ours or of the
machine is reached. It is no fault of the code that asks and no reason to end: whoever wanted it is
told what is short, and everybody else is served on.

Local clients may not take the last descriptors: the pool needs some to replace a process that has
died, and to answer those who look what is wrong.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from batchpool.core.errors import StartError

_KEPT_MOST = 64
_KEPT_SHARE = 8  # of a low limit not more than one in eight is kept
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS)


def is_shortage(exc: OSError) -> bool:
    """True if the error says that a resource has run out, for now."""
    return exc.errno in _SHORT


def text_of(exc: Exception) -> str:
    """The refused resource and its remedy, in one line. EAGAIN: a process was not started."""
    number = exc.errno if isinstance(exc, OSError) else None
    number = number or _probe()
    if number == errno.EMFILE:
        return (
            f"too many open files: this process may have {descriptor_limit()} (RLIMIT_NOFILE);"
            " raise LimitNOFILE= of its service, or ulimit -n"
        )
    if number == errno.ENFILE:
        return "too many open files on this machine (sysctl fs.file-max)"
    if number == errno.EAGAIN:
        return (
            "no room for another process: TasksMax= of its service (pids.max of the cgroup), or"
            " ulimit -u"
        )
    if number == errno.ENOMEM:
        return "out of memory"
    return os.strerror(number) if number else str(exc)


@contextmanager
def named(what: str) -> Iterator[None]:
    """A shortage that is met meanwhile is a StartError: "WHAT: what is short"."""
    try:
        yield
    except OSError as exc:
        if not is_shortage(exc):
            raise
        raise StartError(f"{what}: {text_of(exc)}") from exc


def raise_descriptor_limit() -> None:
    """Every lane, bell and client takes descriptors here: use all that we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_lack(needed: int) -> str:
    """A warning for a process that may need so many descriptors; "" if there are enough."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if needed + min(_KEPT_MOST, most // _KEPT_SHARE) <= most:
        return ""
    return (
        f"max_clients local clients take up to {needed} open files and this process may have {most}"
        " (RLIMIT_NOFILE): the last are refused; raise LimitNOFILE= of its service, or ulimit -Hn"
    )


def check_descriptors(what: str, share: float = 1.0) -> None:
    """Raise StartError if one more client's wish would take what the pool keeps for itself.

    share: how much of that must be free.
    """
    limit = descriptor_limit()
    kept = int(share * min(_KEPT_MOST, limit // _KEPT_SHARE))
    if open_descriptors() + kept >= limit:
        raise StartError(f"{what}: {text_of(OSError(errno.EMFILE, ''))}")


def descriptor_limit() -> int:
    """The number of descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_descriptors() -> int:
    """The number of descriptors that this process has."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the one that lists them
    except OSError as exc:
        return descriptor_limit() if is_shortage(exc) else 0


def _probe() -> int | None:
    """Why there is no descriptor to be had; None if there is one. Of errors without a number."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.errno
    return None
