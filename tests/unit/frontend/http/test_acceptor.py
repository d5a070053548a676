"""New connections: who is taken first, who costs nothing, and what becomes of those left over."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchpool.frontend.http import acceptor as acceptor_module
from batchpool.frontend.http.acceptor import Accepted, Acceptor
from tests.unit.frontend.loops import on_loop, until

CROWD, FEW = "127.9.9.1", "127.9.9.2"
PIECE = b"GET /v2 HTTP/1.1\r\n"


class Scene:
    """An acceptor whose connections get no protocol: they are kept."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.taken: list[Accepted] = []
        self.silent_s = 75.0
        self.alone = ""  # the origin whose callers are the only ones
        self.acceptor = Acceptor(
            [self.listener],
            self.taken.append,
            lambda _: self.silent_s,
            lambda origin: origin == self.alone,
        )
        self.address: tuple[str, int] = self.listener.getsockname()
        self.callers: list[socket.socket] = []

    def call(self, address: str, sent: bytes = PIECE) -> socket.socket:
        caller = socket.socket()
        self.callers.append(caller)
        caller.bind((address, 0))
        caller.connect(self.address)
        caller.sendall(sent)
        return caller

    def order(self) -> list[str]:
        return [accepted.address for accepted in self.taken]

    def close(self) -> None:
        self.acceptor.close()
        for each in [*self.callers, *(accepted.sock for accepted in self.taken)]:
            each.close()


async def most_in_a_turn(scene: Scene, n: int) -> int:
    """The most connections that are taken in one turn of the loop, until n are taken."""
    before, most = 0, 0
    while len(scene.taken) < n:
        await asyncio.sleep(0)
        most = max(most, len(scene.taken) - before)
        before = len(scene.taken)
    return most


@contextmanager
def accepting() -> Iterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        scene.close()


def resets(caller: socket.socket) -> None:
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


def is_closed(caller: socket.socket) -> bool:
    """True if the server has ended the connection."""
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@on_loop
async def test_a_caller_waits_for_none_of_a_crowd_that_came_before() -> None:
    with accepting() as scene:
        for _ in range(50):
            scene.call(CROWD)
        for _ in range(3):
            scene.call(FEW)
        await until(lambda: len(scene.taken) == 53, "all are taken")
        # The first few turns may have seen nothing but the crowd yet.
        assert [at for at, address in enumerate(scene.order()) if address == FEW][-1] < 10


@on_loop
async def test_a_caller_waits_for_no_crowd_that_comes_and_leaves_in_every_turn() -> None:
    with accepting() as scene:
        turns = 0
        while scene.order()[-1:] != [FEW]:
            for _ in range(60):
                scene.call(CROWD, b"GET /v2").close()
                scene.callers.pop()
            if turns == 60:
                scene.call(FEW)
            turns += 1
            assert turns < 65, "more came than were taken"
            await asyncio.sleep(0)
        assert scene.order() == [FEW]


@on_loop
async def test_first_bytes_are_seen_at_once_beside_a_crowd_that_leaves() -> None:
    with accepting() as scene:
        crowd = [scene.call(CROWD) for _ in range(900)]
        await until(lambda: scene.acceptor.size > 600, "most of the crowd waits")
        caller = scene.call(FEW, b"")
        await until(lambda: bool(scene.acceptor.silent_by_address()[FEW]), "it is accepted")
        for each in crowd:
            each.close()
        caller.sendall(PIECE)
        turns = 0
        while FEW not in scene.order():
            turns += 1
            assert turns < 3, "it came behind the crowd"
            await asyncio.sleep(0)


@on_loop
async def test_a_connection_with_a_protocol_is_no_longer_watched() -> None:
    with accepting() as scene:
        callers = [scene.call(CROWD) for _ in range(20)]
        await until(lambda: len(scene.taken) == 20, "all are taken")
        for each in callers:
            each.close()
        scene.call(FEW)
        await until(lambda: len(scene.taken) == 21, "the next one is taken")
        assert not scene.acceptor._watched
        assert not scene.acceptor._waiting_epoll.poll(0)


@on_loop
async def test_only_a_few_are_taken_in_one_turn() -> None:
    with accepting() as scene:
        for _ in range(20):
            scene.call(CROWD)
        assert await most_in_a_turn(scene, 20) == acceptor_module._TURN_CONNECTIONS


@on_loop
async def test_more_are_taken_in_one_turn_where_nobody_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor_module, "_ALONE_TURN_CONNECTIONS", 8)  # fewer than ever come
    with accepting() as scene:
        scene.alone = CROWD
        for _ in range(100):
            scene.call(CROWD)
        assert await most_in_a_turn(scene, 100) == 8


@on_loop
async def test_only_a_few_are_taken_in_one_turn_while_somebody_else_waits() -> None:
    with accepting() as scene:
        scene.alone = CROWD
        for _ in range(20):
            scene.call(CROWD)
        scene.call(FEW)
        while not scene.taken:
            await asyncio.sleep(0)
        assert sorted(scene.order()) == [CROWD, FEW]


