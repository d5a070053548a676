"""The answers of the task process: submission, long polls, results, and what is not there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from batchpool.control.task_messages import (
    CancelTask,
    CollectResult,
    GetTaskStatus,
    LookAtTasks,
    MarkRead,
    TaskRefused,
    TaskResult,
    TaskStates,
    TaskStatus,
    TaskSubmitted,
)
from batchpool.tasks.answers import refused
from batchpool.tasks.ends import Ends
from batchpool.tasks.record import partition_for, task_id
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.wire.task_form import pack_answer, unpack_answer, unpack_input
from tests.unit.tasks.desk import SETTINGS, Desk, running


async def states(desk: Desk, *ids: str, **more: Any) -> list[str]:
    found = await desk.answers.answer(LookAtTasks(ids, **more))
    assert isinstance(found, TaskStates), found
    return [form.state for form in found.tasks]


async def collect(desk: Desk, identifier: str, **more: Any) -> TaskResult:
    found = await desk.answers.answer(CollectResult(identifier, **more))
    assert isinstance(found, TaskResult), found
    return found


def test_a_long_poll_ends_with_its_task_and_not_before() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        one, other = await desk.submit([1]), await desk.submit([2] * 5)
        async with running(desk):
            await desk.until_state(other, "running")
            polls = [asyncio.create_task(collect(desk, one, wait_ms=20_000)) for _ in range(3)]
            look = asyncio.create_task(states(desk, one, other, wait_ms=20_000))
            await asyncio.sleep(0.02)
            assert not any(poll.done() for poll in (*polls, look))
            assert await states(desk, one, wait_ms=1) == ["running"]
            desk.engine.gate.set()
            results = await asyncio.gather(*polls)
            assert {result.body for result in results} == {b'{"predictions":[2]}'}
            assert "done" in await look

    asyncio.run(scene())


def test_another_caller_of_a_pool_with_keys_finds_no_task() -> None:
    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1], principal="ann")
        async with running(desk):
            await desk.until_state(identifier, "done")
            assert await states(desk, identifier, principal="bob") == ["not_found"]
            assert (await collect(desk, identifier)).task.state == "not_found"
            cancelled = await desk.answers.answer(CancelTask(identifier, "bob"))
            assert isinstance(cancelled, TaskStates)
            assert cancelled.tasks[0].state == "not_found"
            assert (await collect(desk, identifier, principal="ann")).status == 200

    asyncio.run(scene())


def test_an_id_of_a_result_that_had_its_time_is_told_from_one_that_never_was() -> None:
    """C70: after its time it has expired; one that was read and dropped is not found."""

    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        async with running(desk):
            await desk.until_state(identifier, "done")
            desk.now_ms += 1000
            await desk.upkeep.sweep()
            assert await states(desk, identifier, "t_x") == ["expired", "not_found"]
            young = await desk.submit([1])
            await desk.until_state(young, "done")
            await collect(desk, young)
            await desk.answers.answer(MarkRead((young,)))
            desk.now_ms += 100
            await desk.upkeep.sweep()
            assert await states(desk, young) == ["not_found"]

    asyncio.run(scene())


def test_a_task_that_is_too_old_has_failed_and_its_pollers_are_told() -> None:
    """Complaint 3: no task is open until it is forgotten."""

    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        old = await desk.submit([1])
        own = await desk.submit([2], timeout_ms=50)
        async with running(desk):
            poll = asyncio.create_task(collect(desk, own, wait_ms=20_000))
            await asyncio.sleep(0.01)
            desk.now_ms += 50
            await desk.upkeep.sweep()
            assert (await poll).status == 504
            desk.now_ms += 10_000
            await desk.upkeep.sweep()
            assert (await collect(desk, old)).status == 410
            assert desk.metrics.letters == {"twice": {"expired": 1}}

    asyncio.run(scene())


def test_refusals_say_what_to_do() -> None:
    async def scene() -> None:
        small = replace(SETTINGS, limits=replace(SETTINGS.limits, open=1))
        desk = Desk(settings=small)
        keyed = {"key": "k"}
        await desk.submit([1], **keyed)

        async def refusal(values: list[int], **more: Any) -> tuple[str, int]:
            found = await desk.answers.answer(desk.message(values, **more))
            assert isinstance(found, TaskRefused), found
            return found.code, found.retry_after_ms

        assert await refusal([2]) == ("tasks_full", 5000)
        assert await refusal([2], **keyed) == ("idempotency_mismatch", 0)
        assert await refusal([2] * 200) == ("too_large", 0)
        assert (await refusal([2], token=b"short"))[0] == "not_ready"
        again = await desk.answers.answer(desk.message([1], **keyed))
        assert isinstance(again, TaskSubmitted)
        assert again.replayed, "a full store knows what it has"
        desk.store.is_full = True
        assert await refusal([3]) == ("storage_full", 30_000)
        desk.store.is_full, desk.store.is_away = False, True
        assert (await refusal([3]))[0] == "not_ready"
        desk.store.is_away = False
        desk.metrics.counts.clear()  # a fault of ours: the asker is answered all the same
        found = await desk.answers.answer(desk.message([1], **keyed))
        assert isinstance(found, TaskRefused)
        assert found.code == "internal"
        await desk.committer.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("limits", "callers", "text"),
    [
        ({"open": 1}, ["a"], "there are 1 open tasks, the most that are taken (tasks_max)"),
        (
            {"open": 4},
            ["b", "a", "a"],
            "the caller at a has half of the 4 open tasks that are taken (tasks_max)",
        ),
        (
            {"bytes": 200, "share": 0.5},
            ["b", "a"],
            "of the caller at a take their share of the 0 MiB that are kept (tasks_max_mib): one"
            " caller may have 50% of what the others leave (tasks_caller_share)",
        ),
        ({"bytes": 1}, ["a"], "take 0 MiB, the most that is kept (tasks_max_mib)"),
    ],
)
def test_a_full_store_tells_the_limit_that_holds(
    limits: dict[str, int], callers: list[str], text: str
) -> None:
    async def scene() -> None:
        desk = Desk(settings=replace(SETTINGS, limits=replace(SETTINGS.limits, **limits)))
        for caller in callers:
            await desk.submit([1], caller=caller)
        found = await desk.answers.answer(desk.message([1], caller="a"))
        assert isinstance(found, TaskRefused)
        assert found.code == "tasks_full"
        assert text in found.error
        (counted,) = desk.metrics.refusals.values()
        assert counted == 1
        await desk.committer.close()

    asyncio.run(scene())


def test_the_same_submission_again_is_the_same_task() -> None:
    """A front end asks again what a killed task process has not answered."""

    async def scene() -> None:
        desk = Desk()
        message = desk.message([1])
        first, second = [await desk.answers.answer(message) for _ in range(2)]
        assert isinstance(first, TaskSubmitted)
        assert isinstance(second, TaskSubmitted)
        assert first.task.id == second.task.id
        assert not second.replayed
        assert len(desk.shelf.tasks) == 1
        await desk.committer.close()

    asyncio.run(scene())


def test_a_repeated_request_may_have_another_id() -> None:
    """The id names one attempt to send it; what it asks for is the same."""

    async def scene() -> None:
        desk = Desk()
        first = desk.message([1])
        plain = unpack_answer(bytes(first.answer), unpack_input(bytes(first.input)))
        found = []
        for name in ("first", "second", None):
            answer = msgspec.Raw(pack_answer(replace(plain, id=name)))
            found.append(await desk.submit([1], key="k", answer=answer))
        assert len(set(found)) == 1
        others = msgspec.Raw(pack_answer(replace(plain, outputs=())))
        answered = await desk.answers.answer(desk.message([1], key="k", answer=others))
        assert isinstance(answered, TaskRefused)
        assert answered.code == "idempotency_mismatch"
        await desk.committer.close()

    asyncio.run(scene())


def test_who_waits_for_an_end_is_told_without_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        desk = Desk()
        looks: list[str] = []
        real = desk.store.collect

        def collect(ids: list[str], now_ms: int) -> Any:
            looks.extend(ids)
            return real(ids, now_ms)

        monkeypatch.setattr(desk.store, "collect", collect)
        desk.engine.gate.clear()
        identifier = await desk.submit([1])
        async with running(desk):
            poll = asyncio.create_task(collect_later(desk, identifier))
            await desk.until(lambda: identifier in desk.ends.ids())
            await desk.until_state(identifier, "running")
            desk.engine.gate.set()
            told = await poll
            assert looks == [], "it was known to be open, and told of the end"
            assert told == await collect_later(desk, identifier)
            assert looks == [identifier]

    async def collect_later(desk: Desk, identifier: str) -> TaskResult:
        return await collect(desk, identifier, wait_ms=20_000)

    asyncio.run(scene())


def test_a_poll_that_waits_in_vain_tells_the_state_there_is() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        identifier = await desk.submit([1])
        async with running(desk):
            found = await collect(desk, identifier, wait_ms=5)
            assert (found.status, found.task.state) == (0, "running")
            poll = asyncio.create_task(collect(desk, identifier, wait_ms=20_000))
            await desk.until(lambda: identifier in desk.ends.ids())
            await desk.answers.answer(CancelTask(identifier))
            assert (await poll).task.state == "cancelled"
            assert identifier not in desk.ends.ids()

    asyncio.run(scene())


def test_the_counts_tell_states_letters_and_times() -> None:
    async def scene() -> None:
        desk = Desk()
        async with running(desk):
            identifier = await desk.submit([1])
            await desk.until_state(identifier, "done")
            found = await desk.answers.answer(GetTaskStatus())
        assert isinstance(found, TaskStatus)
        assert found.tasks == {"twice": {"done": 1}}
        assert found.counts["submitted"] == 1
        assert sum(found.times["task_seconds"]["twice"][:-1]) == 1
        assert sum(found.times["task_commit_seconds"][""][:-1]) == 2, "one keeps and claims it"
        assert msgspec.msgpack.encode(found)

    asyncio.run(scene())


def test_questions_of_one_turn_share_a_commit() -> None:
    async def scene() -> None:
        desk = Desk()
        await asyncio.gather(*(desk.submit([i]) for i in range(100)))
        assert desk.store.commits == 1
        await asyncio.gather(*(desk.submit([i]) for i in range(300)))
        assert desk.store.commits <= 5, "a group has a most"
        await desk.committer.close()

    asyncio.run(scene())


def test_what_ends_goes_on_where_new_tasks_meet_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        desk = Desk()
        first = await desk.submit([1])
        real, cancelled = desk.store.put, desk.shelf.tasks[first].form

        def full(*_: Any) -> Any:
            raise StoreFull("no room")

        # A real store has undone the first of these when the put fails.
        cancels = iter([[], [cancelled]])
        monkeypatch.setattr(desk.store, "cancel", lambda *_: next(cancels))
        monkeypatch.setattr(desk.store, "put", full)
        put, cancel = await asyncio.gather(
            desk.answers.answer(desk.message([2])),
            desk.committer.ask("cancel", first),
        )
        assert isinstance(put, TaskRefused)
        assert put.code == "storage_full"
        assert cancel == cancelled
        monkeypatch.setattr(desk.store, "put", real)
        await desk.committer.close()

    asyncio.run(scene())


def test_who_waits_for_a_task_that_was_not_kept_is_told_at_once() -> None:
    """It was known as open until the store had refused it."""

    async def scene() -> None:
        desk = Desk(settings=replace(SETTINGS, limits=replace(SETTINGS.limits, open=0)))
        message = desk.message([1])
        partition = partition_for(b"", message.submitted_ms, 0)
        identifier = task_id(message.submitted_ms, message.token, partition)
        submission = asyncio.create_task(desk.answers.answer(message))
        await asyncio.sleep(0)
        assert desk.ends.is_open(identifier, "")
        poll = asyncio.create_task(collect(desk, identifier, wait_ms=20_000))
        assert isinstance(await submission, TaskRefused)
        async with asyncio.timeout(10):
            assert (await poll).task.state == "not_found"
        assert not desk.ends.is_open(identifier, "")

    asyncio.run(scene())


def test_an_open_task_is_known_to_its_own_caller_alone() -> None:
    ends = Ends(is_alone=True)
    assert ends.opened("t", "ann")
    assert not ends.opened("t", "ann"), "it was known"
    assert ends.is_open("t", "ann")
    assert not ends.is_open("t", "bob")
    ends.tell(["t"])
    assert not ends.is_open("t", "ann")
    shared = Ends()
    assert not shared.opened("t", "ann"), "another pool may end it"
    assert not shared.is_open("t", "ann")


@pytest.mark.parametrize(("error", "code"), [(StoreAway, "not_ready"), (StoreFull, "storage_full")])
def test_addresses_of_the_store_are_for_the_log(
    error: type[Exception], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = refused(error("redis://tasks@10.1.2.3:6379/0: no"))
    assert told.code == code
    assert "10.1.2.3" not in told.error
    assert "10.1.2.3" in caplog.text


def test_a_box_whose_clock_is_wrong_submits_at_the_time_of_the_store() -> None:
    async def scene() -> None:
        desk = Desk()
        message = structs.replace(desk.message([1]), submitted_ms=desk.now_ms + 3_600_000)
        found = await desk.answers.answer(message)
        assert isinstance(found, TaskSubmitted)
        assert found.task.submitted_ms == desk.now_ms
        again = await desk.answers.answer(message)
        assert isinstance(again, TaskSubmitted)
        assert again.task.id == found.task.id, "sent again it is the same task"
        await desk.committer.close()

    asyncio.run(scene())
