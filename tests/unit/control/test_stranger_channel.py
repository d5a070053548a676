"""Descriptors of a stranger are neither taken nor waited for."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator

import msgpack
import pytest

from batchpool.control.channel import Channel, Closed
from batchpool.control.edges import FROM_CLIENT
from batchpool.control.messages import GetStatus
from batchpool.control.stranger_channel import (
    CLOSERS,
    StrangerChannel,
    UnwantedDescriptors,
)
from tests.unit.shm.scarcity import open_files

LINGER_S = 20
NEVER_NS = 2**63 - 1
STATUS = msgpack.packb({"op": "status"})


@pytest.fixture(scope="module", autouse=True)
def peers() -> Iterator[None]:
    """Closes the peers of lingering sockets at the end, when nothing waits for them any more."""
    yield
    while PEERS:
        PEERS.pop().close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, StrangerChannel]]:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    yield theirs, StrangerChannel(ours)
    theirs.close()


def lingering() -> int:
    """A TCP socket whose last close waits for LINGER_S seconds: its peer reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        sock.connect(server.getsockname())
        peer, _ = server.accept()
    sock.setblocking(False)
    try:
        while True:
            sock.send(bytes(65536))
    except BlockingIOError:
        pass
    PEERS.append(peer)
    return sock.detach()


PEERS: list[socket.socket] = []  # kept open, for an end would end the linger time too


def send_away(theirs: socket.socket, raw: bytes) -> None:
    """A packet with the last descriptor of a lingering socket."""
    fd = lingering()
    socket.send_fds(theirs, [raw], [fd])
    os.close(fd)


def test_messages_without_descriptors_come_through(
    ends: tuple[socket.socket, StrangerChannel],
) -> None:
    theirs, ours = ends
    Channel(theirs).send(GetStatus())
    assert ours.receive(FROM_CLIENT) == (GetStatus(), [])
    with pytest.raises(BlockingIOError):
        ours.receive(FROM_CLIENT)
    theirs.close()
    with pytest.raises(Closed):
        ours.receive(FROM_CLIENT)
    ours.close()


@pytest.mark.parametrize("raw", [STATUS, b""])
def test_a_message_with_descriptors_is_refused_and_installs_none(
    ends: tuple[socket.socket, StrangerChannel], raw: bytes
) -> None:
    theirs, ours = ends
    socket.send_fds(theirs, [raw], [0, 0, 0])
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(UnwantedDescriptors, match="brings no descriptors"):
            ours.receive(FROM_CLIENT)
    assert set(os.listdir("/proc/self/fd")) == before
    ours.close()


MANY_EMPTY = [b""] * 200  # more than fit into a queue of datagrams
FIRST = {"nothing": [], "one": [STATUS], "an empty one": [STATUS, b""], "many": MANY_EMPTY}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_socket_is_closed_at_once_whatever_its_peer_left_in_it(
    ends: tuple[socket.socket, StrangerChannel], first: list[bytes]
) -> None:
    """The kernel would wait for LINGER_S seconds in the last close of what was sent."""
    theirs, ours = ends
    for raw in first:
        theirs.send(raw)
    send_away(theirs, STATUS)
    others = children()
    started_s = time.monotonic()
    ours.close()
    assert time.monotonic() - started_s < LINGER_S / 4
    assert ours.fileno() == -1
    with pytest.raises(BrokenPipeError):
        theirs.send(b"x")
    give_up_s = time.monotonic() + LINGER_S
    while children() - others and time.monotonic() < give_up_s:
        CLOSERS.reap()
    assert children() <= others, "the child that closed it has ended, and is reaped"


def leave_with_a_reply_unread(theirs: socket.socket, ours: StrangerChannel) -> None:
    """The peer sends the last descriptor of a lingering socket, reads nothing and closes."""
    ours.send(GetStatus())
    send_away(theirs, STATUS)
    theirs.close()


