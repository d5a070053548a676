"""The link of a front end to the task process: what breaks is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from msgspec import Raw

from batchpool.control.edges import TO_TASKS
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.messages import Message
from batchpool.control.task_messages import (
    CancelTask,
    CollectResult,
    LookAtTasks,
    MarkRead,
    SubmitTask,
    TaskForm,
    TaskRefused,
    TaskResult,
    TaskStates,
)
from batchpool.core.errors import (
    IdempotencyMismatch,
    InternalError,
    NotReady,
    PoolError,
    StorageFull,
    TaskCancelled,
    TasksFull,
)
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.service.task_link import TaskLink, refusal
from batchpool.wire.left_out import LeftOut
from batchpool.wire.task_form import pack_input

Answer = Callable[[int, Message], bytes | None]


handlers: set[asyncio.Task[None] | None] = set()


async def end(link: TaskLink, server: asyncio.Server) -> None:
    """Close both ends and wait until nothing of them is left."""
    link.close()
    server.close()
    await asyncio.gather(*(handler for handler in handlers if handler is not None))
    handlers.clear()
    await asyncio.sleep(0.01)


async def serve(path: Path, answer: Answer) -> asyncio.Server:
    """A task process: `answer` gives the bytes for a message, or None to hang up."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(TO_TASKS)
        handlers.add(asyncio.current_task())
        with suppress(ConnectionError), closing(writer):
            while piece := await reader.read(65536):
                for number, message in frames.feed(piece):
                    found = answer(number, message)
                    if found is None:
                        return
                    writer.write(found)

    return await asyncio.start_unix_server(connected, path)


def states(identifier: str) -> TaskStates:
    return TaskStates((TaskForm(identifier, "queued", "m"),))


def test_a_question_is_asked_again_where_the_connection_breaks(tmp_path: Path) -> None:
    async def scene() -> None:
        asked: list[str] = []

        def answer(number: int, message: Message) -> bytes | None:
            assert isinstance(message, LookAtTasks)
            asked.append(message.ids[0])
            return None if len(asked) <= 2 else frame_of(number, states(message.ids[0]))

        link = TaskLink(str(tmp_path / "s"))
        waiting = [asyncio.create_task(link.ask(LookAtTasks((name,)), TaskStates)) for name in "ab"]
        await asyncio.sleep(0.05)  # nobody listens yet
        server = await serve(tmp_path / "s", answer)
        found = await asyncio.gather(*waiting)
        assert [reply.tasks[0].id for reply in found] == ["a", "b"]
        assert (await link.ask(LookAtTasks(("c",)), TaskStates)).tasks[0].id == "c"
        assert asked.count("c") == 1
        await end(link, server)

    asyncio.run(scene())


def test_replies_come_in_any_order(tmp_path: Path) -> None:
    async def scene() -> None:
        held: list[tuple[int, Message]] = []

        def answer(number: int, message: Message) -> bytes:
            held.append((number, message))
            if len(held) < 3:
                return b""
            return b"".join(
                frame_of(number, states(message.ids[0]))
                for number, message in reversed(held)
                if isinstance(message, LookAtTasks)
            )

        server = await serve(tmp_path / "s", answer)
        link = TaskLink(str(tmp_path / "s"))
        asking = [link.ask(LookAtTasks((name,)), TaskStates) for name in "abc"]
        found = await asyncio.gather(*asking)
        assert [reply.tasks[0].id for reply in found] == ["a", "b", "c"]
        await end(link, server)

    asyncio.run(scene())


def test_results_that_were_read_are_told_together(tmp_path: Path) -> None:
    """One that broke off on the way is not: its caller may have gone when the task ended."""

    async def scene() -> None:
        asked: list[Message] = []
        is_read = asyncio.Event()

        def answer(number: int, message: Message) -> bytes:
            asked.append(message)
            if isinstance(message, MarkRead):
                is_read.set()
                return frame_of(number, TaskStates(()))
            assert isinstance(message, CollectResult)
            return frame_of(number, TaskResult(TaskForm(message.id, "done", "m"), 200))

        server = await serve(tmp_path / "s", answer)
        link = TaskLink(str(tmp_path / "s"))
        assert (await link.result("a", "me", 20)).status == 200
        assert (await link.result("b", "me", 0)).status == 200
        assert asked == [CollectResult("a", "me", 20_000), CollectResult("b", "me")]
        link.mark_read("a")
        link.mark_read("b")
        await is_read.wait()
        assert asked[2:] == [MarkRead(("a", "b"))]
        await end(link, server)

    asyncio.run(scene())


