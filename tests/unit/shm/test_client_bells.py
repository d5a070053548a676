"""Whatever a client does to its ends of its bells, the pool neither waits nor fails."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
from collections.abc import Iterator

import pytest

from batchpool.shm.client_bells import ClientBell, ClientBellFds, HeardBell, make_client_bells
from batchpool.shm.doorbell import Doorbell, Waiter


class Ends:
    """The bells of one client: the pool's end and the client's."""

    def __init__(self) -> None:
        self.fds: ClientBellFds = make_client_bells()
        self.lost: list[str] = []
        self.pools = ClientBell(self.fds.rung_by_pool, self.lost.append)
        self.clients = HeardBell(self.fds.heard_by_client)

    def close(self) -> None:
        self.pools.close()
        self.clients.close()
        os.close(self.fds.rung_by_client)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_a_ring_is_heard_until_it_is_cleared(ends: Ends) -> None:
    waiter = Waiter(ends.clients.fd)
    assert waiter.wait_ms(0) == []
    for _ in range(3):
        ends.pools.ring()
    assert waiter.wait_ms(0) == [ends.clients.fd]
    ends.clients.clear()
    assert waiter.wait_ms(0) == []
    ends.clients.clear()  # nobody rang: nothing happens, and nothing waits


def test_a_client_that_never_clears_makes_the_pool_wait_for_nothing(ends: Ends) -> None:
    for _ in range(2000):
        ends.pools.ring()
    ends.clients.clear()
    assert Waiter(ends.clients.fd).wait_ms(0) == [], "one look takes every ring there is"
    assert ends.lost == []
    ends.pools.ring()
    assert Waiter(ends.clients.fd).wait_ms(0) == [ends.clients.fd]


def test_a_client_that_makes_its_end_wait_does_not_make_the_pools_wait(ends: Ends) -> None:
    for fd in (ends.clients.fd, ends.fds.rung_by_client):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    for _ in range(2000):
        ends.pools.ring()
    assert ends.lost == []


@pytest.mark.parametrize("how", ["closes", "receives no more", "shuts down"])
def test_a_client_without_its_end_is_reported_once(ends: Ends, how: str) -> None:
    theirs = socket.socket(fileno=os.dup(ends.clients.fd))
    if how == "closes":
        ends.clients.close()
    elif how == "receives no more":
        theirs.shutdown(socket.SHUT_RD)
    else:
        theirs.shutdown(socket.SHUT_RDWR)
    theirs.close()
    for _ in range(3):
        ends.pools.ring()
    assert ends.lost == ["Broken pipe"]


def test_a_client_can_put_nothing_into_the_pools_end(ends: Ends) -> None:
    """A descriptor queued there would be closed by the pool, and its last close may wait."""
    theirs = socket.socket(fileno=os.dup(ends.clients.fd))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    for ancillary in ([], rights):
        with pytest.raises(BrokenPipeError):
            theirs.sendmsg([b"x"], ancillary)
    theirs.close()
    ends.pools.ring()
    assert ends.lost == []


def test_the_clients_ring_is_heard_though_nobody_reads_it(ends: Ends) -> None:
    theirs = Doorbell(os.dup(ends.fds.rung_by_client))
    epoll = select.epoll()
    epoll.register(ends.fds.rung_by_client, select.EPOLLIN | select.EPOLLET)
    for _ in range(3):
        theirs.ring()
        theirs.ring()
        assert epoll.poll(0) == [(ends.fds.rung_by_client, select.EPOLLIN)]
        assert epoll.poll(0) == []
    os.eventfd_write(theirs.fd, 2**64 - 8)  # nearly at its limit
    assert len(epoll.poll(0)) == 1
    epoll.close()
    theirs.close()


def test_the_bells_are_not_inherited(ends: Ends) -> None:
    for fd in (ends.fds.rung_by_pool, ends.fds.heard_by_client, ends.fds.rung_by_client):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_front_ends_bell_is_cleared_the_same_way() -> None:
    pools = Doorbell()
    heard = HeardBell(os.dup(pools.fd))
    pools.ring()
    pools.ring()
    assert Waiter(heard.fd).wait_ms(0) == [heard.fd]
    heard.clear()
    heard.clear()
    assert Waiter(heard.fd).wait_ms(0) == []
    heard.close()
    pools.close()
