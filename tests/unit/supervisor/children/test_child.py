"""Telling a child: in order, kept while it is busy, and never half."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from batchpool.control.channel import close_all, pair
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, ProcessSlot, start_child
from tests.unit.shm.scarcity import no_descriptors, open_files
from tests.unit.supervisor.children.watch import ProcessDouble


class Nursery:
    """A child that is none, and its end of the channel."""

    def __init__(self) -> None:
        ours, self.theirs = pair()
        for end in (ours, self.theirs):
            end.sock.setblocking(False)
        self.process = ProcessDouble(7)
        self.child = Child("batcher", ProcessSlot("batcher"), cast(Any, self.process), ours, -1, 0)

    def fill(self) -> int:
        """Tell it so much that something must be kept; how many messages that are."""
        told = 0
        while not self.child.outbox:
            self.child.tell({"op": str(told), "fill": bytes(20_000)})
            told += 1
        return told

    def hear(self) -> list[str]:
        ops = []
        while True:
            try:
                message, fds = self.theirs.receive()
            except BlockingIOError:
                if not self.child.outbox:
                    return ops
                self.child.flush()
            else:
                close_all(fds)
                ops.append(message["op"])


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.theirs.close()
    nursery.child.close()


def test_what_is_kept_comes_later_and_in_order(nursery: Nursery) -> None:
    told = nursery.fill()
    read, write = os.pipe()
    nursery.child.tell({"op": "last"}, [read])
    close_all([read, write])  # what is kept has descriptors of its own
    assert nursery.hear() == [*map(str, range(told)), "last"]


def test_nothing_is_kept_for_a_child_that_reads(nursery: Nursery) -> None:
    with no_descriptors():
        nursery.child.tell({"op": "lane"}, [0, 1])
    assert (nursery.hear(), nursery.process.signals) == (["lane"], [])


def test_a_child_that_cannot_be_told_is_replaced(nursery: Nursery) -> None:
    """It would work with lanes that are no more, and without those that came."""
    nursery.fill()
    with no_descriptors(but=1):
        before = len(nursery.child.outbox)
        nursery.child.tell({"op": "lane"}, [0, 1])
    assert nursery.process.signals == [signal.SIGKILL]
    assert nursery.child.reason().startswith("could not be told what it must know: too many open")
    assert len(nursery.child.outbox) == before


def test_what_can_be_sent_later_is_kept_also_without_a_descriptor(nursery: Nursery) -> None:
    with no_descriptors():
        nursery.child.tell({"op": "limits", "fill": bytes(200_000)})
        assert (len(nursery.child.outbox), nursery.process.signals) == (1, [])
    assert nursery.hear() == ["limits"]


def test_a_child_that_has_gone_is_told_nothing(nursery: Nursery) -> None:
    nursery.fill()
    nursery.theirs.close()
    nursery.child.tell({"op": "late"}, [0])
    assert (list(nursery.child.outbox), nursery.process.signals) == ([], [])


def test_no_descriptor_for_a_child_is_told_and_costs_nothing() -> None:
    before = open_files()
    refused = []
    for but in range(12):
        try:
            with no_descriptors(but=but):
                child = start_child("batcher", ["this"], ProcessSlot("batcher"), started_ns=0)
        except StartError as exc:
            refused.append((but, str(exc).partition(" files: ")[0]))
        else:
            child.process.wait()
            child.close()
        assert open_files() == before
    text = "cannot start batcher: too many open"
    assert refused == [(but, text) for but in range(len(refused))], "with more it goes too"
    assert 2 <= len(refused) < 12, "two ends of a channel are the least"


def test_nothing_is_kept_for_a_child_that_was_killed(nursery: Nursery) -> None:
    """It may be long in ending, and what is kept for it holds descriptors of lanes."""
    nursery.fill()
    nursery.child.kill()
    before = open_files()
    nursery.child.tell({"op": "lane"}, [0, 1])
    assert (list(nursery.child.outbox), open_files()) == ([], before)


def test_a_post_that_nobody_can_be_had_for_waits_longer_each_time() -> None:
    post = ProcessSlot("frontend 0")
    assert [post.start_failed_s(StartError("no room")) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert (post.last_error, post.restarts) == ("no room", 3)
