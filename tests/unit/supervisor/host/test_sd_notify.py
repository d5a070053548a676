"""The notification protocol: what is sent to whom, and that nothing of it can hurt."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchpool.supervisor.host.sd_notify import Notifier, take_notifier


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(str(tmp_path / "notify"))
        yield sock


def heard(ear: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(ear.recv(65536).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize("abstract", [False, True])
def test_one_message_is_one_datagram_of_lines(tmp_path: Path, abstract: bool) -> None:
    address = f"@batchpool-unit-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.setblocking(False)
        ear.bind("\0" + address[1:] if abstract else address)
        notifier = Notifier(address)
        assert notifier
        notifier.notify(READY=1, STATUS="serving")
        notifier.notify(WATCHDOG=1)
        notifier.close()
        assert heard(ear) == ["READY=1\nSTATUS=serving", "WATCHDOG=1"]


def test_a_text_of_many_lines_is_still_one_value(ear: socket.socket) -> None:
    notifier = Notifier(ear.getsockname())
    notifier.notify(STATUS="could not start:\n  READY=1\n")
    notifier.close()
    assert heard(ear) == ["STATUS=could not start: READY=1"]


def test_without_an_address_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    """C60: NOTIFY_SOCKET is not set."""
    notifier = take_notifier({"WATCHDOG_USEC": "1000000"}, 7)
    assert not notifier
    assert notifier.watchdog_ns == 0
    notifier.notify(READY=1)
    notifier.flush()
    notifier.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/nonexistent/notify", "No such file or directory"),
        ("vsock:2:1234", "it is neither a path nor an abstract name"),
        ("/" + "x" * 200, "AF_UNIX path too long"),
    ],
)
def test_a_failure_is_logged_once_and_the_pool_does_without(
    address: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(address)
    for _ in range(3):
        notifier.notify(STATUS="anything")
    assert not notifier
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"cannot notify the service manager at {address}: {why}"


def test_a_service_manager_that_is_busy_hears_it_later(ear: socket.socket) -> None:
    notifier = Notifier(ear.getsockname())
    while not notifier._unsent:  # its queue is not endless
        notifier.notify(STATUS="loading")
    notifier.notify(READY=1, STATUS="serving")
    notifier.notify(WATCHDOG=1)
    assert notifier
    assert set(heard(ear)) == {"STATUS=loading"}
    notifier.flush()
    notifier.flush()
    notifier.close()
    assert heard(ear) == ["STATUS=serving\nREADY=1\nWATCHDOG=1"], "all of it, once"


@pytest.mark.parametrize(
    ("pid", "usec", "watchdog_ns"),
    [
        ("", "30000000", 30_000_000_000),
        ("7", "30000000", 30_000_000_000),
        ("8", "30000000", 0),  # another process's
        ("7", "", 0),
        ("7", "soon", 0),
    ],
)
def test_the_variables_are_read_and_taken_out(
    ear: socket.socket, pid: str, usec: str, watchdog_ns: int
) -> None:
    env = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": usec, "PATH": "/bin"}
    if pid:
        env["WATCHDOG_PID"] = pid
    notifier = take_notifier(env, 7)
    notifier.close()
    assert env == {"PATH": "/bin"}
    assert notifier.watchdog_ns == watchdog_ns


@pytest.mark.parametrize("name", ["EAGAIN", "ENOBUFS", "ENOMEM"])
def test_what_the_machine_has_no_room_for_now_is_sent_later(
    ear: socket.socket, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier(ear.getsockname())

    def full(*_: object) -> None:
        raise OSError(getattr(errno, name), name)

    with monkeypatch.context() as patch:
        patch.setattr(notifier, "_sock", SimpleNamespace(sendto=full))
        notifier.notify(READY=1)
    notifier.notify(STATUS="serving")
    assert heard(ear) == ["READY=1\nSTATUS=serving"]
    notifier.close()
