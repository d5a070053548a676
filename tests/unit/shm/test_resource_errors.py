"""Texts about the resource that is short, and the reserve that the pool keeps."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from batchpool.core.errors import StartError
from batchpool.core.layout.segments import heartbeats_layout
from batchpool.shm.resource_errors import (
    check_descriptors,
    descriptors_lack,
    is_shortage,
    named,
    text_of,
)
from batchpool.shm.segment import create
from tests.unit.shm.scarcity import no_descriptors

LIMIT = "too many open files: this process may have {} (RLIMIT_NOFILE); raise LimitNOFILE= of its"


@pytest.fixture
def limit() -> Iterator[int]:
    """A limit of 400: the pool keeps 50."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    yield 400
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENFILE, "too many open files on this machine (sysctl fs.file-max)"),
        (errno.ENOMEM, "out of memory"),
        (errno.EAGAIN, "no room for another process: TasksMax= of its service"),
        (errno.ENOBUFS, "No buffer space available"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_what_is_short_is_named(number: int, text: str) -> None:
    assert text_of(OSError(number, "x")).startswith(text)


def test_the_limit_is_named_with_its_value(limit: int) -> None:
    assert text_of(OSError(errno.EMFILE, "x")).startswith(LIMIT.format(limit))
    assert text_of(OSError("has no number")) == "has no number"
    with no_descriptors():
        assert text_of(OSError("has no number")).startswith("too many open files: this process")


@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_for_which_there_is_no_descriptor(sealed: bool) -> None:
    with (
        no_descriptors(),
        pytest.raises(StartError, match=r"of \d+ bytes, of me: too many open files: this process"),
    ):
        create(heartbeats_layout(1), sealed=sealed, whose="me")
    os.close(create(heartbeats_layout(1), sealed=sealed))


def test_only_a_shortage_is_made_a_start_error() -> None:
    with pytest.raises(StartError, match="cannot do it: out of memory"), named("cannot do it"):
        raise OSError(errno.ENOMEM, "x")
    with pytest.raises(PermissionError), named("cannot do it"):
        raise PermissionError(errno.EACCES, "x")
    assert not is_shortage(BlockingIOError(errno.EAGAIN, "nothing to read"))


def test_too_few_for_all_clients_are_told_of_before() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptors_lack(hard - 64) == ""
    lack = descriptors_lack(hard - 63)
    assert lack.startswith(f"max_clients local clients take up to {hard - 63} open files and this")
    assert f" may have {hard} " in lack


def test_the_last_descriptors_are_not_for_clients(limit: int) -> None:
    held: list[int] = []

    def take(free: int) -> None:
        """So many are left."""
        while len(os.listdir("/proc/self/fd")) - 1 < limit - free:
            held.append(os.open(os.devnull, os.O_RDONLY))

    take(51)
    check_descriptors("no")
    take(50)
    with pytest.raises(StartError, match=rf"no: too many open files: .* {limit} "):
        check_descriptors("no")
    check_descriptors("no", 0.5)
    take(25)
    with pytest.raises(StartError):
        check_descriptors("no", 0.5)
    for fd in held:
        os.close(fd)
    with no_descriptors(), pytest.raises(StartError):
        check_descriptors("no")