def test_what_was_read_is_told_when_the_front_end_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        asked: list[Message] = []

        def answer(number: int, message: Message) -> bytes:
            asked.append(message)
            return frame_of(number, TaskStates(()))

        server = await serve(tmp_path / "s", answer)
        link = TaskLink(str(tmp_path / "s"))
        await link.ask(LookAtTasks(("a",)), TaskStates)
        link.mark_read("a")
        await end(link, server)
        assert asked[1:] == [MarkRead(("a",))]

    asyncio.run(scene())


def test_an_asker_that_has_gone_is_told_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        server = await serve(tmp_path / "s", lambda number, _: frame_of(number, states("x")))
        link = TaskLink(str(tmp_path / "s"))
        told: list[object] = []
        number = link.send(LookAtTasks(("x",)), told.append)
        link.forget(number)
        link.send(LookAtTasks(("x",)), told.append)
        await link.ask(LookAtTasks(("x",)), TaskStates)
        assert told == [states("x")]
        await end(link, server)

    asyncio.run(scene())


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    async def scene() -> None:
        link = TaskLink(str(tmp_path / "s"), patience_s=0.05)
        with pytest.raises(NotReady, match="does not answer"):
            await link.ask(CancelTask("t"), TaskStates)
        assert await link.status() is None
        link.close()

    asyncio.run(scene())


def test_a_reply_of_another_kind_is_a_fault(tmp_path: Path) -> None:
    async def scene() -> None:
        server = await serve(tmp_path / "s", lambda number, _: frame_of(number, states("x")))
        link = TaskLink(str(tmp_path / "s"))
        with pytest.raises(InternalError, match="TaskStates"):
            await link.ask(CancelTask("t"), TaskRefused)
        await end(link, server)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("tasks_full", TasksFull),
        ("storage_full", StorageFull),
        ("idempotency_mismatch", IdempotencyMismatch),
        ("not_ready", NotReady),
        ("nothing known", InternalError),
    ],
)
def test_a_refusal_is_the_error_of_its_code(code: str, kind: type[PoolError]) -> None:
    found = refusal(TaskRefused(code, "why", 2000))
    assert type(found) is kind
    assert found.message == "why"
    assert TaskCancelled("x").status == 409


def test_many_replies_are_given_on_in_several_turns_of_the_loop(tmp_path: Path) -> None:
    """So that other connections are read in between; one that fails holds up no other."""

    async def scene() -> None:
        held: list[int] = []

        def answer(number: int, message: Message) -> bytes:
            held.append(number)
            return b"" if len(held) < 40 else b"".join(frame_of(n, states("t")) for n in held)

        server = await serve(tmp_path / "s", answer)
        link = TaskLink(str(tmp_path / "s"))
        turns = [0]
        answered: list[int] = []
        done = asyncio.Event()

        def turn() -> None:
            turns[0] += 1
            if not done.is_set():
                asyncio.get_running_loop().call_soon(turn)

        def listener(found: object) -> None:
            answered.append(turns[0])
            if len(answered) == 40:
                done.set()
            if len(answered) == 3:
                raise RuntimeError("of this asker alone")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for _ in range(40):
            link.send(LookAtTasks(("t",)), listener)
        turn()
        await asyncio.wait_for(done.wait(), 30)
        most = max(answered.count(at) for at in set(answered))
        assert most <= 8
        await end(link, server)

    asyncio.run(scene())


def test_what_is_left_out_of_a_message_comes_with_it(tmp_path: Path) -> None:
    """Also over the next connection, where the first one breaks."""

    async def scene() -> None:
        x = np.arange(1 << 20, dtype=np.float32).reshape(2, -1)
        came: list[bytes] = []

        def answer(number: int, message: Message) -> bytes | None:
            assert isinstance(message, SubmitTask)
            came.append(bytes(message.input))
            return None if len(came) == 1 else frame_of(number, states("t"))

        server = await serve(tmp_path / "s", answer)
        link, left_out = TaskLink(str(tmp_path / "s")), LeftOut()
        rows = Rows(2, {"x": x}, {})
        message = SubmitTask(
            bytes(16), 1, "m", 2, Raw(pack_input(rows, left_out)), Raw(b"\xc0"), "c"
        )
        await link.ask(message, TaskStates, left_out=left_out)
        assert came == [pack_input(rows)] * 2
        await end(link, server)

    asyncio.run(scene())