def test_a_peer_that_left_before_its_reply_was_read_waits_for_nobody(
    ends: tuple[socket.socket, StrangerChannel],
) -> None:
    """The kernel says ECONNRESET once, at the first look, before the packet with descriptors."""
    theirs, ours = ends
    leave_with_a_reply_unread(theirs, ours)
    started_s, before = time.monotonic(), set(os.listdir("/proc/self/fd"))
    with pytest.raises(UnwantedDescriptors):
        ours.receive(FROM_CLIENT)
    assert set(os.listdir("/proc/self/fd")) == before
    ours.close()
    assert time.monotonic() - started_s < LINGER_S / 4
    reap_until_none_is_left()


def test_a_socket_whose_peer_left_before_its_reply_was_read_is_closed_at_once(
    ends: tuple[socket.socket, StrangerChannel],
) -> None:
    theirs, ours = ends
    leave_with_a_reply_unread(theirs, ours)
    started_s = time.monotonic()
    ours.close()
    assert time.monotonic() - started_s < LINGER_S / 4
    reap_until_none_is_left()


class SendsWhenLookedAt(StrangerChannel):
    """Its peer sends descriptors just after it was seen that there is nothing."""

    theirs: socket.socket
    sent = False

    def _next_has_descriptors(self) -> bool:
        try:
            return super()._next_has_descriptors()
        finally:
            if not self.sent:
                self.sent = True
                socket.send_fds(self.theirs, [STATUS], [0])


def test_descriptors_that_come_after_the_look_are_not_received() -> None:
    theirs, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    ours = SendsWhenLookedAt(sock)
    ours.theirs = theirs
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError):
        ours.receive(FROM_CLIENT)
    with pytest.raises(UnwantedDescriptors):
        ours.receive(FROM_CLIENT)
    assert set(os.listdir("/proc/self/fd")) == before
    theirs.close()
    ours.close()
    reap_until_none_is_left()


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


def test_a_socket_without_descriptors_costs_no_child(
    ends: tuple[socket.socket, StrangerChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = ends
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a child was made"))
    for raw in (STATUS, b"", STATUS):
        theirs.send(raw)
    ours.close()
    with pytest.raises(BrokenPipeError):
        theirs.send(b"x")


@pytest.mark.parametrize("short_of", ["socketpair", "fork"])
def test_a_socket_that_no_child_can_close_stays_open_and_makes_nobody_wait(
    ends: tuple[socket.socket, StrangerChannel], short_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    theirs, channel = ends
    reap_until_none_is_left()
    send_away(theirs, STATUS)
    fd, before = channel.fileno(), open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os if short_of == "fork" else socket, short_of, full)
        channel.close()
    assert (channel.fileno(), open_files()) == (-1, before)
    CLOSERS.close(socket.socket(fileno=fd))  # now it can be closed
    reap_until_none_is_left()


def reap_until_none_is_left() -> None:
    until_s = time.monotonic() + 10
    while CLOSERS.reap() < NEVER_NS and time.monotonic() < until_s:
        time.sleep(0.001)


def test_many_sockets_are_closed_by_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    reap_until_none_is_left()
    made: list[int] = []
    fork = os.fork

    def noted() -> int:
        made.append(1)
        return fork()

    peers = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", noted)
        patch.setattr(time, "monotonic_ns", lambda: 7)  # no time passes
        for _ in range(40):
            theirs, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
            send_away(theirs, STATUS)
            StrangerChannel(sock).close()
            peers.append(theirs)
    assert made == [1]
    started_s = time.monotonic()
    reap_until_none_is_left()
    assert time.monotonic() - started_s < LINGER_S / 4
    for theirs in peers:
        with pytest.raises(ConnectionError):
            theirs.send(b"x")
        theirs.close()


def test_a_closer_that_has_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    reap_until_none_is_left()
    pids, fork = [], os.fork

    def noted() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", noted)
    for _ in range(2):
        theirs, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        send_away(theirs, STATUS)
        StrangerChannel(sock).close()
        os.kill(pids[-1], 9)
        os.waitid(os.P_PID, pids[-1], os.WEXITED | os.WNOWAIT)
        theirs.close()
    assert len(pids) == 2
    reap_until_none_is_left()
