"""Whatever a client does to its ends of its bells, the pool neither waits nor fails."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator

import pytest

from batchpool.shm.client_bells import ClientBellFds, HeardBell, make_client_bells
from batchpool.shm.doorbell import Doorbell, Waiter


class Ends:
    """The bells of one client: the pool's end and the client's."""

    def __init__(self) -> None:
        self.fds: ClientBellFds = make_client_bells()
        self.pools = Doorbell(self.fds.rung_by_pool)
        self.clients = HeardBell(self.fds.heard_by_client)

    def is_heard(self) -> bool:
        return bool(Waiter(self.clients.fd).wait_ms(0))

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
    assert not ends.is_heard()
    for _ in range(2):
        for _ in range(3):
            ends.pools.ring()
        assert ends.is_heard()
        ends.clients.clear()
        assert not ends.is_heard()
    ends.clients.clear()  # nobody rang: nothing happens, and nothing waits


def test_a_ring_wakes_who_waits_already(ends: Ends) -> None:
    waiting = select.epoll()  # as an event loop waits
    waiting.register(ends.clients.fd, select.EPOLLIN)
    for _ in range(3):
        assert waiting.poll(0) == []
        ends.pools.ring()
        assert waiting.poll(0) == [(ends.clients.fd, select.EPOLLIN)]
        ends.clients.clear()
    waiting.close()


def test_a_client_that_never_clears_makes_the_pool_wait_for_nothing(ends: Ends) -> None:
    for _ in range(2000):
        ends.pools.ring()
    ends.clients.clear()
    assert not ends.is_heard(), "one look takes every ring there is"
    ends.pools.ring()
    assert ends.is_heard()


def test_a_client_can_neither_read_nor_write_what_the_pool_rings(ends: Ends) -> None:
    """Nor reach its flags: what it holds is an open file of another kind."""
    for act in (lambda fd: os.read(fd, 8), lambda fd: os.write(fd, b"\xff" * 8)):
        with pytest.raises(OSError, match="Invalid argument"):
            act(ends.clients.fd)
    os.set_blocking(ends.clients.fd, False)
    os.set_blocking(ends.clients.fd, True)
    assert not os.get_blocking(ends.fds.rung_by_pool)


def test_a_client_cannot_take_the_pools_bell_out_of_its_epoll(ends: Ends) -> None:
    """A number means what it does in the process that names it, and there it is no bell."""
    theirs = select.epoll.fromfd(os.dup(ends.clients.fd))
    for fd in range(64):
        if fd != ends.fds.rung_by_pool:
            with pytest.raises(OSError):
                theirs.unregister(fd)
    theirs.close()
    ends.pools.ring()
    assert ends.is_heard()


def test_a_client_that_closes_its_ends_costs_the_pool_nothing(ends: Ends) -> None:
    ends.clients.close()
    for _ in range(2000):
        ends.pools.ring()
    assert ends.clients.fd == -1


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


def test_a_want_of_descriptors_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise OSError(24, "Too many open files")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(select, "epoll", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        make_client_bells()
    assert os.listdir("/proc/self/fd") == before


def test_a_bell_is_heard_where_epoll_was_taken_out_of_select(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gevent and eventlet do, so that nobody waits in it."""
    monkeypatch.delattr(select, "epoll")
    theirs = HeardBell(os.dup(ends.clients.fd))
    ends.pools.ring()
    assert ends.is_heard()
    theirs.clear()
    assert not ends.is_heard()
    theirs.close()