@on_loop
async def test_beyond_a_number_that_waits_others_stay_with_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor_module, "_MOST_WAITING", 8)
    with accepting() as scene:
        for number in range(40):
            scene.call(f"127.9.8.{number + 1}")
        most = 0
        while len(scene.taken) < 40:
            await asyncio.sleep(0)
            most = max(most, scene.acceptor.size)
        # Those that are accepted in one turn do not wait yet.
        assert 0 < most <= 16


@on_loop
async def test_a_crowd_beyond_that_number_is_closed_in_part_and_a_caller_behind_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor_module, "_MOST_WAITING", 64)
    with accepting() as scene:
        crowd = [scene.call(CROWD) for _ in range(400)]
        caller = scene.call(FEW)
        most, turns = 0, 0
        while FEW not in scene.order():
            await asyncio.sleep(0)
            most = max(most, scene.acceptor.size)
            turns += 1
        # Half of those that wait are closed in each turn. The two that a turn takes of them would
        # have been 200 turns.
        assert turns < 40
        assert most <= 128
        await until(lambda: scene.acceptor.size == 0, "nobody waits any more")
        assert not scene.acceptor._watched
        # The first ones are served, and who was closed sees it at once.
        assert scene.taken[0].sock.getpeername() == crowd[0].getsockname()
        served = {accepted.sock.getpeername() for accepted in scene.taken}
        assert {each.getsockname() in served for each in (crowd[0], caller)} == {True}
        closed = [each for each in crowd if each.getsockname() not in served]
        assert len(closed) == len(crowd) + 1 - len(scene.taken) > 200
        assert all(map(is_closed, closed))


@on_loop
async def test_who_says_nothing_waits_beside_who_does() -> None:
    with accepting() as scene:
        silent = [scene.call(FEW, b"") for _ in range(20)]
        scene.call(FEW)
        await until(lambda: len(scene.taken) == 1, "the one that speaks is taken")
        await until(lambda: scene.acceptor.size == 20, "the others are accepted")
        silent[7].sendall(PIECE)
        await until(lambda: len(scene.taken) == 2, "it is taken when it speaks")
        assert scene.taken[1].sock.getpeername() == silent[7].getsockname()
        assert scene.acceptor.size == 19


@pytest.mark.parametrize("sent", [b"", b"GET /v2"])
@pytest.mark.parametrize("leaves", [socket.socket.close, resets])
@on_loop
async def test_who_leaves_without_a_request_gets_no_protocol(leaves: Any, sent: bytes) -> None:
    with accepting() as scene:
        for _ in range(30):
            leaves(scene.call(CROWD, sent))
        scene.call(FEW)
        await until(lambda: len(scene.taken) == 1, "the one that stays is taken")
        await until(lambda: scene.acceptor.size == 0, "nothing is left of the others")
        assert scene.order() == [FEW]


@on_loop
async def test_half_a_connection_with_a_request_is_taken() -> None:
    with accepting() as scene:
        scene.call(FEW).shutdown(socket.SHUT_WR)
        await until(lambda: len(scene.taken) == 1, "it is taken")
        assert scene.taken[0].sock.recv(100) == PIECE


@on_loop
async def test_the_silent_end_when_their_time_is_over() -> None:
    with accepting() as scene:
        caller = scene.call(FEW, b"")
        await until(lambda: scene.acceptor.size == 1, "it is accepted")
        now_s = asyncio.get_running_loop().time()
        scene.acceptor.sweep(now_s + 74.0)
        assert not is_closed(caller)
        scene.acceptor.sweep(now_s + 76.0)
        assert is_closed(caller)
        assert scene.acceptor.size == 0


@on_loop
async def test_the_oldest_silent_ones_of_an_address_make_room() -> None:
    with accepting() as scene:
        callers = [scene.call(CROWD, b"") for _ in range(4)]
        other = scene.call(FEW, b"")
        await until(lambda: scene.acceptor.size == 5, "all are accepted")
        assert scene.acceptor.silent_by_address() == {CROWD: 4, FEW: 1}
        assert scene.acceptor.close_silent(CROWD, 2) == 2
        assert [is_closed(caller) for caller in callers] == [True, True, False, False]
        assert scene.acceptor.close_silent(FEW, 5) == 1
        assert is_closed(other)


@on_loop
async def test_at_the_end_who_has_spoken_is_taken_and_who_has_not_is_closed() -> None:
    with accepting() as scene:
        for _ in range(20):
            scene.call(FEW)
        silent = scene.call(FEW, b"")
        await until(lambda: scene.acceptor.size > 0, "they are accepted")
        scene.acceptor.close()
        assert len(scene.taken) == 20
        assert is_closed(silent)
        assert not scene.acceptor.is_serving()
        with pytest.raises(ConnectionRefusedError):
            scene.call(FEW)


@on_loop
async def test_without_descriptors_callers_are_told_at_once_and_later_ones_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with accepting() as scene:
        accept, refused = socket.socket.accept, []

        def no_descriptors(listener: socket.socket) -> Any:
            if not refused:
                refused.append(listener)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", no_descriptors)
        first = scene.call(FEW)
        await until(lambda: is_closed(first), "it is turned away")
        scene.call(FEW)
        await until(lambda: len(scene.taken) == 1, "the next one is served")
