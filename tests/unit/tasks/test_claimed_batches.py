"""The number of tasks that the runner claims together, which is that of its calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.tasks.desk import MAX_BATCH, SETTINGS, Desk, running


@pytest.mark.parametrize("slots", [64, 16, 2])
def test_calls_are_whole_batches_while_there_are_as_many_tasks(slots: int) -> None:
    """A call of one row would make room for one row, and so on for ever. With few slots the window
    is smaller than a batch, and nothing waits for one."""

    async def scene() -> None:
        desk = Desk(settings=replace(SETTINGS, client_slots=slots))
        ids = [await desk.submit([number]) for number in range(1 + 10 * MAX_BATCH)]
        async with running(desk):
            for identifier in ids:
                await desk.until_state(identifier, "done")
        sizes = sorted(map(len, desk.engine.calls))
        if slots == 64:
            assert sizes == [1, *[MAX_BATCH] * 10], "the model's limits are learnt by the first"
        assert sum(sizes) == len(ids)

    asyncio.run(scene())


def test_a_lone_task_takes_the_store_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One keeps and claims it, one ends it, and nobody asks the store whether there is more."""

    async def scene() -> None:
        desk = Desk()
        asked: list[object] = []
        real = desk.committer.run
        monkeypatch.setattr(desk.committer, "run", lambda work: (asked.append(work), real(work))[1])
        async with running(desk):
            await desk.until_state(await desk.submit([1]), "done")
            commits, asked[:] = desk.store.commits, []
            for number in range(3):
                await desk.until_state(await desk.submit([number]), "done")
            assert (desk.store.commits - commits, asked) == (6, [])

    asyncio.run(scene())
