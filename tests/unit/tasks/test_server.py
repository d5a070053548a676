"""The socket of the task process: long results are read when the asker can take them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchpool.control.edges import TASK_REPLIES
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.task_messages import CollectResult, TaskResult
from batchpool.tasks.server import TaskServer
from tests.unit.tasks.desk import Desk, running


class Asker:
    """A front end's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader(TASK_REPLIES)

    async def next_reply(self) -> tuple[int, TaskResult]:
        """The number and the reply that comes next, alone."""
        async with asyncio.timeout(20):
            while piece := await self.reader.read(65536):
                for number, reply in self._frames.feed(piece):
                    assert isinstance(reply, TaskResult)
                    return number, reply
        raise AssertionError("the server hung up")


def collected(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the results that are read from the store, as it goes on."""
    ids: list[str] = []
    real = desk.store.collect

    def collect(given: Sequence[str], now_ms: int) -> Any:
        ids.extend(given)
        return real(given, now_ms)

    monkeypatch.setattr(desk.store, "collect", collect)
    return ids


def test_a_long_result_waits_for_its_asker_and_a_short_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        desk = Desk()
        read = collected(desk, monkeypatch)
        server = TaskServer(desk.answers)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        await server.listen(listener)
        long, short = await desk.submit([1000] * 20), await desk.submit([1])
        async with running(desk):
            await desk.until_state(long, "done")
            await desk.until_state(short, "done")
            desk.store.long_bytes = len(desk.body(long))
            asker = Asker(*await asyncio.open_unix_connection(str(tmp_path / "s")))
            await desk.until(lambda: bool(server.connections))
            (connection,) = server.connections
            connection.pause_writing()
            frames = [frame_of(n, CollectResult(t)) for n, t in enumerate((long, short))]
            asker.writer.write(b"".join(frames))
            assert (await asker.next_reply())[0] == 1
            assert read == [short]
            connection.resume_writing()
            number, reply = await asker.next_reply()
            assert (number, reply.body) == (0, desk.body(long))
            assert read == [short, long]

            connection.pause_writing()
            asker.writer.write(b"".join(frames))
            assert (await asker.next_reply())[0] == 1
            asker.writer.close()
            await desk.until(lambda: not server.connections)
            connection.resume_writing()
            for _ in range(3):
                await desk.committer.ask("look", long)
            assert read == [short, long, short], "of an asker that is gone nothing is read"
            await server.until_alone()

    asyncio.run(scene())
