"""Connections of local programs: who is closed in time, who is dropped, who is left unread."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from batchpool.control.channel import Channel, Closed
from batchpool.control.peer import Peer
from batchpool.control.stranger_channel import StrangerChannel
from batchpool.supervisor import local_clients
from batchpool.supervisor.event_loop import EventLoop
from batchpool.supervisor.local_clients import LocalClients
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from tests.unit.control.packets import receive_form

S = 10**9
STRANGER = 77777  # neither root nor the user of these tests


class ControlServerDouble:
    """Accepts what the test connects, and takes as long for a message as the test says."""

    def __init__(self, scene: Scene) -> None:
        self.local: list[ClientConnection] = []
        self.heard = 0
        self.takes_ns = 0
        self.shortage: OSError | None = None
        self.is_here = True
        self.dropped: list[ClientConnection] = []
        self._scene = scene

    def accept(self) -> ClientConnection | None:
        if self.shortage is not None:
            raise self.shortage
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        self._scene.theirs.append(Channel(theirs))
        number = len(self._scene.theirs)
        client = ClientConnection(
            f"client {number}", StrangerChannel(ours), Peer(1, self._scene.uid, 1),
            self._scene.pidfd, number=number,
        )  # fmt: skip
        self.local.append(client)
        return client

    def hear(self, client: ClientConnection) -> bool:
        client.channel.sock.recv(100)
        self.heard += 1
        self._scene.now_ns += self.takes_ns
        return self.is_here

    def drop(self, client: ClientConnection) -> None:
        self.local.remove(client)
        self.dropped.append(client)
        client.close()


class Scene:
    """Local clients with a clock of the test's. theirs: the other ends, in order."""

    def __init__(self) -> None:
        self.now_ns = 100 * S
        self.uid = STRANGER
        self.pidfd = -1
        self.theirs: list[Channel] = []
        self.loop = EventLoop()
        self.server = ControlServerDouble(self)
        self._listener, self._knock = socket.socketpair()
        self.clients = LocalClients(self.loop, self._listener, cast(Any, self.server))

    def connect(self) -> ClientConnection:
        self._knock.send(b"x")
        self.turn()
        self._listener.recv(1)
        return self.server.local[-1]

    def turn(self) -> None:
        self.loop.dispatch(self.loop.wait(0))

    def tick(self, now_ns: int) -> int:
        self.now_ns = now_ns
        return self.clients.tick(now_ns)

    def is_open(self, at: int) -> bool:
        try:
            receive_form(self.theirs[at])
        except BlockingIOError:
            return True
        except Closed:
            return False
        return self.is_open(at)

    def close(self) -> None:
        for client in list(self.server.local):
            self.server.drop(client)
        for channel in self.theirs:
            channel.close()
        self._listener.close()
        self._knock.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene()
    monkeypatch.setattr(local_clients.time, "monotonic_ns", lambda: scene.now_ns)
    yield scene
    monkeypatch.undo()
    scene.close()


def test_a_connection_that_says_nothing_is_closed_after_five_seconds(scene: Scene) -> None:
    scene.connect()
    assert scene.tick(100 * S + 1) == 105 * S
    assert scene.tick(105 * S - 1) == 105 * S
    assert scene.is_open(0)
    assert scene.tick(105 * S) == 2**63 - 1
    form, _ = receive_form(scene.theirs[0])
    assert form["error"] == "the connection neither attached nor asked anything in time"
    assert not scene.is_open(0)


def test_one_that_has_asked_has_a_minute_for_the_next_question(scene: Scene) -> None:
    scene.connect()
    scene.now_ns = 103 * S
    scene.theirs[0].sock.send(b"status")
    scene.turn()
    assert scene.tick(120 * S) == 163 * S
    assert scene.is_open(0)
    scene.tick(163 * S)
    assert not scene.is_open(0)


def test_who_has_attached_or_waits_for_a_reply_may_be_silent(scene: Scene) -> None:
    attached, waiting = scene.connect(), scene.connect()
    attached.bells, waiting.waits = HeldBells.of_local_client(), True
    assert scene.tick(1000 * S) == 2**63 - 1
    assert scene.is_open(0)
    assert scene.is_open(1)


def test_a_user_who_takes_too_much_time_is_left_unread_for_a_while(scene: Scene) -> None:
    client = scene.connect()
    client.bells = HeldBells.of_local_client()
    scene.server.takes_ns = S // 10
    for _ in range(10):
        scene.theirs[0].sock.send(b"status")
    for _ in range(10):
        scene.turn()
    assert scene.server.heard == 6, "half a second of work, and what was begun"
    due_ns = scene.tick(scene.now_ns)
    assert scene.now_ns < due_ns < scene.now_ns + S
    scene.tick(due_ns)
    scene.turn()
    assert scene.server.heard == 7


def test_root_and_the_pools_user_are_always_read(scene: Scene) -> None:
    scene.uid = 0
    scene.connect()
    scene.server.takes_ns = S
    for _ in range(8):
        scene.theirs[0].sock.send(b"status")
        scene.turn()
    assert scene.server.heard == 8


def test_without_descriptors_nobody_is_taken_for_a_second(scene: Scene) -> None:
    """The socket stays readable: the loop would turn without end."""
    scene.server.shortage = OSError(errno.EMFILE, "Too many open files")
    scene._knock.send(b"x")
    scene.turn()
    assert scene.loop.wait(0) == [], "it is left alone"
    assert scene.tick(100 * S + 1) == 101 * S
    assert scene.tick(101 * S - 1) == 101 * S
    scene.server.shortage = None
    scene.turn()
    assert scene.server.local == []
    assert scene.tick(101 * S) == 2**63 - 1
    scene.turn()
    assert len(scene.server.local) == 1


def test_a_client_that_is_gone_when_it_is_heard_is_dropped(scene: Scene) -> None:
    gone = scene.connect()
    scene.server.is_here = False
    scene.theirs[0].sock.send(b"status")
    scene.turn()
    assert (scene.server.dropped, scene.is_open(0)) == ([gone], False)
    scene.turn()
    assert scene.server.heard == 1


def test_a_client_whose_process_has_ended_is_dropped_although_its_socket_is_open(
    scene: Scene,
) -> None:
    """A forked child of it may hold the socket."""
    scene.pidfd = os.eventfd(0)
    ended = scene.connect()
    other_end = os.dup(scene.pidfd)
    assert scene.server.dropped == []
    os.eventfd_write(other_end, 1)
    scene.turn()
    os.close(other_end)
    assert scene.server.dropped == [ended]
    assert scene.loop.wait(0) == []


def test_of_two_silent_connections_the_next_to_be_closed_sets_the_time(scene: Scene) -> None:
    scene.connect()
    scene.now_ns = 102 * S
    scene.connect()
    assert scene.tick(103 * S) == 105 * S
    assert scene.tick(105 * S) == 107 * S
    assert (scene.is_open(0), scene.is_open(1)) == (False, True)
