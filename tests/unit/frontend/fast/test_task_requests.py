"""Requests about tasks on both roads: the same answers, and the fast road takes the usual ones."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchpool.control.edges import TO_TASKS
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.messages import Message
from batchpool.control.task_messages import (
    CollectResult,
    LookAtTasks,
    MarkRead,
    SubmitTask,
    TaskForm,
    TaskRefused,
    TaskResult,
    TaskStates,
    TaskSubmitted,
)
from batchpool.frontend.fast.task_requests import TaskQuestion, task_question
from batchpool.frontend.http.caller import flow_of
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.wire.task_form import unpack_input
from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import Visit, same
from tests.unit.garbage import left_garbage

INFER = "/v2/models/affine/infer"
TASK = "t_" + "0" * 39
ASYNC = {"Prefer": "respond-async", "Inference-Header-Content-Length": "0"}
SUBMIT = request(INFER, bytes(16), headers=ASYNC)
HEADERS = ((b"content-type", b"text/plain"), (b"content-length", b"4"))
DONE = TaskResult(TaskForm(TASK, "done", "affine", 1, 1, 2, 3), 200, HEADERS, b"done")
OPEN = TaskForm(TASK, "running", "affine", 0, 1, 2)
GONE = TaskForm(TASK, "not_found")
Answer = Callable[[Message], Message | None]


class TaskProcess:
    """The socket of a task process. answer: gives a reply, or None to keep the asker waiting."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Message] = []
        self._connected: set[asyncio.Task[None] | None] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(TO_TASKS)
        with suppress(ConnectionError), closing(writer):
            while piece := await reader.read(65536):
                for number, message in frames.feed(piece):
                    self.asked.append(message)
                    reply = self.answer(message)
                    if reply is not None:
                        writer.write(frame_of(number, reply))

    @asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[TaskProcess]:
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield self
        finally:
            server.close()


def replies(message: Message) -> Message:
    match message:
        case SubmitTask():
            return TaskSubmitted(TaskForm(TASK, "queued", "affine", 0, 1), bool(message.key))
        case CollectResult():
            return DONE
        case LookAtTasks():
            return TaskStates((OPEN,))
        case _:
            return TaskStates(())


def facts(folder: Path, **more: Any) -> dict[str, Any]:
    return {"server": {"tasks": True, "socket": str(folder / "s"), **more}}


def get(path: str, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(f"/v2/tasks/{path}", method="GET", headers={"Content-Length": "", **fields})


TWO_KEYS = request(
    INFER, bytes(16), headers={**ASYNC, "Idempotency-Key": "k1\r\nIdempotency-Key: k2"}
)
USUAL = {
    "a task": SUBMIT,
    "with a key": request(INFER, bytes(16), headers={**ASYNC, "Idempotency-Key": "k"}),
    "with a request id": request(INFER, bytes(16), headers={**ASYNC, "X-Request-Id": "r1"}),
    "a bad body": request(INFER, b"{", headers={"Prefer": "respond-async"}),
    "a result": get(f"{TASK}/result"),
    "a result in time": get(f"{TASK}/result?wait_s=30", X_Request_Id="r2"),
    "a state": get(f"{TASK}?wait_s=60"),
}
SELDOM = {
    "waits for the answer": request(
        INFER, bytes(16), headers={**ASYNC, "Prefer": "respond-async, wait=5"}
    ),
    "no such preference": request(INFER, bytes(16), headers={**ASYNC, "Prefer": "return=minimal"}),
    "a bad key": request(INFER, bytes(16), headers={**ASYNC, "Idempotency-Key": "a b"}),
    "two keys": TWO_KEYS,
    "a long wait": get(f"{TASK}/result?wait_s=61"),
    "parts of a second": get(f"{TASK}/result?wait_s=0.5"),
    "another query": get(f"{TASK}?x=1"),
    "no id": get("t_x/result"),
    "taken back": request(f"/v2/tasks/{TASK}", method="DELETE"),
    "of a page": get(f"{TASK}/result", Origin="http://elsewhere"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*USUAL, *SELDOM])
@on_loop
async def test_both_roads_give_the_same_answer(name: str, tmp_path: Path) -> None:
    raw = {**USUAL, **SELDOM}[name]

    async def scenario(it: Visit) -> None:
        await it.send(raw)
        await it.take(has_body=name != "taken back")
        await it.send(get(TASK))
        await it.take()

    async with TaskProcess(replies).at(tmp_path / "s.tasks") as process:
        found = await same(scenario, Affine, **facts(tmp_path))
        assert found.fast == (name in USUAL) + 1
        asked = [_constant(m) for m in process.asked if not isinstance(m, MarkRead)]
        assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]


