"""The socket of the task process: long results are read when the asker can take them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from batchpool.control.edges import TASK_REPLIES, TaskReply
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.task_messages import (
    CollectResult,
    LookAtTasks,
    TaskRefused,
    TaskResult,
    TaskSubmitted,
)
from batchpool.tasks.server import TaskServer
from tests.unit.tasks.desk import Desk, running


class Asker:
    """A front end's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader(TASK_REPLIES)

    async def replies(self, n: int) -> dict[int, TaskReply]:
        """The next n replies, by their numbers."""
        found: dict[int, TaskReply] = {}
        async with asyncio.timeout(20):
            while len(found) < n:
                found.update(self._frames.feed(await self.reader.read(65536)))
        return found

    async def next_reply(self) -> tuple[int, TaskResult]:
        """The number and the reply that comes next, alone."""
        async with asyncio.timeout(20):
            while piece := await self.reader.read(65536):
                for number, reply in self._frames.feed(piece):
                    assert isinstance(reply, TaskResult)
                    return number, reply
        raise AssertionError("the server hung up")


async def served(desk: Desk, folder: Path) -> tuple[TaskServer, Asker]:
    """The server of a desk, and its one asker."""
    server = TaskServer(desk.answers)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    await server.listen(listener)
    asker = Asker(*await asyncio.open_unix_connection(str(folder / "s")))
    await desk.until(lambda: bool(server.connections))
    return server, asker


def test_new_tasks_of_one_read_share_a_commit_and_a_write(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk()
        server, asker = await served(desk, tmp_path)
        messages = [desk.message([i]) for i in range(20)]
        messages[7] = desk.message([1] * 200)  # of too many bytes
        frames = [frame_of(n, message) for n, message in enumerate(messages)]
        asker.writer.write(b"".join(frames))
        found = await asker.replies(20)
        assert sorted(found) == list(range(20))
        assert isinstance(found.pop(7), TaskRefused)
        assert {type(reply) for reply in found.values()} == {TaskSubmitted}
        assert desk.store.commits == 1
        asker.writer.close()
        await server.until_alone()
        await desk.committer.close()

    asyncio.run(scene())


def test_an_asker_that_has_gone_waits_for_no_end(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk()
        server, asker = await served(desk, tmp_path)
        identifier = await desk.submit([1])
        asker.writer.write(frame_of(1, CollectResult(identifier, wait_ms=20_000)))
        await desk.until(lambda: identifier in desk.ends.ids())
        asker.writer.close()
        await desk.until(lambda: identifier not in desk.ends.ids())
        await server.until_alone()
        await desk.committer.close()

    asyncio.run(scene())


def collected(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the long results that are read from the store, as it goes on."""
    ids: list[str] = []
    real = desk.store.body

    def body(identifier: str) -> bytes | None:
        ids.append(identifier)
        return real(identifier)

    monkeypatch.setattr(desk.store, "body", body)
    return ids


def test_a_long_result_waits_for_its_asker_and_a_short_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        desk = Desk()
        read = collected(desk, monkeypatch)
        server, asker = await served(desk, tmp_path)
        long, short = await desk.submit([1000] * 20), await desk.submit([1])
        async with running(desk):
            await desk.until_state(long, "done")
            await desk.until_state(short, "done")
            desk.store.long_bytes = len(desk.body(long))
            (connection,) = server.connections
            connection.pause_writing()
            frames = [frame_of(n, CollectResult(t)) for n, t in enumerate((long, short))]
            asker.writer.write(b"".join(frames))
            assert (await asker.next_reply())[0] == 1
            assert read == []
            connection.resume_writing()
            number, reply = await asker.next_reply()
            assert (number, reply.body) == (0, desk.body(long))
            assert read == [long]

            connection.pause_writing()
            asker.writer.write(b"".join(frames))
            assert (await asker.next_reply())[0] == 1
            asker.writer.close()
            await desk.until(lambda: not server.connections)
            connection.resume_writing()
            for _ in range(3):
                await desk.committer.ask("look", long)
            assert read == [long], "of an asker that is gone nothing is read"
            await server.until_alone()

    asyncio.run(scene())


def test_many_questions_for_one_result_wait_and_keep_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait for the end of one task: its result is written as the asker takes it."""
    monkeypatch.setattr("batchpool.tasks.server._SMALL_BYTES", 10)
    monkeypatch.setattr("batchpool.tasks.server._TURN_BYTES", 1000)

    async def scene() -> None:
        desk = Desk()
        server, asker = await served(desk, tmp_path)
        identifier = await desk.submit([1000])
        async with running(desk):
            await desk.until_state(identifier, "done")
            (connection,) = server.connections
            connection.pause_writing()
            asked = [frame_of(n, CollectResult(identifier)) for n in range(200)]
            asker.writer.write(b"".join(asked) + frame_of(999, LookAtTasks((identifier,))))
            assert list(await asker.replies(1)) == [999]
            await desk.until(lambda: len(connection._results) == 200)
            connection.resume_writing()
            found = await asker.replies(200)
            assert sorted(found) == list(range(200))
            assert {reply.body for reply in found.values() if isinstance(reply, TaskResult)} == {
                desk.body(identifier)
            }
            connection.pause_writing()
            asker.writer.write(b"".join(asked))
            await desk.until(lambda: len(connection._results) == 200)
            asker.writer.close()
            await desk.until(lambda: not connection._results)
            await server.until_alone()

    asyncio.run(scene())
