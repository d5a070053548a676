"""The store of files and batches: records in memory and in a database, bytes in a folder.

Questions are answered from memory. Each change is written to the disk first, in one thread, so that
what a caller was told outlives every process. What lies in the folder without a record, as of an
upload that a killed process was taking, is removed at the start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from batchpool.batches.database import BatchDatabase, FolderUnusable
from batchpool.batches.file_bodies import FileBodies
from batchpool.batches.own_folder import make_own_folder
from batchpool.batches.quotas import Quotas
from batchpool.batches.records import BatchProgress, BatchRecord, FileRecord
from batchpool.batches.settings import BatchSettings
from batchpool.control.batch_messages import BatchCounts
from batchpool.core.errors import NotReady, StorageFull

T = TypeVar("T")

_LOG = logging.getLogger("batchpool.tasks")

_KEPT_FREE_BYTES = 2**30
_KEPT_FREE_SHARE = 20  # one of so many bytes of the disk, where that is less
_RETRY_AFTER_MS = 30_000
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_FULL = "the disk of the files is full"
_AWAY = "the disk of the files cannot be used at the moment; the pool's log says why"
_AWAY_RETRY_MS = 5000


class BatchStore:
    """The store in a folder. files, batches: by id, the oldest first. quotas: what they take.
    process: a name that no other process has. going: ids of what will be gone in a moment.

    Raises FolderUnusable where the folder cannot be used. Its coroutines raise StorageFull where
    the disk is full, NotReady where it fails otherwise, and change nothing then.
    """

    def __init__(self, folder: Path, settings: BatchSettings) -> None:
        self.settings = settings
        self._folder = folder
        self.process = os.urandom(8).hex()
        self.quotas = Quotas(settings)
        try:
            make_own_folder(folder)
            self.bodies = FileBodies(folder / "files")
        except OSError as exc:
            raise FolderUnusable(
                f"the folder of batches {folder} cannot be used: {exc.strerror}; set another"
                " state_dir, or see to it that this user may write there"
            ) from None
        self._database = BatchDatabase(folder / "batches.db")
        self._disk = ThreadPoolExecutor(1, "batches-disk")
        files, batches = self._database.load()
        self.files = {each.id: each for each in files}
        self.batches = {each.id: each for each in batches}
        self._lines = {"completed": 0, "failed": 0}
        # While the disk is told, other questions are answered: for these it is so already.
        self._coming: dict[str, BatchRecord] = {}
        self.going: set[str] = set()
        for file in files:
            self.quotas.add(file.owner.caller, file.bytes, 1)
        for batch in self.open_batches():
            self._count_outputs(batch, BatchProgress(), batch.progress)
        self._remove_strays()

    def _remove_strays(self) -> None:
        known = set(self.files)
        for batch in self.open_batches():
            known |= {batch.output_file, batch.error_file}
        for name in self.bodies.names():
            if name not in known:
                self.bodies.delete(name)

    def open_batches(self) -> Iterator[BatchRecord]:
        """The batches that have not ended."""
        return (each for each in self.batches.values() if not each.status.has_ended)

    def taken_batches(self) -> list[BatchRecord]:
        """The open batches, and those that will be in a moment."""
        return [*self.open_batches(), *self._coming.values()]

    def counts(self) -> BatchCounts:
        """The counts of everything that is kept, and of the lines of this process."""
        statuses = Counter(each.status.value for each in self.batches.values())
        return BatchCounts(dict(statuses), dict(self._lines), self.quotas.files, self.quotas.bytes)

    def inputs(self) -> dict[str, str]:
        """{file: the open batch that it is the input of, or will be in a moment}."""
        return {each.input_file: each.id for each in self.taken_batches()}

    def has_disk_room(self) -> bool:
        """True while new bytes may be taken, so that what is there can go on."""
        free, total = self.bodies.free_and_total()
        return free >= min(_KEPT_FREE_BYTES, total // _KEPT_FREE_SHARE)

    def check_room(self, caller: str, n_bytes: int, files: int = 0) -> None:
        """Raise StorageFull where so much more of a caller's cannot be kept, and NotReady where the
        disk cannot be asked."""
        self.quotas.check(caller, n_bytes, files)
        try:
            has_room = self.has_disk_room()
        except OSError as exc:
            raise away(exc) from exc
        if not has_room:
            raise StorageFull(_DISK_FULL, _RETRY_AFTER_MS)

    def check_place(self) -> None:
        """Raise FolderUnusable where the database, or the folder of the bytes, is not in its place
        any more: what is written would be found by no other process."""
        if not (self._database.is_in_place() and self.bodies.are_in_place()):
            raise FolderUnusable(
                f"the folder of batches {self._folder} was moved, removed or replaced while the"
                " pool used it; the files and batches go with it: put it back while the pool is"
                " stopped"
            )

    async def run(self, work: Callable[[], T]) -> T:
        """The result of some work with the disk, done in its thread in the order of the calls."""

        def in_place() -> T:
            self.check_place()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, in_place)
        except (OSError, sqlite3.Error, FolderUnusable) as exc:
            code = getattr(exc, "errno", None) or getattr(exc, "sqlite_errorcode", None)
            if code in (_FULL if isinstance(exc, OSError) else (sqlite3.SQLITE_FULL,)):
                raise _disk_full(exc) from exc
            raise away(exc) from exc

    # -- files --------------------------------------------------------------------------

    async def keep_file(self, record: FileRecord) -> None:
        """Keep a file whose bytes have been written. Its bytes are counted by its upload."""

        def keep() -> None:
            self.bodies.settle(record.id, record.bytes)
            self.bodies.settle_names()
            self._database.write(files=(record,))

        await self.run(keep)
        self.files[record.id] = record

    async def drop(self, identifiers: Iterable[str]) -> None:
        """Drop files, and records of batches that have ended."""
        gone = [each for each in identifiers if each in self.files or each in self.batches]

        def drop() -> None:
            self._database.write(dropped=gone)
            for identifier in gone:
                self.bodies.delete(identifier)

        self.going.update(gone)
        try:
            await self.run(drop)
        finally:
            self.going.difference_update(gone)
        for identifier in gone:
            self.batches.pop(identifier, None)
            file = self.files.pop(identifier, None)
            if file is not None:
                self.quotas.add(file.owner.caller, -file.bytes, -1)

    # -- batches ------------------------------------------------------------------------

    async def keep_batch(self, record: BatchRecord) -> None:
        """Keep a batch that is new or has changed."""
        if record.id not in self.batches:
            self._coming[record.id] = record
        try:
            await self.run(lambda: self._database.write(batches=(record,)))
        finally:
            self._coming.pop(record.id, None)
        self.batches[record.id] = record

    async def add_lines(
        self, record: BatchRecord, outputs: bytes, errors: bytes, progress: BatchProgress
    ) -> BatchRecord:
        """Append answers to the files of a batch, and count them: all or nothing, also if the
        process dies. progress: afterwards, but for the sizes of the files. Returns the batch."""
        old = record.progress
        progress = msgspec.structs.replace(
            progress,
            output_bytes=old.output_bytes + len(outputs),
            error_bytes=old.error_bytes + len(errors),
        )
        changed = msgspec.structs.replace(record, progress=progress, losses=0)
        parts = [(record.output_file, old.output_bytes, outputs)]
        parts.append((record.error_file, old.error_bytes, errors))

        def add() -> None:
            for identifier, offset, piece in parts:
                if piece:
                    # What a killed process wrote behind the last count is written over or cut off.
                    self.bodies.write(identifier, offset, piece)
                    self.bodies.settle(identifier, offset + len(piece))
            self._database.write(batches=(changed,))

        await self.run(add)
        self.batches[record.id] = changed
        self._count_outputs(record, old, progress)
        self._lines["completed"] += progress.completed - old.completed
        self._lines["failed"] += progress.failed - old.failed
        return changed

    async def end_batch(self, record: BatchRecord, now_ms: int) -> BatchRecord:
        """Keep a batch that has ended, and its files with it. Returns it as it is kept."""
        progress, owner = record.progress, record.owner
        expires_ms = now_ms + record.output_ttl_ms
        sizes = {
            f"{record.id}_output.jsonl": (record.output_file, progress.output_bytes),
            f"{record.id}_error.jsonl": (record.error_file, progress.error_bytes),
        }
        files = [
            FileRecord(identifier, owner, name, "batch_output", size, now_ms, expires_ms)
            for name, (identifier, size) in sizes.items()
            if size
        ]
        ended = msgspec.structs.replace(
            record, has_files=True, drop_ms=max(expires_ms, now_ms + self.settings.ttl_ms)
        )

        def end() -> None:
            for identifier, size in sizes.values():
                if size:
                    self.bodies.settle(identifier, size)
                else:
                    self.bodies.delete(identifier)
            self.bodies.settle_names()
            self._database.write(files=files, batches=(ended,))

        await self.run(end)
        self.batches[record.id] = ended
        for file in files:
            self.files[file.id] = file
            self.quotas.add(owner.caller, 0, 1)
        return ended

    def _count_outputs(
        self, record: BatchRecord, before: BatchProgress, after: BatchProgress
    ) -> None:
        more = after.output_bytes + after.error_bytes - before.output_bytes - before.error_bytes
        self.quotas.add(record.owner.caller, more)

    async def close(self) -> None:
        """Let go of the database, once what was asked of the disk is done."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._database.close)
        self.bodies.close()
        self._disk.shutdown()


def away(exc: BaseException) -> NotReady:
    """The refusal for a disk that fails. Its error has paths, which are for the log and not for
    callers over HTTP."""
    _LOG.error("files and batches cannot be kept at the moment: %s", exc)
    return NotReady(_AWAY, _AWAY_RETRY_MS)


def _disk_full(exc: BaseException) -> StorageFull:
    _LOG.warning("the disk of the files is full: %s", exc)
    return StorageFull(_DISK_FULL, _RETRY_AFTER_MS)
