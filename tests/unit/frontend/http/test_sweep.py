"""Waits of one connection, to the second: the clock and the transport are the test's own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from batchpool.frontend.http.connection import Connection, sweep_all
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.loop_scheduler import LoopScheduler
from batchpool.frontend.http.memory_budget import MemoryBudget
from batchpool.frontend.http.read_turns import ReadTurns
from batchpool.frontend.server import Server

GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
KIB = 1024


class Transport(asyncio.Transport):
    """A transport whose buffer the test fills and empties."""

    def __init__(self) -> None:
        self.buffered = 0
        self.ended = ""
        self.reading = True
        self.written = b""
        self.sock, self._theirs = socket.socketpair()
        super().__init__({"socket": self.sock})

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return bool(self.ended)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def free(self) -> None:
        self.sock.close()
        self._theirs.close()


class Task:
    """A task that does not end."""

    def add_done_callback(self, callback: Any) -> None:
        pass


class Limited(Connection):
    limits: ClassVar[ConnectionLimits] = ConnectionLimits(30.0, 120.0, 75.0, 1000)
    memory: ClassVar[MemoryBudget]


class Scene:
    """Connections of one server at a time of the test's. They share a budget of 100 KiB."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.memory = MemoryBudget(100 * KIB)
        self._protocol = cast(
            type[Connection],
            type(
                "C",
                (Limited,),
                {"memory": self.memory, "turns": ReadTurns(), "scheduler": LoopScheduler()},
            ),
        )
        loop = SimpleNamespace(
            time=lambda: self.now_s,
            create_task=self._keep,
            call_later=lambda *_: None,
            call_soon=lambda *_: None,
        )
        self._loop = cast(Any, loop)
        self._server = Server(
            cast(Any, self._app), drain_s=1.0, give_up=lambda: None, protocol=self._protocol
        )
        self._server.config.load()
        self.opened: list[Connection] = []

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """Never runs: a request that was taken stays under way."""

    def _keep(self, coroutine: Any, **_: Any) -> Any:
        coroutine.close()
        return Task()

    def connect(self) -> tuple[Connection, Transport]:
        state = self._server.server_state
        connection = self._protocol(self._server.config, state, {}, self._loop)
        transport = Transport()
        connection.connection_made(cast(Any, transport))
        self.opened.append(connection)
        return connection, transport

    def sweep(self, after_s: float) -> None:
        """Let time pass, and sweep all connections."""
        self.now_s += after_s
        sweep_all(self.opened, self.now_s)

    def close(self) -> None:
        for connection in self.opened:
            transport = cast(Any, connection.transport)
            connection.connection_lost(None)
            transport.free()
        assert self.memory.held_bytes == 0, "nothing is held of connections that have ended"


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_an_idle_connection_is_closed_behind_its_limit(scene: Scene) -> None:
    _, transport = scene.connect()
    scene.sweep(75.0)
    assert transport.ended == ""
    scene.sweep(0.5)
    assert (transport.ended, transport.written) == ("closed", b"")


def test_a_request_under_way_is_not_idle(scene: Scene) -> None:
    connection, transport = scene.connect()
    connection.data_received(GET)
    scene.sweep(1000.0)
    assert transport.ended == ""


def test_a_sender_that_stops_is_told_after_a_stall(scene: Scene) -> None:
    connection, transport = scene.connect()
    scene.sweep(70.0)
    connection.data_received(GET[:9])
    scene.sweep(30.0)
    assert transport.ended == ""
    scene.sweep(0.5)
    assert transport.ended == "closed"
    assert transport.written.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"no more of it came for 30 s" in transport.written


def test_a_trickle_ends_at_the_limit_of_an_arrival(scene: Scene) -> None:
    connection, transport = scene.connect()
    for at in range(6):
        connection.data_received(GET[at : at + 1])
        scene.sweep(20.0)
    assert transport.ended == ""
    connection.data_received(GET[6:7])
    scene.sweep(0.5)
    assert b"the request was not complete within 120 s" in transport.written


def test_time_in_which_the_server_does_not_read_is_not_the_callers(scene: Scene) -> None:
    connection, transport = scene.connect()
    connection.data_received(GET[:9])
    scene.sweep(10.0)
    connection.flow.pause_reading()
    for _ in range(20):
        scene.sweep(20.0)
    assert transport.ended == ""
    connection.flow.resume_reading()
    scene.sweep(30.0)
    assert transport.ended == ""
    scene.sweep(0.5)
    assert b" 408 " in transport.written


