"""Questions about batches that come at the same moment, while the disk is asked for another one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batchpool.batches.records import BatchRecord, BatchStatus
from batchpool.control.batch_messages import BatchFound, CancelBatch, CreateBatch, DeleteFile
from batchpool.core.errors import InvalidRequest, NotFound, Overloaded
from tests.unit.batches.desk import ENDPOINT, Desk, requests
from tests.unit.batches.test_answers import played


def test_no_caller_makes_more_batches_by_asking_for_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.answers._MOST_OPEN", 8)

    async def scene(desk: Desk) -> None:
        desk.calls.closed = {1}
        file = await desk.file(requests([1]))
        asked = [desk.ask(CreateBatch(desk.token(), "", "a", ENDPOINT, file.id)) for _ in range(20)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        made = [each for each in found if isinstance(each, BatchFound)]
        assert len(made) == len(list(desk.store.open_batches())) == 4
        assert {type(each) for each in found} == {BatchFound, Overloaded}
        desk.calls.release()

    played(tmp_path, scene)


@pytest.mark.parametrize("first", ["create", "delete"])
def test_a_file_is_deleted_or_becomes_an_input_and_not_both(tmp_path: Path, first: str) -> None:
    async def scene(desk: Desk) -> None:
        file = await desk.file(requests([1]))
        asked = [CreateBatch(desk.token(), "", "a", ENDPOINT, file.id), DeleteFile(file.id, "")]
        if first == "delete":
            asked.reverse()
        answers: list[Any] = await asyncio.gather(*map(desk.ask, asked), return_exceptions=True)
        done, refused = answers
        if first == "create":
            assert isinstance(refused, InvalidRequest)
            assert (await desk.end_of(done.batch.id)).status is BatchStatus.COMPLETED
        else:
            assert isinstance(refused, NotFound)
            assert not desk.store.batches

    played(tmp_path, scene)


def test_a_batch_that_is_cancelled_does_not_begin_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(desk: Desk) -> None:
        desk.calls.closed = {1}
        *running, waiting = [await desk.batch(requests([1])) for _ in range(3)]
        asked, goes_on = asyncio.Event(), asyncio.Event()
        real = desk.store.keep_batch

        async def keep(record: BatchRecord) -> None:
            if record.id == waiting:
                asked.set()
                await goes_on.wait()
            await real(record)

        monkeypatch.setattr(desk.store, "keep_batch", keep)
        cancelling = asyncio.create_task(desk.ask(CancelBatch(waiting, "")))
        await asked.wait()
        desk.calls.release()
        for batch in running:  # there is room for the third one now
            await desk.end_of(batch)
        await asyncio.sleep(0)
        desk.runner.start_due()
        goes_on.set()
        await cancelling
        assert (await desk.end_of(waiting)).status is BatchStatus.CANCELLED
        assert len(desk.calls.seen) == 2

    played(tmp_path, scene)
