"""Questions about files and batches: whose they are, their lists, and what is refused."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchpool.batches.database import BatchDatabase, FolderUnusable
from batchpool.batches.quotas import Quotas
from batchpool.batches.store import BatchStore
from batchpool.control.batch_messages import (
    AppendToUpload,
    BeginUpload,
    CancelBatch,
    CreateBatch,
    DeleteFile,
    DropUpload,
    EndUpload,
    GetBatch,
    GetFile,
    ListBatches,
    ListFiles,
    ReadFile,
)
from batchpool.core.errors import (
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
    StorageFull,
    TooLarge,
)
from tests.unit.batches.desk import ENDPOINT, NOW_MS, SETTINGS, Desk, request, requests

Scene = Callable[[Desk], Awaitable[None]]


def played(folder: Path, scene: Scene, **settings: Any) -> None:
    async def play() -> None:
        desk = Desk(folder, replace(SETTINGS, **settings))
        await scene(desk)
        await desk.close()

    asyncio.run(play())


def test_a_file_is_kept_under_an_id_of_the_server(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        token = b"\x01" * 16
        begun: Any = await desk.ask(BeginUpload(token, "", "a"))
        again: Any = await desk.ask(BeginUpload(token, "", "a"))
        assert begun == again
        assert begun.id == "file-" + "01" * 16
        await desk.ask(AppendToUpload(begun.id, 0, b"abc"))
        await desk.ask(AppendToUpload(begun.id, 3, b"def"))
        await desk.ask(AppendToUpload(begun.id, 3, b"def"))
        end = EndUpload(begun.id, "../x", "batch", 6, ttl_ms=5)
        found: Any = await desk.ask(end)
        assert found == await desk.ask(end), "a question may come twice"
        assert (found.file.bytes, found.file.expires_ms) == (6, NOW_MS + 5)
        assert desk.content(begun.id) == b"abcdef"
        path = desk.store.bodies.path(begun.id)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
        read: Any = await desk.ask(ReadFile(begun.id, "", 2, 3))
        assert read.piece == b"cde"
        beyond: Any = await desk.ask(ReadFile(begun.id, "", 9, 3))
        assert beyond.piece == b""
        desk.store.bodies.delete(begun.id)
        with pytest.raises(NotFound):
            await desk.ask(ReadFile(begun.id, "", 0, 1))

    played(tmp_path, scene)


def test_only_its_owner_sees_a_file_or_a_batch(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        batch = await desk.batch(requests([1]), principal="me")
        await desk.end_of(batch)
        file = desk.record(batch).input_file
        assert await desk.ask(GetBatch(batch, "me"))
        for message in (
            GetFile(file, ""), ReadFile(file, "you", 0, 1), DeleteFile(file, "you"),
            GetBatch(batch, "you"), CancelBatch(batch, ""), GetFile("../batches.db", "me"),
            CreateBatch(bytes(16), "you", "b", ENDPOINT, file),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await desk.ask(message)
        files: Any = await desk.ask(ListFiles("you"))
        batches: Any = await desk.ask(ListBatches("you"))
        assert (files.files, batches.batches) == ((), ())

    played(tmp_path, scene)


def test_lists_come_in_pages(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        made = [await desk.batch(requests([x])) for x in range(5)]
        for batch in made:
            await desk.end_of(batch)

        async def ids(message: ListBatches) -> tuple[list[str], bool]:
            found: Any = await desk.ask(message)
            return [each.id for each in found.batches], found.has_more

        assert await ids(ListBatches("", most=2)) == ([made[4], made[3]], True)
        assert await ids(ListBatches("", made[3], 3)) == ([made[2], made[1], made[0]], False)
        inputs = [desk.record(batch).input_file for batch in made]
        found: Any = await desk.ask(ListFiles("", purpose="batch", oldest_first=True, most=10))
        assert [each.id for each in found.files] == inputs
        with pytest.raises(InvalidRequest) as refused:
            await desk.ask(ListFiles("", "unknown"))
        assert refused.value.param == "after"

    played(tmp_path, scene)


def test_an_input_stays_while_its_batch_is_open(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        desk.calls.closed = {1}
        batch = await desk.batch(requests([1]))
        file = desk.record(batch).input_file
        with pytest.raises(InvalidRequest, match=f"input of batch {batch}"):
            await desk.ask(DeleteFile(file, ""))
        desk.now_ms += 2 * SETTINGS.ttl_ms
        await desk.runner._drop_old()
        assert file in desk.store.files
        desk.calls.release()
        await desk.end_of(batch)
        await desk.ask(DeleteFile(file, ""))
        assert file not in os.listdir(tmp_path / "files")

    played(tmp_path, scene)


def test_files_and_batches_are_dropped_in_time(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        batch = await desk.batch(requests([1]))
        await desk.end_of(batch)
        desk.now_ms += SETTINGS.ttl_ms
        await desk.runner._drop_old()
        assert not desk.store.files
        assert not desk.store.batches
        assert os.listdir(tmp_path / "files") == []
        assert (desk.store.quotas.bytes, desk.store.quotas.files) == (0, 0)

    played(tmp_path, scene)


def test_one_caller_cannot_fill_the_store(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        await desk.file(b"x" * 600, "a")
        begun: Any = await desk.ask(BeginUpload(bytes(16), "", "a"))
        with pytest.raises(StorageFull, match="this caller's files have 600 bytes, and may have"):
            await desk.ask(AppendToUpload(begun.id, 0, b"x" * 500))
        await desk.ask(AppendToUpload(begun.id, 0, b"x" * 400))
        await desk.file(b"x" * 1000, "b")
        with pytest.raises(StorageFull, match="of all callers have 2000 of 2000 bytes"):
            await desk.file(b"x", "c")
        await desk.ask(DropUpload(begun.id))
        await desk.file(b"x" * 300, "c")
        assert desk.store.quotas.bytes == 1900

    played(tmp_path, scene, bytes=2000)


def test_the_number_of_files_is_limited_too(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        await desk.file(b"x", "a")
        await desk.file(b"x", "a")
        with pytest.raises(StorageFull, match="files_max"):
            await desk.ask(BeginUpload(bytes(16), "", "a"))
        await desk.file(b"x", "b")

    played(tmp_path, scene, files=4)


def test_uploads_are_limited_in_size_and_number(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        with pytest.raises(TooLarge, match="file_max_mib"):
            await desk.ask(BeginUpload(bytes(16), "", "a", announced=101))
        begun: Any = await desk.ask(BeginUpload(bytes(16), "", "a"))
        with pytest.raises(InvalidRequest, match="a piece at 1 came; one at 0"):
            await desk.ask(AppendToUpload(begun.id, 1, b"x"))
        with pytest.raises(TooLarge):
            await desk.ask(AppendToUpload(begun.id, 0, b"x" * 101))
        with pytest.raises(InvalidRequest, match="0 bytes came; 5 were"):
            await desk.ask(EndUpload(begun.id, "x", "batch", 5))
        for n in range(1, 16):
            await desk.ask(BeginUpload(bytes([n]) * 16, "", "a"))
        with pytest.raises(Overloaded):
            await desk.ask(BeginUpload(b"\xff" * 16, "", "a"))
        await desk.ask(BeginUpload(b"\xff" * 16, "", "b"))
        desk.now_ms += 3_600_000
        await desk.uploads.drop_idle(desk.now_ms)
        assert desk.store.quotas.files == 0
        with pytest.raises(NotReady, match="send the file again"):
            await desk.ask(AppendToUpload(begun.id, 0, b"x"))

    played(tmp_path, scene, most_bytes=100)


def test_what_a_killed_process_was_taking_is_removed(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        begun: Any = await desk.ask(BeginUpload(bytes(16), "", "a"))
        await desk.ask(AppendToUpload(begun.id, 0, b"x" * 50))
        await desk.file(b"kept", "a")
        assert len(os.listdir(tmp_path / "files")) == 2

    async def after(desk: Desk) -> None:
        (kept,) = desk.store.files
        assert os.listdir(tmp_path / "files") == [kept]
        assert desk.content(kept) == b"kept"
        assert (desk.store.quotas.bytes, desk.store.quotas.files) == (4, 1)

    played(tmp_path, before)
    played(tmp_path, after)


def test_what_batches_have_written_counts_after_a_restart(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        desk.calls.closed = {3}
        batch = await desk.batch(requests(range(5)))
        await desk.until(lambda: desk.record(batch).progress.completed == 3)
        counted.append(desk.store.quotas.bytes)

    async def after(desk: Desk) -> None:
        assert desk.store.quotas.bytes == counted[0] > len(requests(range(5)))

    counted: list[int] = []
    played(tmp_path, before)
    played(tmp_path, after)


def test_callers_take_turns(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        desk.calls.closed = set(range(20))
        many = [await desk.batch(request(x), "greedy") for x in range(4)]
        others = [await desk.batch(request(10 + x), f"modest {x // 2}") for x in range(8)]
        await desk.until(lambda: len(desk.calls.seen) == 8)
        assert set(desk.runner._runs) == {*many[:2], *others[:6]}, "two of each, eight of all"
        desk.calls.release()
        for batch in (*many, *others):
            await desk.end_of(batch)

    played(tmp_path, scene)


def test_the_batches_that_run_share_half_of_the_slots(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        desk.calls.closed = set(range(100))
        first = await desk.batch(requests(range(50)), "a")
        await desk.until(lambda: len(desk.calls.seen) == 8)
        second = await desk.batch(requests(range(50)), "b")
        await desk.until(lambda: len(desk.calls.seen) == 12)
        assert desk.calls.seen == [*range(8), *range(4)]
        desk.calls.release()
        for batch in (first, second):
            await desk.end_of(batch)
            assert desk.output(batch) == list(range(50))

    played(tmp_path, scene, client_slots=16)


def test_the_oldest_batches_of_who_has_most_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.answers._MOST_KEPT", 3)

    async def scene(desk: Desk) -> None:
        modest = await desk.batch(request(0), "modest")
        await desk.end_of(modest)
        greedy = []
        for _ in range(5):
            greedy.append(await desk.batch(request(0), "greedy"))
            await desk.end_of(greedy[-1])
        assert set(desk.store.batches) == {modest, *greedy[-2:]}

    played(tmp_path, scene)


def test_a_batch_that_fails_again_and_again_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.runner._RETRY_MS", 0)

    async def scene(desk: Desk) -> None:
        desk.calls.closed = {0}
        batch = await desk.batch(requests([0]))
        await desk.until(lambda: desk.calls.seen)
        await desk.runner.stop()
        monkeypatch.setattr("batchpool.batches.batch_run.take_survey", None)  # a fault of ours
        desk.runner._stopping = False
        desk.runner.start_due()
        record = await desk.end_of(batch)
        assert (record.status, record.faults[0].code) == ("failed", "internal")

    played(tmp_path, scene)


def test_another_batch_is_refused_where_too_many_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.answers._MOST_OPEN", 4)

    async def scene(desk: Desk) -> None:
        desk.calls.closed = {0}
        for caller in ("a", "a", "b"):
            await desk.batch(request(0), caller)
        with pytest.raises(Overloaded, match="2 of them of this caller"):
            await desk.batch(request(0), "a")
        file = await desk.file(request(0), "b")
        message = CreateBatch(bytes(16), "", "b", ENDPOINT, file.id)
        assert await desk.ask(message) == await desk.ask(message), "a question may come twice"

    played(tmp_path, scene)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("PRAGMA user_version = 99", "made by a newer batchpool"),
        ("PRAGMA application_id = 7", "is no database of batches"),
    ],
)
def test_a_database_of_another_kind_is_refused(tmp_path: Path, statement: str, text: str) -> None:
    BatchStore(tmp_path, SETTINGS)._database._db.execute(statement).connection.close()
    with pytest.raises(FolderUnusable, match=text):
        BatchStore(tmp_path, SETTINGS)
    (tmp_path / "batches.db").write_bytes(b"no database" * 500)
    with pytest.raises(FolderUnusable, match="cannot be opened"):
        BatchDatabase(tmp_path / "batches.db")


def test_half_of_little_is_at_least_one() -> None:
    quotas = Quotas(replace(SETTINGS, files=1, bytes=1))
    assert quotas.lack("a", 1, 1) == ""
    quotas.add("a", 1, 1)
    assert "files of all callers" in quotas.lack("b", 1)