@pytest.mark.parametrize("sent", [GET[:9], b""], ids=["arriving", "idle"])
def test_who_is_never_read_again_is_cut_and_told(
    scene: Scene, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    connection, transport = scene.connect()
    connection.data_received(sent)
    connection.flow.pause_reading()
    for _ in range(24):
        scene.sweep(20.0)
    scene.sweep(20.0)
    assert transport.ended == "", "480 s since the first look"
    scene.sweep(0.5)
    assert transport.ended == "aborted"
    assert "was not read from for 480 s, although nothing was under way" in caplog.text


def test_who_is_read_now_and_then_or_waits_for_an_answer_is_not_cut(scene: Scene) -> None:
    trickles, waits = scene.connect(), scene.connect()
    waits[0].data_received(GET)
    for connection, _ in (trickles, waits):
        connection.flow.pause_reading()
    for at in range(9):
        scene.now_s += 0.1
        trickles[0].data_received(GET[at : at + 1])
        for _ in range(6):
            scene.sweep(60.0)
    assert (trickles[1].ended, waits[1].ended) == ("", "")


def test_a_reader_that_takes_nothing_is_cut_after_a_stall(scene: Scene) -> None:
    _, transport = scene.connect()
    transport.buffered = 4 * KIB
    scene.sweep(1.0)
    scene.sweep(30.0)
    assert transport.ended == ""
    scene.sweep(0.5)
    assert transport.ended == "aborted"


def test_a_reader_that_takes_a_little_is_not_cut(scene: Scene) -> None:
    _, transport = scene.connect()
    transport.buffered = 4 * KIB
    for _ in range(20):
        scene.sweep(29.0)
        transport.buffered -= 1
    assert transport.ended == ""
    scene.sweep(29.0)
    scene.sweep(29.0)
    scene.sweep(2.0)
    assert transport.ended == "aborted"


def test_unsent_bytes_are_held_until_they_are_taken(scene: Scene) -> None:
    connection, transport = scene.connect()
    transport.buffered = 70 * KIB
    connection.pause_writing()
    assert scene.memory.held_bytes == 70 * KIB
    transport.buffered = 20 * KIB
    scene.sweep(0.1)
    assert scene.memory.held_bytes == 20 * KIB
    connection.resume_writing()
    assert scene.memory.held_bytes == 0


def test_while_memory_is_short_the_one_that_is_most_behind_is_cut_first(scene: Scene) -> None:
    small, large, newcomer = (scene.connect() for _ in range(3))
    for (connection, transport), held in ((small, 10 * KIB), (large, 60 * KIB)):
        transport.buffered = held
        connection.pause_writing()
    scene.sweep(0.9)
    newcomer[1].buffered = 40 * KIB
    newcomer[0].pause_writing()
    assert scene.memory.is_full
    scene.sweep(0.1)
    assert [one.ended for _, one in (small, large, newcomer)] == ["", "", ""], "not for long"
    scene.sweep(0.1)
    assert [one.ended for _, one in (small, large, newcomer)] == ["", "aborted", ""]
    assert scene.memory.held_bytes == 50 * KIB


def test_who_is_behind_is_left_alone_while_there_is_memory(scene: Scene) -> None:
    connection, transport = scene.connect()
    transport.buffered = 99 * KIB
    connection.pause_writing()
    scene.sweep(10.0)
    assert transport.ended == ""


def test_nobody_resumes_reading_while_it_is_held(scene: Scene) -> None:
    connection, transport = scene.connect()
    connection.flow.hold_reading()
    connection.flow.resume_reading()
    assert (transport.reading, connection.flow.is_held) == (False, True)
    connection.flow.let_read()
    assert (transport.reading, connection.flow.is_held) == (True, False)


def test_a_caller_with_much_behind_a_request_is_read_no_more(scene: Scene) -> None:
    connection, transport = scene.connect()
    connection.data_received(GET)
    connection.data_received(bytes(64 * KIB))
    assert transport.reading
    connection.data_received(b"x")
    assert not transport.reading
    assert scene.memory.held_bytes == 64 * KIB + 1
