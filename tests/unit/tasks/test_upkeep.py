"""The upkeep of a store that other pools have too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from batchpool.control.task_messages import TaskResult
from batchpool.tasks import upkeep
from batchpool.tasks.record import Ended, KeptTask, TaskAnswer, TaskState, Want
from batchpool.tasks.store import StoreAway
from tests.unit.tasks.desk import SETTINGS, Desk, running
from tests.unit.tasks.memory_store import MemoryStore

OK = TaskAnswer(200, (), b"{}")


def other_pool(desk: Desk) -> MemoryStore:
    """The store as another pool has it."""
    return MemoryStore(desk.shelf, SETTINGS.limits)


def test_an_end_in_another_pool_is_told_to_those_who_wait_here() -> None:
    async def scene() -> None:
        desk = Desk()
        ended, dropped, open_ = [await desk.submit([i]) for i in range(3)]
        told: list[str] = []
        for identifier in (ended, dropped, open_):

            def listener(result: TaskResult | None, name: str = identifier) -> None:
                assert result is None, "it has to be looked at"
                told.append(name)

            desk.ends.add(identifier, listener)
        await desk.upkeep.hear_others()
        assert told == [], "nothing has ended"
        other = other_pool(desk)
        tasks = {task.id: task for task in other.claim([Want("twice", 9, 9000)], desk.now_ms)}
        desk.now_ms += 1
        ends = [Ended(i, tasks[i].claim, TaskState.DONE, OK) for i in (ended, dropped)]
        assert other.finish(ends, desk.now_ms) == [True, True]
        other.cancel([dropped], desk.now_ms)
        await desk.upkeep.hear_others()
        assert told == [ended, dropped]
        await desk.committer.close()

    asyncio.run(scene())


def test_a_task_that_another_pool_took_in_is_run_here() -> None:
    async def scene() -> None:
        desk = Desk()
        async with running(desk):
            other = other_pool(desk)
            message = Desk(desk.shelf)
            identifier = await message.submit([7])
            assert desk.state(identifier) == "queued"
            await desk.upkeep.hear_others()
            await desk.until_state(identifier, "done")
            assert desk.body(identifier) == b'{"predictions":[14]}'
            assert other.models() == set()
            await message.committer.close()

    asyncio.run(scene())


def test_many_who_wait_are_looked_for_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LOOKED_AT_ONCE", 4)

    async def scene() -> None:
        desk = Desk()
        ids = [await desk.submit([i]) for i in range(10)]
        looks: list[list[str]] = []
        look = desk.store.look

        def noted(ids: list[str], now_ms: int) -> list[KeptTask | None]:
            looks.append(ids)
            return look(ids, now_ms)

        desk.store.look = noted  # type: ignore[assignment]
        with desk.ends.waiting(ids):
            for _ in range(3):
                await desk.upkeep.hear_ends()
        assert looks == [ids[:4], ids[4:8], [*ids[8:], *ids[:2]]]
        await desk.committer.close()

    asyncio.run(scene())


def test_what_another_pool_has_lost_is_taken_over_with_each_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the lease is, it is seen soon after its end."""
    monkeypatch.setattr(upkeep, "_EVERY_S", 0.0)

    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        other_pool(desk).claim([Want("twice", 9, 9000)], desk.now_ms)
        assert desk.state(identifier) == "running"
        works = upkeep.Upkeep(
            desk.committer, desk.runner, desk.ends, desk.metrics, desk.alerts, lease_s=3600.0
        )
        work = asyncio.create_task(works.run())
        await desk.until_state(identifier, "queued")
        work.cancel()
        await asyncio.wait([work])
        await desk.committer.close()

    asyncio.run(scene())


def test_nobody_is_looked_for_where_nobody_waits() -> None:
    async def scene() -> None:
        desk = Desk()
        looks: list[object] = []
        desk.store.look = lambda ids, now_ms: looks.append(ids) or []  # type: ignore[assignment, func-returns-value, misc]
        await desk.upkeep.hear_others()
        assert looks == []
        await desk.committer.close()

    asyncio.run(scene())


def test_ends_are_heard_between_two_sweeps_also_after_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "_EVERY_S", 0.02)

    async def scene() -> None:
        desk = Desk()
        identifier = await desk.submit([1])
        looks = []
        look = desk.store.look

        def away_once(ids: list[str], now_ms: int) -> list[KeptTask | None]:
            looks.append(ids)
            if len(looks) == 1:
                raise StoreAway("gone")
            return look(ids, now_ms)

        desk.store.look = away_once  # type: ignore[assignment]
        works = upkeep.Upkeep(
            desk.committer, desk.runner, desk.ends, desk.metrics, desk.alerts, lease_s=100.0
        )
        with desk.ends.waiting([identifier]) as ended:
            work = asyncio.create_task(works._pause())
            other = other_pool(desk)
            (task,) = other.claim([Want("twice", 9, 9000)], desk.now_ms)
            desk.now_ms += 1
            other.finish([Ended(identifier, task.claim, TaskState.DONE, OK)], desk.now_ms)
            async with asyncio.timeout(20):
                await work
            assert ended.is_set()
        assert len(looks) > 1
        await desk.committer.close()

    asyncio.run(scene())


def test_what_runs_here_is_looked_at_once_a_second_and_not_ten_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end is told here; only somebody who takes it back at another pool ends it there."""

    async def scene() -> None:
        desk = Desk()
        desk.engine.gate.clear()
        looked: list[str] = []
        look = desk.store.look

        def counting(ids: Sequence[str], now_ms: int) -> list[KeptTask | None]:
            looked.extend(ids)
            return look(ids, now_ms)

        monkeypatch.setattr(desk.store, "look", counting)
        async with running(desk):
            identifier = await desk.submit([7])
            await desk.until(lambda: [identifier] in map(list, desk.runner.running))
            with desk.ends.waiting([identifier, "elsewhere"]) as ended:
                await desk.upkeep.hear_ends()
                assert looked == ["elsewhere"]
                looked.clear()
                ended.clear()
                other_pool(desk).cancel([identifier], desk.now_ms)
                await desk.upkeep.hear_others()
                assert set(looked) == {identifier, "elsewhere"}
                assert ended.is_set()

    asyncio.run(scene())
