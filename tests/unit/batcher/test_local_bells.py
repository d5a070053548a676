"""The batcher hears each local client, and none of them can keep it awake for nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.batcher.local_bells import LocalBells
from batchpool.shm.client_bells import ClientBellFds, HeardBell, make_client_bells
from batchpool.shm.doorbell import Waiter

MS = 1_000_000


class Clients:
    """Local clients and their bells in a batcher."""

    def __init__(self) -> None:
        self.bells = LocalBells()
        self.ends: dict[int, ClientBellFds] = {}
        self.lanes: dict[int, Any] = {}

    def add(self, client: int, lane: int) -> None:
        """A lane of a client; its bells are dups, as they are for every batcher."""
        if client not in self.ends:
            self.ends[client] = make_client_bells()
        ends = self.ends[client]
        self.bells.bell_of(client, os.dup(ends.rung_by_pool), os.dup(ends.rung_by_client))
        self.lanes[lane] = SimpleNamespace(number=lane, admitted=0)
        self.bells.add_lane(client, cast(Any, self.lanes[lane]))

    def ring(self, client: int) -> None:
        os.eventfd_write(self.ends[client].rung_by_client, 1)

    def wakes(self) -> bool:
        return bool(Waiter(self.bells.fd).wait_ms(0))

    def rings_without_rows(self, client: int, now_ns: int) -> int:
        """The wake-ups of the batcher by a client that never stops ringing."""
        count = 0
        while True:
            self.ring(client)
            if not self.wakes():
                return count
            count += 1
            self.bells.hear(now_ns)
            assert count < 10_000

    def close(self) -> None:
        for lane in list(self.lanes):
            self.bells.remove_lane(lane)
        for ends in self.ends.values():
            for fd in (ends.rung_by_pool, ends.heard_by_client, ends.rung_by_client):
                os.close(fd)


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.close()


def test_each_ring_wakes_once(clients: Clients) -> None:
    clients.add(1, lane=0)
    clients.add(2, lane=1)
    clients.bells.hear(0)
    assert not clients.wakes()
    for client in (1, 2, 1):
        clients.ring(client)
        assert clients.wakes()
        clients.bells.hear(0)
        assert not clients.wakes()


def test_who_rings_without_rows_is_left_out_for_a_tenth_of_a_second(clients: Clients) -> None:
    clients.add(1, lane=0)
    clients.add(2, lane=1)
    assert clients.rings_without_rows(1, now_ns=5) == 256
    assert clients.bells.wake_at_ns(6) == 5 + 100 * MS
    clients.ring(2)
    assert clients.wakes(), "others are heard meanwhile"
    clients.bells.hear(6)
    assert clients.bells.wake_at_ns(5 + 100 * MS) == 2**63 - 1
    assert clients.rings_without_rows(1, now_ns=200 * MS) == 2, "and then it has credit for two"
    assert clients.bells.wake_at_ns(201 * MS) == 300 * MS


def test_rows_of_long_ago_are_worth_256_rings_at_most(clients: Clients) -> None:
    clients.add(1, lane=0)
    clients.lanes[0].admitted = 10_000
    assert clients.rings_without_rows(1, now_ns=0) == 256 + 256


def test_a_row_is_worth_two_rings_once_also_where_a_lane_of_the_client_goes(
    clients: Clients,
) -> None:
    for lane in (0, 1):
        clients.add(1, lane)
    clients.lanes[0].admitted = 10
    assert clients.rings_without_rows(1, now_ns=0) == 256 + 20
    clients.bells.wake_at_ns(100 * MS)
    clients.bells.hear(100 * MS)
    clients.bells.remove_lane(0)
    clients.lanes[1].admitted = 5
    assert clients.rings_without_rows(1, now_ns=100 * MS) == 1 + 10, "one was heard just now"


def test_each_client_that_was_left_out_is_heard_again_in_its_own_time(clients: Clients) -> None:
    for client, now_ns in ((1, 5), (2, 50)):
        clients.add(client, lane=client)
        clients.rings_without_rows(client, now_ns)
        clients.ring(client)
    assert clients.bells.wake_at_ns(60) == 5 + 100 * MS
    assert clients.bells.wake_at_ns(5 + 100 * MS) == 50 + 100 * MS
    assert clients.wakes(), "the first"
    clients.bells.hear(5 + 100 * MS)
    assert not clients.wakes()
    assert clients.bells.wake_at_ns(50 + 100 * MS) == 2**63 - 1
    assert clients.wakes(), "the second"


def test_a_ring_that_was_left_out_is_heard_later(clients: Clients) -> None:
    clients.add(1, lane=0)
    clients.rings_without_rows(1, now_ns=0)
    clients.ring(1)
    assert not clients.wakes()
    clients.bells.wake_at_ns(100 * MS)
    assert clients.wakes()


def test_who_sends_rows_is_always_heard(clients: Clients) -> None:
    """One ring for a row and one for its cancel, for ever, with rows in either of its lanes."""
    clients.add(1, lane=0)
    clients.add(1, lane=1)
    for i in range(2000):
        clients.lanes[i % 2].admitted += 1
        for _ in range(2):
            clients.ring(1)
            assert clients.wakes(), i
            clients.bells.hear(i)


def test_a_client_has_one_bell_for_all_its_lanes(clients: Clients) -> None:
    gc.collect()  # what other tests have left behind would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    clients.add(1, lane=0)
    with_one = len(os.listdir("/proc/self/fd"))
    clients.add(1, lane=1)
    assert len(os.listdir("/proc/self/fd")) == with_one
    clients.bells.remove_lane(0)
    assert len(os.listdir("/proc/self/fd")) == with_one
    clients.bells.remove_lane(1)
    assert len(os.listdir("/proc/self/fd")) == before + 3, "what the client holds itself"
    clients.bells.remove_lane(7)  # of a front end


def test_a_client_that_has_left_is_not_heard(clients: Clients) -> None:
    """It keeps its end of the bell, and may ring it for ever."""
    clients.add(1, lane=0)
    clients.add(2, lane=1)
    clients.bells.remove_lane(0)
    clients.ring(1)
    assert not clients.wakes()
    clients.ring(2)
    clients.bells.hear(0)
    assert not clients.wakes()


def test_a_muted_client_can_leave(clients: Clients) -> None:
    clients.add(1, lane=0)
    clients.rings_without_rows(1, now_ns=0)
    clients.bells.remove_lane(0)
    assert clients.bells.wake_at_ns(100 * MS) == 2**63 - 1


def test_a_client_is_rung_by_whichever_batcher_it_has(clients: Clients) -> None:
    """Each batcher is handed descriptors of the same bell."""
    clients.add(3, lane=0)
    ends = clients.ends[3]
    heard = HeardBell(os.dup(ends.heard_by_client))
    for _ in range(2):
        bells = LocalBells()
        bells.bell_of(3, os.dup(ends.rung_by_pool), os.dup(ends.rung_by_client)).ring()
        assert Waiter(heard.fd).wait_ms(0) == [heard.fd]
        heard.clear()
        assert not Waiter(heard.fd).wait_ms(0)
    heard.close()
