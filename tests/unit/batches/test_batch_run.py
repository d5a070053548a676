"""The run of one batch: the order of its answers, and what is left when a process ends in it."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from batchpool.batches.batch_run import cost_of
from batchpool.batches.records import WINDOW_MS
from batchpool.control.batch_messages import CancelBatch
from batchpool.core.errors import InvalidRequest, StorageFull
from tests.unit.batches.desk import Desk, request, requests


def test_answers_stand_in_the_order_of_the_lines(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        desk.calls.closed = {0}
        batch = await desk.batch(requests(range(20)))
        # The window is 4 lines: those behind it wait for the first.
        await desk.until(lambda: desk.calls.seen == [0, 1, 2, 3])
        desk.calls.release()
        record = await desk.end_of(batch)
        assert (record.status, record.total) == ("completed", 20)
        assert desk.output(batch) == list(range(20))
        assert record.form().error_file == ""
        assert not desk.store.bodies.path(record.error_file).exists()
        assert {"in_progress", "finalizing", "completed"} == set(record.times_ms)
        await desk.close()

    asyncio.run(scene())


def test_bad_lines_go_to_the_error_file_and_the_others_on(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        desk.calls.errors = {2: InvalidRequest("no"), 3: ValueError("a fault of ours")}
        lines = [
            b"\xef\xbb\xbf" + request(0), b"", b"  ", b"\xff\x00",
            request(1, url="/v1/completions"), request(2), request(3), request(0),
            request(4, body=[1]), request(5),
        ]  # fmt: skip
        batch = await desk.batch(b"\r\n".join(lines))
        record = await desk.end_of(batch)
        assert (record.total, record.progress.completed, record.progress.failed) == (8, 2, 6)
        assert desk.output(batch) == [0, 5]
        assert desk.errors(batch) == [
            (None, "invalid_json_line"), ("n1", "mismatched_url"), ("n2", "invalid_request"),
            ("n3", "internal"), ("n0", "duplicate_custom_id"), ("n4", "invalid_body"),
        ]  # fmt: skip
        await desk.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n \n", "empty_file"),
        (b"\x00\xff" * 1000, "invalid_json_line"),
        (gzip.compress(requests([1]), mtime=0), "invalid_file"),
        (requests([1]).decode().encode("utf-16"), "invalid_file"),
        (requests(range(1001)), "too_many_lines"),
        (requests([1]) + b"\n" * 5000, "too_many_lines"),
    ],
)
def test_a_file_without_a_request_fails(tmp_path: Path, content: bytes, code: str) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        record = await desk.end_of(await desk.batch(content))
        assert (record.status, record.faults[0].code) == ("failed", code)
        assert desk.calls.seen == []
        await desk.close()

    asyncio.run(scene())


def test_another_process_goes_on_behind_the_last_line_that_counts(tmp_path: Path) -> None:
    async def before() -> str:
        desk = Desk(tmp_path)
        desk.calls.closed = {10, 30}
        batch = await desk.batch(requests([*range(40), 7]))
        await desk.until(lambda: desk.record(batch).progress.completed == 10)
        record = desk.record(batch)
        # As a process leaves them that is killed between the bytes and the count.
        size = record.progress.output_bytes
        desk.store.bodies.write(record.output_file, size, b"half an answer" * 99)
        await desk.close()
        return batch

    async def after(batch: str) -> None:
        desk = Desk(tmp_path)
        desk.runner.start_due()
        record = await desk.end_of(batch)
        assert record.progress.completed == 40
        assert desk.output(batch) == list(range(40))
        assert desk.errors(batch) == [("n7", "duplicate_custom_id")]
        assert desk.calls.seen == list(range(10, 40)), "nothing that counts ran again"
        await desk.close()

    batch = asyncio.run(before())
    asyncio.run(after(batch))


def test_a_batch_that_ends_its_process_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.batch_run.LOSSES_MOST", 2)
    monkeypatch.setattr("batchpool.batches.batch_run._COMMIT_S", 0.01)

    async def begun(*, killed: bool) -> str:
        desk = Desk(tmp_path)
        desk.calls.closed = {1}
        if not desk.store.batches:
            await desk.batch(requests(range(3)))
        (batch,) = desk.store.batches
        desk.runner.start_due()
        await desk.until(
            lambda: (
                desk.record(batch).status.has_ended
                or (1 in desk.calls.seen and desk.record(batch).progress.completed == 1)
            )
        )
        record = desk.record(batch)
        await desk.close()
        if killed:  # as it was on the disk before an orderly end
            again = Desk(tmp_path)
            await again.store.keep_batch(record)
            await again.close()
        return batch

    for killed in (False, False, False, True, True, True):
        asyncio.run(begun(killed=killed))
    desk = Desk(tmp_path)
    (record,) = desk.store.batches.values()
    assert (record.status, record.losses, record.progress.completed) == ("in_progress", 2, 1)
    asyncio.run(desk.close())
    batch = asyncio.run(begun(killed=False))
    desk = Desk(tmp_path)
    record = desk.record(batch)
    assert (record.status, record.faults[0].code) == ("failed", "gave_up")
    assert desk.output(batch) == [0], "what was answered is kept"
    asyncio.run(desk.close())


def test_what_lies_behind_the_last_count_is_cut_off_at_the_end(tmp_path: Path) -> None:
    async def before() -> str:
        desk = Desk(tmp_path)
        desk.calls.closed = {2}
        batch = await desk.batch(requests(range(3)))
        await desk.until(lambda: desk.record(batch).progress.completed == 2)
        record = desk.record(batch)
        desk.store.bodies.write(record.output_file, record.progress.output_bytes, b"x" * 9999)
        await desk.close()
        return batch

    async def after(batch: str) -> None:
        desk = Desk(tmp_path)
        desk.runner.start_due()
        record = await desk.end_of(batch)
        assert len(desk.content(record.output_file)) == record.progress.output_bytes
        assert desk.output(batch) == [0, 1, 2]
        await desk.close()

    batch = asyncio.run(before())
    asyncio.run(after(batch))


def test_a_cancelled_batch_keeps_what_is_done_and_is_not_taken_up_again(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        desk.calls.closed = {5}
        batch = await desk.batch(requests(range(40)))
        await desk.until(lambda: 8 in desk.calls.seen)
        found = await desk.ask(CancelBatch(batch, ""))
        assert found.batch.status in ("cancelling", "cancelled")  # type: ignore[union-attr]
        record = await desk.end_of(batch)
        assert record.status == "cancelled"
        assert desk.output(batch) == [0, 1, 2, 3, 4, 6, 7, 8], (
            "also those behind the one that hangs"
        )
        again = await desk.ask(CancelBatch(batch, ""))
        assert again.batch.status == "cancelled"  # type: ignore[union-attr]
        await desk.close()

    asyncio.run(scene())


def test_lines_that_come_too_late_are_told_of(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        desk.calls.closed = {2}
        batch = await desk.batch(requests(range(6)))
        await desk.until(lambda: desk.record(batch).progress.completed == 2)
        await desk.close()
        late = Desk(tmp_path)
        late.now_ms += WINDOW_MS
        late.runner.start_due()
        record = await late.end_of(batch)
        assert (record.status, late.calls.seen) == ("expired", [])
        assert late.output(batch) == [0, 1]
        assert late.errors(batch) == [(f"n{x}", "batch_expired") for x in range(2, 6)]
        await late.close()

    asyncio.run(scene())


def test_a_line_that_is_under_way_when_time_is_up_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.batch_run._LOOK_S", 0.001)

    async def scene() -> None:
        desk = Desk(tmp_path)
        desk.calls.closed = {1}
        batch = await desk.batch(requests(range(3)))
        await desk.until(lambda: desk.record(batch).progress.completed == 1)
        desk.now_ms += WINDOW_MS
        assert (await desk.end_of(batch)).status == "expired"
        assert desk.errors(batch) == [("n1", "batch_expired")]
        assert desk.output(batch) == [0, 2]
        await desk.close()

    asyncio.run(scene())


def test_a_batch_waits_for_room_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.batch_run._FULL_RETRY_S", 0.001)

    async def scene() -> None:
        desk = Desk(tmp_path)
        filler = await desk.file(b"x" * (1 << 18), "a")
        other = await desk.file(b"x" * ((1 << 18) - 150), "a")
        batch = await desk.batch(requests([1]), "a")
        await desk.until(lambda: desk.runner.waiting_for(batch))
        assert "files_max_mib" in desk.runner.waiting_for(batch)
        assert desk.record(batch).progress.completed == 0
        await desk.store.drop([filler.id])
        assert (await desk.end_of(batch)).status == "completed"
        assert other.id in desk.store.files
        await desk.close()

    asyncio.run(scene())


def test_a_full_disk_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchpool.batches.batch_run._FULL_RETRY_S", 0.001)

    async def scene() -> None:
        desk = Desk(tmp_path)
        add, refusals = desk.store.add_lines, iter([True, True, False])

        async def refuse(*arguments: object) -> object:
            if next(refusals, False):
                raise StorageFull("the disk of the files is full", 1000)
            return await add(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(desk.store, "add_lines", refuse)
        batch = await desk.batch(requests(range(3)))
        await desk.end_of(batch)
        assert desk.output(batch) == [0, 1, 2]
        await desk.close()

    asyncio.run(scene())


def test_the_cost_of_a_line_grows_with_its_texts() -> None:
    few = json.dumps({"input": ["a" * 3000]}).encode()
    many = json.dumps({"input": ["a"] * 1000}).encode()
    assert len(few) < len(many) < 2 * len(few)
    assert cost_of(many) > 50 * cost_of(few)