@on_loop
async def test_two_keys_make_no_task(tmp_path: Path) -> None:
    """The last of them was taken, and the other said nothing."""
    async with (
        TaskProcess(replies).at(tmp_path / "s.tasks") as process,
        edge(Affine, **facts(tmp_path)) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(TWO_KEYS)
        answer = await caller.answer()
        assert answer.status == 400
        assert b"header Idempotency-Key came 2 times, as 'k1' and 'k2'" in answer.body
        assert process.asked == []


@pytest.mark.parametrize("path", [f"{TASK}/result", TASK, f"{TASK}?x=1"])
@on_loop
async def test_refused_questions_are_freed_without_the_garbage_collector(
    path: str, tmp_path: Path
) -> None:
    """Each left its error in a circle with the frames that it came from: after thousands of them a
    collection held the loop for 25 ms."""

    def gone(message: Message) -> Message:
        match message:
            case CollectResult():
                return TaskResult(GONE, 0, (), b"")
            case LookAtTasks():
                return TaskStates((GONE,))
            case _:
                return TaskStates(())

    async with (
        TaskProcess(gone).at(tmp_path / "s.tasks"),
        edge(Affine, **facts(tmp_path)) as it,
        serving(it) as site,
        calling(site) as caller,
    ):

        async def ask() -> None:
            await caller.send(get(path))
            assert (await caller.answer()).status == 404

        await ask()
        with left_garbage() as left:
            await ask()
        assert not {"NotFound", "traceback", "frame", "TaskResult"} & set(left)


def _constant(message: Message) -> Message:
    """Without what differs each time."""
    if isinstance(message, SubmitTask):
        return msgspec.structs.replace(message, token=b"", submitted_ms=0)
    return message


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (TaskRefused("tasks_full", "full", 5000), 503),
        (TaskRefused("idempotency_mismatch", "another"), 422),
        (TaskStates((GONE,)), 500),
    ],
)
@on_loop
async def test_both_roads_refuse_a_task_alike(reply: Message, status: int, tmp_path: Path) -> None:
    async def scenario(it: Visit) -> None:
        await it.send(SUBMIT)
        assert (await it.take()).startswith(b"HTTP/1.1 %d " % status)

    async with TaskProcess(lambda _: reply).at(tmp_path / "s.tasks"):
        assert (await same(scenario, Affine, **facts(tmp_path))).fast == 1


