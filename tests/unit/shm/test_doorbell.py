"""Bells wake their owner, add up, and every wait has an end."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from batchpool.shm import doorbell
from batchpool.shm.doorbell import Doorbell, Waiter


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


def test_a_ring_is_heard_until_it_is_cleared(bell: Doorbell) -> None:
    waiter = Waiter(bell.fd)
    assert waiter.wait_ms(0) == []
    bell.ring()
    bell.ring()
    bell.ring()
    assert waiter.wait_ms(0) == [bell.fd]
    assert waiter.wait_ms(0) == [bell.fd]
    bell.clear()
    assert waiter.wait_ms(0) == []
    bell.clear()  # nobody rang: nothing happens, and nothing waits


def test_a_ring_before_the_wait_is_not_lost(bell: Doorbell) -> None:
    bell.ring()
    assert Waiter(bell.fd).wait_until(time.monotonic_ns() + 10**10) == [bell.fd]


def test_a_bell_that_was_rung_too_often_still_rings(bell: Doorbell) -> None:
    os.eventfd_write(bell.fd, 2**64 - 2)
    bell.ring()
    assert Waiter(bell.fd).wait_ms(0) == [bell.fd]
    bell.clear()
    assert Waiter(bell.fd).wait_ms(0) == []


def test_another_process_rings_through_its_own_descriptor(bell: Doorbell) -> None:
    theirs = Doorbell(os.dup(bell.fd))
    theirs.ring()
    assert Waiter(bell.fd).wait_ms(0) == [bell.fd]
    theirs.close()
    assert theirs.fd == -1
    theirs.close()


def test_a_waiter_sleeps_until_another_thread_rings(bell: Doorbell) -> None:
    heard: list[list[int]] = []
    thread = threading.Thread(target=lambda: heard.append(Waiter(bell.fd).wait_ms(30_000)))
    thread.start()
    bell.ring()
    thread.join(30)
    assert heard == [[bell.fd]]


def test_a_bell_is_not_inherited(bell: Doorbell) -> None:
    assert fcntl.fcntl(bell.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_waiting_for_bells_and_sockets(bell: Doorbell) -> None:
    ours, theirs = socket.socketpair()
    waiter = Waiter(bell.fd)
    waiter.add(ours.fileno())
    assert waiter.wait_ms(0) == []
    theirs.send(b"x")
    assert waiter.wait_ms(0) == [ours.fileno()]
    bell.ring()
    assert set(waiter.wait_ms(0)) == {bell.fd, ours.fileno()}
    waiter.remove(ours.fileno())
    assert waiter.wait_ms(0) == [bell.fd]
    waiter.add(ours.fileno())
    bell.clear()
    ours.recv(1)
    theirs.close()
    assert waiter.wait_ms(0) == [ours.fileno()], "a hang-up wakes too"
    ours.close()


def test_a_wait_ends_at_its_time_and_not_before(bell: Doorbell) -> None:
    waiter = Waiter(bell.fd)
    wake_at_ns = time.monotonic_ns() + 2_000_000
    assert waiter.wait_until(wake_at_ns) == []
    assert time.monotonic_ns() >= wake_at_ns
    assert waiter.wait_until(0) == []
    assert waiter.wait_until(time.monotonic_ns() - 10**12) == []


def test_never_is_a_time_too(bell: Doorbell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision says 2**63 - 1 when it has nothing to wait for; poll takes no such number."""
    monkeypatch.setattr(doorbell, "_LONGEST_MS", 1.0)
    assert Waiter(bell.fd).wait_until(2**63 - 1) == []
    monkeypatch.undo()
    bell.ring()
    assert Waiter(bell.fd).wait_until(2**63 - 1) == [bell.fd]
    assert Waiter(bell.fd).wait_ms(1e15) == [bell.fd]
