"""The sink of log lines: whole lines, no write that waits, no error that reaches the caller."""

from __future__ import annotations

import os
import pty
import socket
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchpool.log.sink import LogSink, is_journal

LINE = b"x" * 99 + b"\n"


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    try:
        yield reads, writes
    finally:
        for fd in (reads, writes):
            os.close(fd)


@contextmanager
def sinking(fd: int) -> Iterator[LogSink]:
    sink = LogSink(fd)
    try:
        yield sink
    finally:
        sink.close()


def fill(sink: LogSink) -> int:
    """Write lines until one is lost, as one must be when nobody reads."""
    return next(count for count in range(1_000_000) if not sink.write([LINE]))


def drain(fd: int) -> bytes:
    os.set_blocking(fd, False)
    pieces = []
    try:
        while piece := os.read(fd, 1 << 16):
            pieces.append(piece)
    except BlockingIOError:
        pass
    return b"".join(pieces)


def test_a_file_gets_all_lines(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as file, sinking(file.fileno()) as sink:
        assert sink.write([b"one\n", b"two\n"])
        assert sink.write([b"three\n"])
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"


def test_a_file_is_written_though_a_library_closed_or_redirected_its_descriptor(
    tmp_path: Path,
) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    sink = LogSink(fd)
    elsewhere = os.open("/dev/full", os.O_WRONLY)
    os.dup2(elsewhere, fd)
    assert sink.write([b"one\n"])
    os.close(fd)
    assert sink.write([b"two\n"])
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    sink.close()
    os.close(elsewhere)


def test_a_full_disk_costs_the_line_and_no_more() -> None:
    with open("/dev/full", "wb", buffering=0) as file, sinking(file.fileno()) as sink:
        assert not sink.write([LINE])


def test_a_pipe_without_a_reader_costs_the_line_and_no_more() -> None:
    reads, writes = os.pipe()
    with sinking(writes) as sink:
        os.close(reads)
        assert not sink.write([LINE])
    os.close(writes)


def test_a_pipe_whose_reader_stands_still_is_not_waited_for() -> None:
    with pipe() as (reads, writes), sinking(writes) as sink:
        count = fill(sink)
        assert count > 0
        assert os.get_blocking(writes)  # it is shared with other processes, who may mind
        assert drain(reads) == LINE * count
        assert sink.write([LINE])
        assert drain(reads) == LINE


def test_a_pipe_gets_at_most_what_it_takes_whole() -> None:
    with pipe() as (reads, writes), sinking(writes) as sink:
        assert sink.most_bytes == 4096  # more than that may mix with another process's lines
        assert sink.write([LINE] * 100)
        assert drain(reads) == LINE * 100


def test_a_terminal_that_is_stopped_is_not_waited_for() -> None:
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
        with sinking(theirs) as sink:
            assert sink.write([LINE])
            assert fill(sink) >= 0
        assert drain(ours).startswith(LINE)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_socket_is_not_waited_for_and_its_end_costs_the_line_and_no_more() -> None:
    ours, theirs = socket.socketpair()
    with theirs, sinking(theirs.fileno()) as sink:
        with ours:
            count = fill(sink)
            assert count > 0
            raw = drain(ours.fileno())
            assert raw[: 100 * count] == LINE * count
        assert not sink.write([LINE])
        assert theirs.getblocking()


def test_behind_a_torn_line_the_next_begins_anew() -> None:
    room: list[int] = [1000, 7, 0, 1000]
    taken: list[bytes] = []

    def put(raw: bytes) -> int:
        taken.append(raw[: room[0]])
        return min(len(raw), room.pop(0))

    with open(os.devnull, "wb", buffering=0) as file, sinking(file.fileno()) as sink:
        sink._put = put
        said = [sink.write([line]) for line in (b"first\n", b"torn line\n", b"lost\n", b"last\n")]
    assert said == [True, False, False, True]
    assert b"".join(taken) == b"first\ntorn li\nlast\n"


def test_without_the_right_to_open_it_again_a_full_pipe_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError

    with pipe() as (reads, writes):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            sink = LogSink(writes)  # it has nothing of its own to close
        count = fill(sink)
        assert drain(reads) == LINE * count
        assert sink.write([LINE])


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (lambda found: f"{found.st_dev}:{found.st_ino}", True),
        (lambda found: f"{found.st_dev}:{found.st_ino + 1}", False),  # another's, inherited
        (lambda found: "", False),
        (lambda found: "nonsense", False),
    ],
)
def test_the_journal_is_known_by_its_socket(
    stream: Callable[[os.stat_result], str], expected: bool
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert is_journal(fd, {"JOURNAL_STREAM": stream(os.fstat(fd))}) is expected


def test_a_closed_descriptor_is_no_journal() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    os.close(writes)
    assert not is_journal(writes, {"JOURNAL_STREAM": "1:2"})
