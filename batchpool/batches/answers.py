"""The answers of the task process to questions about files and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar, assert_never

from batchpool.batches.records import (
    TOKEN_BYTES,
    WINDOW_MS,
    BatchRecord,
    FileRecord,
    Owner,
    batch_id,
)
from batchpool.batches.runner import BatchRunner
from batchpool.batches.store import BatchStore
from batchpool.batches.uploads import Uploads
from batchpool.control.batch_messages import (
    AppendToUpload,
    BatchForm,
    BatchFound,
    BatchList,
    BeginUpload,
    CancelBatch,
    CreateBatch,
    DeleteFile,
    DropUpload,
    EndUpload,
    FileFound,
    FileList,
    FilePiece,
    GetBatch,
    GetFile,
    ListBatches,
    ListFiles,
    ReadFile,
    UploadState,
)
from batchpool.control.edges import BatchReply, ToBatches
from batchpool.core.errors import InternalError, InvalidRequest, NotFound, Overloaded, PoolError
from batchpool.wire.batch_lines import ENDPOINTS
from batchpool.wire.request import brief

_MOST_READ_BYTES = 1 << 20
_MOST_OPEN = 1000
_MOST_LISTED = 1000  # files of one answer, however many are asked for
_MOST_KEPT = 10_000
_RETRY_AFTER_MS = 60_000

Record = TypeVar("Record", FileRecord, BatchRecord)


class BatchAnswers:
    """Answers questions about one store. clock_ms: Unix time."""

    def __init__(
        self,
        store: BatchStore,
        uploads: Uploads,
        runner: BatchRunner,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._uploads = uploads
        self._runner = runner
        self._clock_ms = clock_ms

    async def answer(self, message: ToBatches) -> BatchReply:
        """The reply to one message. Raises the PoolError that refuses it."""
        now_ms = self._clock_ms()
        match message:
            case BeginUpload():
                return UploadState(await self._uploads.begin(message, now_ms))
            case AppendToUpload():
                await self._uploads.append(message, now_ms)
                return UploadState(message.id)
            case EndUpload():
                return FileFound((await self._uploads.end(message, now_ms)).form())
            case DropUpload():
                await self._uploads.drop(message.id)
                return UploadState(message.id)
            case GetFile():
                return FileFound(self._file(message.id, message.principal).form())
            case ListFiles():
                return self._list_files(message)
            case ReadFile():
                return await self._read(message)
            case DeleteFile():
                return await self._delete(message)
            case CreateBatch():
                return BatchFound(self._form(await self._create(message, now_ms)))
            case GetBatch():
                return BatchFound(self._form(self._batch(message.id, message.principal)))
            case ListBatches():
                return self._list_batches(message)
            case CancelBatch():
                record = self._batch(message.id, message.principal)
                return BatchFound(self._form(await self._runner.cancel(record)))
            case _ as never:
                assert_never(never)

    # -- files --------------------------------------------------------------------------

    def _file(self, identifier: str, principal: str, param: str = "id") -> FileRecord:
        record = self._store.files.get(identifier)
        is_going = identifier in self._store.going
        if record is None or is_going or record.owner.principal != principal:
            raise _about(param, NotFound(f"there is no file {brief(identifier)}"))
        return record

    def _list_files(self, message: ListFiles) -> FileList:
        found = [
            each
            for each in self._store.files.values()
            if each.owner.principal == message.principal and message.purpose in ("", each.purpose)
        ]
        if not message.oldest_first:
            found.reverse()
        page, has_more = _page(found, message.after, min(message.most, _MOST_LISTED))
        return FileList(tuple(each.form() for each in page), has_more)

    async def _read(self, message: ReadFile) -> FilePiece:
        record = self._file(message.id, message.principal)
        most = min(message.most, _MOST_READ_BYTES, max(0, record.bytes - message.offset))
        bodies = self._store.bodies

        def read() -> bytes | None:
            try:
                return bodies.read(record.id, message.offset, most)
            except FileNotFoundError:  # it was deleted meanwhile
                return None

        piece = await self._store.run(read)
        if piece is None:
            raise _about("id", NotFound(f"there is no file {record.id}"))
        if len(piece) < most:
            raise InternalError(
                f"file {record.id} is damaged on the server's disk: {message.offset + len(piece)}"
                f" of its {record.bytes} bytes are there; delete it, and upload it again"
            )
        return FilePiece(piece)

    async def _delete(self, message: DeleteFile) -> FileFound:
        record = self._file(message.id, message.principal)
        if batch := self._store.inputs().get(record.id):
            raise InvalidRequest(
                f"file {record.id} is the input of batch {batch}, which has not ended; cancel that"
                " one first"
            )
        await self._store.drop([record.id])
        return FileFound(record.form())

    # -- batches ------------------------------------------------------------------------

    def _form(self, record: BatchRecord) -> BatchForm:
        return record.form(self._runner.waiting_for(record.id))

    def _batch(self, identifier: str, principal: str) -> BatchRecord:
        record = self._store.batches.get(identifier)
        if record is None or record.owner.principal != principal:
            raise _about("id", NotFound(f"there is no batch {brief(identifier)}"))
        return record

    async def _create(self, message: CreateBatch, now_ms: int) -> BatchRecord:
        if len(message.token) != TOKEN_BYTES:
            raise InvalidRequest(f"a token has {TOKEN_BYTES} bytes")
        identifier = batch_id(message.token)
        if (kept := self._store.batches.get(identifier)) is not None:
            return kept
        if message.endpoint not in ENDPOINTS:
            text = (
                f"endpoint is {brief(message.endpoint)}; one of {', '.join(ENDPOINTS)} was expected"
            )
            raise _about("endpoint", InvalidRequest(text))
        file = self._file(message.input_file, message.principal, "input_file_id")
        if file.purpose != "batch":
            text = f'file {file.id} has the purpose {file.purpose}; "batch" was expected'
            raise _about("input_file_id", InvalidRequest(text))
        owner = Owner(message.principal, message.caller)
        self._check_number(owner)
        record = BatchRecord(
            identifier, owner, message.endpoint, file.id, now_ms, now_ms + WINDOW_MS,
            message.ttl_ms or self._store.settings.ttl_ms, metadata=message.metadata,
        )  # fmt: skip
        await self._store.keep_batch(record)
        self._runner.start_due()
        await self._forget_one()
        return record

    async def _forget_one(self) -> None:
        """Where too many batches are kept, drop the record of the oldest that has ended of who has
        the most, so that nobody keeps others from having some."""
        kept = self._store.batches.values()
        if len(kept) > _MOST_KEPT:
            ended = [each for each in kept if each.status.has_ended]
            owners = Counter(each.owner for each in ended)
            await self._store.drop(
                [min(ended, key=lambda each: (-owners[each.owner], each.created_ms)).id]
            )

    def _check_number(self, owner: Owner) -> None:
        owners = [each.owner for each in self._store.taken_batches()]
        if len(owners) >= _MOST_OPEN or owners.count(owner) >= _MOST_OPEN // 2:
            raise Overloaded(
                f"{len(owners)} batches have not ended, {owners.count(owner)} of them of this"
                f" caller; at most {_MOST_OPEN} and {_MOST_OPEN // 2} are taken",
                _RETRY_AFTER_MS,
            )

    def _list_batches(self, message: ListBatches) -> BatchList:
        found = [
            each
            for each in self._store.batches.values()
            if each.owner.principal == message.principal
        ]
        found.reverse()
        page, has_more = _page(found, message.after, message.most)
        return BatchList(tuple(map(self._form, page)), has_more)


def _page(found: list[Record], after: str, most: int) -> tuple[Iterable[Record], bool]:
    """At most so many records behind the one with the id `after`, and whether there are more."""
    start = 0
    if after:
        place = [index for index, each in enumerate(found) if each.id == after]
        if not place:
            text = f"after is {brief(after)}; the id of one that is listed was expected"
            raise _about("after", InvalidRequest(text))
        start = place[0] + 1
    return found[start : start + most], len(found) > start + most


def _about(param: str, error: PoolError) -> PoolError:
    error.param = param
    return error
