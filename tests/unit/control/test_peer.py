"""Leases: who is at the other end, as the kernel says, and the moment it dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.control import peer
from batchpool.control.peer import Peer, peer_of, pidfd_of
from batchpool.shm.doorbell import Waiter

CONNECT = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
    "s.connect(sys.argv[1])\n"
    "s.send(b'here')\n"
    "s.recv(1)\n"
)


class Connected:
    """A child process connected to a listening socket of ours."""

    def __init__(self, folder: Path) -> None:
        path = str(folder / "control.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.process = subprocess.Popen([sys.executable, "-c", CONNECT, path])
        self.listener.settimeout(60)
        self.sock, _ = self.listener.accept()
        assert self.sock.recv(10) == b"here"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Connected]:
    connected = Connected(tmp_path)
    yield connected
    connected.kill()
    connected.sock.close()
    connected.listener.close()


def test_the_peer_is_the_process_that_connected(child: Connected) -> None:
    assert peer_of(child.sock) == Peer(child.process.pid, os.getuid(), os.getgid())


@pytest.mark.parametrize("has_peer_pidfd", [True, False])
def test_a_pidfd_is_readable_when_the_process_has_died_and_not_before(
    child: Connected, monkeypatch: pytest.MonkeyPatch, has_peer_pidfd: bool
) -> None:
    if not has_peer_pidfd:  # Linux before 6.5
        monkeypatch.setattr(peer, "_SO_PEERPIDFD", 9999)
    pidfd = pidfd_of(child.sock)
    assert pidfd >= 0
    assert not os.get_inheritable(pidfd)
    waiter = Waiter(pidfd)
    assert waiter.wait_ms(0) == []
    child.process.send_signal(signal.SIGKILL)
    assert waiter.wait_ms(60_000) == [pidfd]
    os.close(pidfd)


def test_closing_the_socket_ends_the_lease_of_a_process_that_lives(child: Connected) -> None:
    pidfd = pidfd_of(child.sock)
    waiter = Waiter(pidfd, child.sock.fileno())
    assert waiter.wait_ms(0) == []
    child.sock.send(b"x")  # the child reads one message, closes and ends
    assert child.sock.fileno() in waiter.wait_ms(60_000)
    assert child.sock.recv(1) == b""
    os.close(pidfd)


def test_a_process_that_is_gone_has_no_pidfd(child: Connected) -> None:
    child.kill()
    assert peer_of(child.sock).pid == child.process.pid
    pidfd = pidfd_of(child.sock)
    # The kernel may still give one of the dead process itself, never of another.
    if pidfd >= 0:
        assert Waiter(pidfd).wait_ms(0) == [pidfd]
        os.close(pidfd)


def test_both_ends_of_a_socket_pair_are_ours() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert peer_of(a) == Peer(os.getpid(), os.getuid(), os.getgid())
    pidfd = pidfd_of(a)
    signal.pidfd_send_signal(pidfd, 0)
    for fd in (pidfd, a.detach(), b.detach()):
        os.close(fd)
