"""A disk of files and batches that fails, and a folder that is moved away under the process."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from batchpool.batches.database import BatchDatabase, FolderUnusable
from batchpool.batches.line_file import InputLine, LineFile
from batchpool.batches.records import BatchRecord, BatchStatus
from batchpool.control.batch_messages import (
    AppendToUpload,
    BeginUpload,
    CreateBatch,
    DeleteFile,
    EndUpload,
    ReadFile,
)
from batchpool.core.errors import InternalError, NotReady, StorageFull
from tests.unit.batches.desk import ENDPOINT, Desk, requests
from tests.unit.batches.test_answers import played

READ_ONLY = sqlite3.OperationalError("attempt to write a readonly database")
FAILURES = [READ_ONLY, OSError(errno.EIO, "Input/output error", "/a/path")]


class FailingDisk:
    """Fails every write of a desk's database and files while `error` is one."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        for part in (desk.store._database, desk.store.bodies):
            self._fail(part, monkeypatch)

    def _fail(self, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        write = part.write

        def failing(*args: Any, **more: Any) -> None:
            if self.error is not None:
                raise self.error
            write(*args, **more)

        monkeypatch.setattr(part, "write", failing)


@pytest.mark.parametrize("error", FAILURES, ids=["database", "file"])
def test_callers_hear_that_the_disk_fails_and_not_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def scene(desk: Desk) -> None:
        file = await desk.file(requests([1]))
        disk = FailingDisk(desk, monkeypatch)
        begun: Any = await desk.ask(BeginUpload(desk.token(), "", "a"))
        await desk.ask(AppendToUpload(begun.id, 0, b"x"))
        disk.error = error
        messages: list[Any] = [
            CreateBatch(desk.token(), "", "a", ENDPOINT, file.id),
            DeleteFile(file.id, ""),
        ]
        if isinstance(error, OSError):
            messages.append(AppendToUpload(begun.id, 1, b"y"))
        else:
            messages.append(EndUpload(begun.id, "name", "batch", 1))
        for message in messages:
            with pytest.raises(NotReady, match="the pool's log says why") as refused:
                await desk.ask(message)
            assert "/a/path" not in refused.value.message
        disk.error = None
        assert not desk.store.batches
        await desk.ask(DeleteFile(file.id, ""))

    played(tmp_path, scene)


def test_callers_hear_that_the_disk_is_full_and_not_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(desk: Desk) -> None:
        begun: Any = await desk.ask(BeginUpload(desk.token(), "", "a"))
        disk = FailingDisk(desk, monkeypatch)
        disk.error = OSError(errno.ENOSPC, "No space left on device", "/a/path")
        with pytest.raises(StorageFull) as refused:
            await desk.ask(AppendToUpload(begun.id, 0, b"x"))
        assert refused.value.message == "the disk of the files is full"

    played(tmp_path, scene)


@pytest.mark.parametrize("error", FAILURES, ids=["database", "file"])
def test_a_batch_waits_until_its_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """However often it has failed: it is no fault of the batch."""
    monkeypatch.setattr("batchpool.batches.runner._UPKEEP_S", 0.001)
    monkeypatch.setattr("batchpool.batches.runner._RETRY_MS", 0)
    monkeypatch.setattr("batchpool.batches.batch_run._FULL_RETRY_S", 0.001)

    async def scene(desk: Desk) -> None:
        disk = FailingDisk(desk, monkeypatch)
        desk.calls.closed = {1}
        batch = await desk.batch(requests([1, 2]))
        await desk.until(lambda: desk.calls.seen)
        disk.error = error
        desk.calls.release()
        upkeep = asyncio.create_task(desk.runner.run())
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert not upkeep.done()
        assert desk.record(batch).status is BatchStatus.IN_PROGRESS
        disk.error = None
        assert (await desk.end_of(batch)).status is BatchStatus.COMPLETED
        assert desk.output(batch) == [1, 2]
        upkeep.cancel()

    played(tmp_path, scene)


def test_upkeep_goes_on_where_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the task process's own: with it all tasks would end."""
    monkeypatch.setattr("batchpool.batches.runner._UPKEEP_S", 0.001)

    async def scene(desk: Desk) -> None:
        file = await desk.file(requests([1]))
        disk = FailingDisk(desk, monkeypatch)
        disk.error = READ_ONLY
        desk.now_ms = file.expires_ms
        upkeep = asyncio.create_task(desk.runner.run())
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not upkeep.done()
        disk.error = None
        await desk.until(lambda: not desk.store.files)
        upkeep.cancel()

    played(tmp_path, scene)


@pytest.mark.parametrize("left", [b"", requests([1]), None])
def test_an_input_that_is_not_whole_fails_its_batch_and_says_so(
    tmp_path: Path, left: bytes | None
) -> None:
    """It would be completed without some of its lines."""

    async def scene(desk: Desk) -> None:
        file = await desk.file(requests([1, 2]))
        path = desk.store.bodies.path(file.id)
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        made: Any = await desk.ask(CreateBatch(desk.token(), "", "a", ENDPOINT, file.id))
        record = await desk.end_of(made.batch.id)
        assert record.status is BatchStatus.FAILED
        (fault,) = record.faults
        assert fault.code == "damaged_file"
        assert f"{len(left or b'')} of its {file.bytes} bytes are there" in fault.message
        assert desk.calls.seen == []

    played(tmp_path, scene)


def test_a_file_that_is_not_whole_is_no_answer(tmp_path: Path) -> None:
    async def scene(desk: Desk) -> None:
        file = await desk.file(b"0123456789")
        os.truncate(desk.store.bodies.path(file.id), 4)
        first: Any = await desk.ask(ReadFile(file.id, "", 0, 3))
        assert first.piece == b"012"
        with pytest.raises(InternalError, match="4 of its 10 bytes are there; delete it"):
            await desk.ask(ReadFile(file.id, "", 3, 9))

    played(tmp_path, scene)


@pytest.mark.parametrize("after", [0, 1])
def test_an_input_that_cannot_be_read_now_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """However often that fails, in the first look at it as in the second reading."""
    monkeypatch.setattr("batchpool.batches.runner._UPKEEP_S", 0.001)
    monkeypatch.setattr("batchpool.batches.runner._RETRY_MS", 0)
    reads, whole = 0, LineFile.next_lines

    def failing(file: LineFile, most: int, most_bytes: int) -> list[InputLine]:
        nonlocal reads
        reads += 1
        if after < reads < 10:
            raise OSError(errno.EIO, "Input/output error", "/a/path")
        return whole(file, most, most_bytes)

    monkeypatch.setattr(LineFile, "next_lines", failing)

    async def scene(desk: Desk) -> None:
        upkeep = asyncio.create_task(desk.runner.run())
        batch = await desk.batch(requests([1, 2]))
        assert (await desk.end_of(batch)).status is BatchStatus.COMPLETED
        assert desk.output(batch) == [1, 2]
        assert reads >= 10
        upkeep.cancel()

    played(tmp_path, scene)


@pytest.mark.parametrize("leaves", ["nothing", "no bytes", "an empty folder", "another database"])
def test_a_folder_that_was_moved_takes_nothing_and_ends_the_process(
    tmp_path: Path, leaves: str
) -> None:
    """A file that is written into it would be acknowledged, and found by nobody."""

    async def scene() -> None:
        folder = tmp_path / "here"
        desk = Desk(folder)
        file = await desk.file(requests([1]))
        if leaves == "no bytes":
            shutil.copytree(folder, tmp_path / "elsewhere")
            shutil.rmtree(folder / "files")
        else:
            shutil.move(folder, tmp_path / "elsewhere")
        if leaves in ("an empty folder", "another database"):
            (folder / "files").mkdir(parents=True)
        if leaves == "another database":
            BatchDatabase(folder / "batches.db").close()
        for message in (
            CreateBatch(desk.token(), "", "a", ENDPOINT, file.id),
            DeleteFile(file.id, ""),
            ReadFile(file.id, "", 0, 1),
        ):
            with pytest.raises(NotReady, match="cannot be used at the moment"):
                await desk.ask(message)
        with pytest.raises(NotReady, match="cannot be used at the moment"):
            begun: Any = await desk.ask(BeginUpload(desk.token(), "", "a"))
            await desk.ask(AppendToUpload(begun.id, 0, b"x"))
        async with asyncio.timeout(60):
            with pytest.raises(FolderUnusable, match="was moved, removed or replaced"):
                await desk.runner.run()
        await desk.close()
        moved = Desk(tmp_path / "elsewhere")
        assert list(moved.store.files) == [file.id]
        await moved.close()

    asyncio.run(scene())


def test_the_next_process_takes_up_what_a_disk_that_failed_at_the_end_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        disk = FailingDisk(desk, monkeypatch)
        desk.calls.closed = {1}
        batch = await desk.batch(requests([1]))
        await desk.until(lambda: desk.calls.seen)
        disk.error = READ_ONLY
        await desk.close()
        after = Desk(tmp_path)
        after.runner.start_due()
        record: BatchRecord = await after.end_of(batch)
        assert record.status is BatchStatus.COMPLETED
        await after.close()

    asyncio.run(scene())


def test_the_database_is_for_the_pools_user_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        database = BatchDatabase(tmp_path / "batches.db")
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        database.close()
    finally:
        os.umask(mask)
    assert modes == {0o600}


def test_a_database_that_another_pool_has_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.batches.database._LOCK_WAIT_S", 0.0)
    database = BatchDatabase(tmp_path / "batches.db")
    with pytest.raises(FolderUnusable, match="another pool has it: stop that one"):
        BatchDatabase(tmp_path / "batches.db")
    database.close()


def test_a_damaged_database_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "batches.db").write_bytes(b"no database" * 100)
    with pytest.raises(FolderUnusable, match=r"move the folder .* away to begin anew"):
        BatchDatabase(tmp_path / "batches.db")


def test_a_folder_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batches.db").mkdir()
    with pytest.raises(FolderUnusable, match=r"unable to open .* this user may write there"):
        BatchDatabase(tmp_path / "batches.db")


def test_a_folder_among_the_files_is_left_alone(tmp_path: Path) -> None:
    """As lost+found of a disk that is mounted there."""
    stray = tmp_path / "files" / "lost+found"
    stray.mkdir(parents=True)

    async def scene(desk: Desk) -> None:
        assert stray.is_dir()

    played(tmp_path, scene)