@on_loop
async def test_a_task_is_its_rows_and_its_callers(tmp_path: Path) -> None:
    async with (
        TaskProcess(replies).at(tmp_path / "s.tasks") as process,
        edge(Affine, **facts(tmp_path)) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        headers = {**ASYNC, "X-Client-Id": "me", "X-Request-Timeout-Ms": "250"}
        raw = request(INFER, bytes(32), headers=headers)
        for piece in (raw[:-20], raw[-20:-3], raw[-3:]):  # in several reads
            await caller.send(piece)
            await asyncio.sleep(0)
        answer = await caller.answer()
        assert (answer.status, answer.headers["location"]) == (202, f"/v2/tasks/{TASK}")
        (message,) = process.asked
        assert isinstance(message, SubmitTask)
        assert (message.model, message.rows, message.caller) == ("affine", 2, "client me")
        assert message.timeout_ms == 250
        assert unpack_input(bytes(message.input)).n == 2
        assert it.view.memory.held_bytes == 0


@on_loop
async def test_a_result_counts_as_read_by_a_caller_that_is_there(tmp_path: Path) -> None:
    held: list[Message] = []

    def answer(message: Message) -> Message | None:
        if isinstance(message, CollectResult) and message.wait_ms:
            held.append(message)
            return None
        return replies(message)

    async with (
        TaskProcess(answer).at(tmp_path / "s.tasks") as process,
        edge(Affine, **facts(tmp_path)) as it,
        serving(it) as site,
    ):
        async with calling(site) as gone:
            await gone.send(get(f"{TASK}/result?wait_s=60"))
            await until(lambda: bool(held), "its question is asked")
        await until(lambda: site.connections == 0, "it has gone")
        async with calling(site) as there:
            await there.send(get(f"{TASK}/result") + get(f"{TASK}/result"))
            assert [(await there.answer()).body for _ in range(2)] == [b"done", b"done"]
        await until(lambda: isinstance(process.asked[-1], MarkRead), "it is told")
        assert process.asked[-1] == MarkRead((TASK, TASK))


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_a_head_without_its_result_does_not_count_as_read(fast: bool, tmp_path: Path) -> None:
    """It would be dropped a minute later, and nobody has seen it."""
    async with (
        TaskProcess(replies).at(tmp_path / "s.tasks") as process,
        edge(Affine, **facts(tmp_path)) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        await caller.send(request(f"/v2/tasks/{TASK}/result", method="HEAD"))
        assert (await caller.answer(has_body=False)).status == 200
        await caller.send(get(f"{TASK}/result"))
        assert (await caller.answer()).body == b"done"
        await until(lambda: isinstance(process.asked[-1], MarkRead), "it is told")
        marked = [message.ids for message in process.asked if isinstance(message, MarkRead)]
        assert marked == [(TASK,)], "once, and not for the head"


@pytest.mark.parametrize(
    ("wait", "status"),
    [("1.5", 200), ("60", 200), ("1_0", 400), ("٣", 400), ("1e1", 400), ("0x1", 400), ("", 400)],
)
@on_loop
async def test_a_wait_is_digits(wait: str, status: int, tmp_path: Path) -> None:
    async with (
        TaskProcess(replies).at(tmp_path / "s.tasks"),
        edge(Affine, **facts(tmp_path)) as it,
    ):
        found = await it.http.get(f"/v2/tasks/{TASK}/result", params={"wait_s": wait})
        assert found.status_code == status


@on_loop
async def test_the_ids_of_many_tasks_may_come_compressed(tmp_path: Path) -> None:
    async with (
        TaskProcess(replies).at(tmp_path / "s.tasks") as process,
        edge(Affine, **facts(tmp_path)) as it,
    ):
        ids = [TASK] * 1000
        packed, coding = gzip.compress(json.dumps({"ids": ids}).encode()), "gzip"
        headers = {"content-encoding": coding}
        found = await it.http.post("/v2/tasks/query", content=packed, headers=headers)
        assert found.status_code == 200
        assert process.asked == [LookAtTasks(tuple(ids))]
        bomb = gzip.compress(bytes(1 << 24))
        found = await it.http.post("/v2/tasks/query", content=bomb, headers=headers)
        assert found.status_code == 413


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_a_long_result_that_its_caller_may_not_take_now_is_kept(
    fast: bool, tmp_path: Path
) -> None:
    """Whoever asks for results and reads none does not fill the front end with them."""
    size = 1 << 20
    fields = ((b"content-type", b"text/plain"), (b"content-length", b"%d" % size))
    long = msgspec.structs.replace(DONE, headers=fields, body=bytes(size))

    def answer(message: Message) -> Message:
        return long if isinstance(message, CollectResult) else replies(message)

    server = {"tasks": True, "socket": str(tmp_path / "s"), "max_body_mib": 1, "max_bodies_mib": 4}
    async with (
        TaskProcess(answer).at(tmp_path / "s.tasks") as process,
        edge(Affine, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        unread = MemoryReservation(it.view.memory, flow_of(b"127.0.0.1"))
        unread.count(2 * size)
        ask = get(f"{TASK}/result?wait_s={0 if fast else 0.0}")
        await caller.send(ask)
        assert (await caller.answer()).refused == (503, "overloaded")
        waits = {**ASYNC, "Prefer": "respond-async, wait=5"}
        await caller.send(request(INFER, bytes(16), headers=waits))
        kept = await caller.answer()
        assert (kept.status, kept.headers["location"]) == (202, f"/v2/tasks/{TASK}")
        unread.release()
        await caller.send(ask)
        assert len((await caller.answer()).body) == size
        await until(lambda: isinstance(process.asked[-1], MarkRead), "it is told")
        marked = [message.ids for message in process.asked if isinstance(message, MarkRead)]
        assert marked == [(TASK,)], "once, of three times that it was asked for"


def test_a_question_is_one_of_few_spellings() -> None:
    assert task_question(f"/v2/tasks/{TASK}".encode()) == TaskQuestion(TASK, False, 0)
    assert task_question(f"/v2/tasks/{TASK}/result?wait_s=9".encode()) == (TASK, True, 9)
    for url in (f"/v2/tasks/{TASK}?wait_s=61", f"/v2/tasks/{TASK}0", "/v2/tasks/query"):
        assert task_question(url.encode()) is None
