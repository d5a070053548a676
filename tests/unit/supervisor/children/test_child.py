"""Messages to a child: in order, kept while it is busy, never half; restarts and exemptions."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from batchpool.control.channel import close_all, pair
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, Exemption, ProcessSlot, start_child
from batchpool.supervisor.children.roles import BATCHER, FRONTEND, Role
from tests.unit.control.packets import Named, receive_form
from tests.unit.shm.scarcity import no_descriptors, open_files
from tests.unit.supervisor.children.watchdog_scene import ProcessDouble


def named(name: str, fill: bytes = b"") -> Any:
    """A message that a child may be told as well as any other."""
    return Named(name, fill)


class ChildScene:
    """A child without a process, and the other end of its channel."""

    def __init__(self) -> None:
        ours, self.theirs = pair()
        for end in (ours, self.theirs):
            end.sock.setblocking(False)
        self.process = ProcessDouble(7)
        self.child = Child(BATCHER, ProcessSlot("batcher"), cast(Any, self.process), ours, -1, 0)

    def fill(self) -> int:
        """Tell it so much that something must be kept; how many messages that are."""
        told = 0
        while not self.child.outbox:
            self.child.send(named(str(told), bytes(20_000)))
            told += 1
        return told

    def hear(self) -> list[str]:
        ops = []
        while True:
            try:
                message, fds = receive_form(self.theirs)
            except BlockingIOError:
                if not self.child.outbox:
                    return ops
                self.child.flush()
            else:
                close_all(fds)
                ops.append(message["name"])


@pytest.fixture
def scene() -> Iterator[ChildScene]:
    scene = ChildScene()
    yield scene
    scene.theirs.close()
    scene.child.close()


def test_what_is_kept_comes_later_and_in_order(scene: ChildScene) -> None:
    told = scene.fill()
    read, write = os.pipe()
    scene.child.send(named("last"), [read])
    close_all([read, write])  # what is kept has descriptors of its own
    assert scene.hear() == [*map(str, range(told)), "last"]


def test_a_kept_message_may_be_withdrawn_and_a_sent_one_not(scene: ChildScene) -> None:
    last = str(scene.fill() - 1)
    scene.child.send(named("withdrawn"), [0])
    scene.child.send(named("behind"))
    before = open_files()
    assert scene.child.withdraw(lambda message: message == named("withdrawn"))
    assert open_files() == before - 1
    assert not scene.child.withdraw(lambda message: message == named("withdrawn"))
    assert not scene.child.withdraw(lambda message: message == named("0"))
    assert scene.hear()[-2:] == [last, "behind"]


def test_nothing_is_kept_for_a_child_that_reads(scene: ChildScene) -> None:
    with no_descriptors():
        scene.child.send(named("lane"), [0, 1])
    assert (scene.hear(), scene.process.signals) == (["lane"], [])


def test_a_child_that_cannot_be_told_is_replaced(scene: ChildScene) -> None:
    """It would work with lanes that are no more, and without those that came."""
    scene.fill()
    with no_descriptors(but=1):
        before = len(scene.child.outbox)
        scene.child.send(named("lane"), [0, 1])
    assert scene.process.signals == [signal.SIGKILL]
    assert scene.child.reason().startswith("could not be told what it must know: too many open")
    assert len(scene.child.outbox) == before


def test_what_can_be_sent_later_is_kept_also_without_a_descriptor(scene: ChildScene) -> None:
    with no_descriptors():
        scene.child.send(named("limits", bytes(200_000)))
        assert (len(scene.child.outbox), scene.process.signals) == (1, [])
    assert scene.hear() == ["limits"]


def test_a_child_that_has_gone_is_told_nothing(scene: ChildScene) -> None:
    scene.fill()
    scene.theirs.close()
    scene.child.send(named("late"), [0])
    assert (list(scene.child.outbox), scene.process.signals) == ([], [])


def test_no_descriptor_for_a_child_is_told_and_costs_nothing() -> None:
    before = open_files()
    refused = []
    for but in (*range(8), 11):
        try:
            with no_descriptors(but=but):
                child = start_child(
                    replace(BATCHER, module="this"), ProcessSlot("batcher"), started_ns=0
                )
        except StartError as exc:
            refused.append((but, str(exc).partition(" files: ")[0]))
        else:
            child.process.wait()
            child.close()
        assert open_files() == before
    text = "cannot start batcher: too many open"
    assert refused == [(but, text) for but in range(len(refused))], "with more it goes too"
    assert 2 <= len(refused) < 8, "two ends of a channel are the least"


def test_nothing_is_kept_for_a_child_that_was_killed(scene: ChildScene) -> None:
    """It may be long in ending, and what is kept for it holds descriptors of lanes."""
    scene.fill()
    scene.child.kill()
    before = open_files()
    scene.child.send(named("lane"), [0, 1])
    assert (list(scene.child.outbox), open_files()) == ([], before)


def test_a_slot_that_nobody_can_be_had_for_waits_longer_each_time() -> None:
    slot = ProcessSlot("frontend 0")
    assert [slot.start_failed_s(StartError("no room")) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert (slot.last_error, slot.restarts) == ("no room", 3)


def test_only_the_wait_between_two_readings_after_the_last_progress_counts() -> None:
    exemption = Exemption()
    exemption.add_wait(100, 7_000, 110)
    assert exemption.until_ns == 0, "nobody knows when these 7,000 were"
    exemption.add_wait(100, 7_006, 120)
    assert exemption.until_ns == 106
    exemption.add_wait(100, 7_500, 130)
    assert exemption.until_ns == 116, "no more than the time itself"
    exemption.add_wait(100, 10, 140)
    assert exemption.until_ns == 116, "a thread has ended"
    exemption.add_wait(200, 9_000, 210)
    assert exemption.until_ns == 116, "the last reading was before the progress"
    exemption.add_wait(200, 9_004, 220)
    assert exemption.until_ns == 204


@pytest.mark.parametrize("role", [BATCHER, FRONTEND])
@pytest.mark.parametrize("fails", [True, False])
def test_signals_are_blocked_only_until_a_child_has_begun(
    role: Role, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child inherits what is blocked, and ends it when it has set its signal actions."""
    inherited: list[set[signal.Signals]] = []

    def start(command: list[str], **_: Any) -> ProcessDouble:
        inherited.append({signal.Signals(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        if fails:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return ProcessDouble(os.getpid())

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(subprocess, "Popen", start)
    if fails:
        with pytest.raises(StartError, match="cannot start it"):
            start_child(role, ProcessSlot("it"), started_ns=0)
    else:
        start_child(role, ProcessSlot("it"), started_ns=0).close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    (blocked,) = inherited
    assert blocked - set(before) >= {signal.SIGINT, signal.SIGHUP} - set(before)
    assert (signal.SIGTERM in blocked) == (role is BATCHER)
