"""The event loop: callbacks of readable descriptors, and of none that was removed meanwhile."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from batchpool.supervisor.event_loop import EventLoop


@pytest.fixture
def events() -> Iterator[list[int]]:
    fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    yield fds
    for fd in fds:
        os.close(fd)


def test_the_callback_of_a_readable_descriptor_is_called(events: list[int]) -> None:
    loop, called = EventLoop(), []
    for fd in events:
        loop.add(fd, lambda fd=fd: called.append(fd))  # type: ignore[misc]
    assert loop.wait(0) == []
    os.eventfd_write(events[1], 1)
    loop.dispatch(loop.wait(0))
    assert called == [events[1]]
    loop.remove(events[1])
    loop.remove(events[1])
    assert loop.wait(0) == [], "it is readable still, and not in the loop any more"


def test_a_descriptor_that_an_earlier_callback_removed_is_left_alone(events: list[int]) -> None:
    loop, called = EventLoop(), []
    first, second = events

    def end_both() -> None:
        called.append("first")
        loop.remove(second)

    loop.add(first, end_both)
    loop.add(second, lambda: called.append("second"))
    for fd in events:
        os.eventfd_write(fd, 1)
    loop.dispatch(loop.wait(0))
    assert called == ["first"]


def test_an_event_of_a_closed_descriptor_is_not_taken_for_that_of_its_number_s_next_owner(
    events: list[int],
) -> None:
    """A client ends while another one connects: the end must not be the new one's."""
    loop, called = EventLoop(), []
    first, second = events

    def the_number_changes_hands() -> None:
        loop.remove(second)
        loop.add(second, lambda: called.append("the next owner"))

    loop.add(first, the_number_changes_hands)
    loop.add(second, lambda: called.append("the one that is gone"))
    for fd in events:
        os.eventfd_write(fd, 1)
    loop.dispatch(loop.wait(0))
    assert called == []
    os.eventfd_read(first)
    loop.dispatch(loop.wait(0))
    assert called == ["the next owner"]


def test_waiting_goes_on_when_the_process_has_more_descriptors_than_it_may(
    events: list[int],
) -> None:
    loop, called = EventLoop(), []
    for fd in events:
        loop.add(fd, lambda fd=fd: called.append(fd))  # type: ignore[misc]
    os.eventfd_write(events[1], 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        ready = loop.wait(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    loop.dispatch(ready)
    assert called == [events[1]]
