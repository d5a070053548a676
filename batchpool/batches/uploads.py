"""Uploads under way: bytes that arrive piece by piece, counted against their caller's share.

Each piece bears its place, so that one which is sent again changes nothing. An upload whose front
end has died is dropped when nothing of it has come for a while.

A caller may have fewer uploads than there are places left, so that a few callers cannot take them
all. Where many have taken them, one who has none gets the place of the caller with the most: that
of the upload of which nothing has come for the longest time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from batchpool.batches.records import TOKEN_BYTES, FileRecord, Owner, file_id
from batchpool.batches.store import BatchStore
from batchpool.control.batch_messages import AppendToUpload, BeginUpload, EndUpload
from batchpool.core.errors import InvalidRequest, NotReady, Overloaded, TooLarge

_MOST_UPLOADS = 64
_MOST_OF_A_CALLER = _MOST_UPLOADS // 4
_STALLED_MS = 5000  # then it gives its place to one who has none, though its caller has no other
_IDLE_MS = 10 * 60 * 1000
_RETRY_AFTER_MS = 1000


@dataclass(slots=True)
class _Upload:
    owner: Owner
    used_ms: int
    bytes: int = 0
    ends: bool = False  # it becomes a file just now


class Uploads:
    """The uploads of one store."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self._uploads: dict[str, _Upload] = {}

    async def begin(self, message: BeginUpload, now_ms: int) -> str:
        """Begin an upload, or find it; returns the id of its file. Raises InvalidRequest, TooLarge,
        Overloaded and StorageFull where it is refused."""
        if len(message.token) != TOKEN_BYTES:
            raise InvalidRequest(f"a token has {TOKEN_BYTES} bytes")
        identifier = file_id(message.token)
        if identifier in self._uploads or identifier in self._store.files:
            return identifier
        owner = Owner(message.principal, message.caller)
        self._check_size(message.announced)
        self._store.check_room(owner.caller, max(1, message.announced), 1)
        gives_way = self._place_for(owner, now_ms)
        self._store.quotas.add(owner.caller, 0, 1)
        self._uploads[identifier] = _Upload(owner, now_ms)
        if gives_way:
            await self.drop(gives_way)
        return identifier

    def _place_for(self, owner: Owner, now_ms: int) -> str:
        """The upload that gives its place to a new one of this owner; "" where one is free. Raises
        Overloaded where the owner gets none."""
        held = Counter(each.owner.caller for each in self._uploads.values())
        own, left = held[owner.caller], _MOST_UPLOADS - len(self._uploads)
        if own < min(_MOST_OF_A_CALLER, left):
            return ""
        if own == left == 0:
            most = max(held.values())
            found = [
                (each.used_ms, identifier)
                for identifier, each in self._uploads.items()
                if held[each.owner.caller] == most
                and not each.ends
                and (most > 1 or now_ms - each.used_ms >= _STALLED_MS)
            ]
            if found:
                return min(found)[1]
        raise Overloaded(
            f"{len(self._uploads)} of at most {_MOST_UPLOADS} files are being uploaded, {own} of"
            f" them by this caller, which may have {_MOST_OF_A_CALLER}, and fewer than there are"
            " places left; upload fewer at the same time",
            _RETRY_AFTER_MS,
        )

    def _check_size(self, size: int) -> None:
        most = self._store.settings.most_bytes
        if size > most:
            raise TooLarge(
                f"the file is larger than {most} bytes, the most that is taken (file_max_mib):"
                " divide it into several"
            )

    async def append(self, message: AppendToUpload, now_ms: int) -> None:
        """Write a piece. Raises NotReady for an upload that is not there any more, TooLarge, and
        StorageFull."""
        upload = self._find(message.id)
        upload.used_ms = now_ms
        end = message.offset + len(message.piece)
        self._check_size(end)
        more = end - upload.bytes
        if message.offset > upload.bytes:
            raise InvalidRequest(
                f"a piece at {message.offset} came; one at {upload.bytes} was expected"
            )
        if more > 0:
            self._store.check_room(upload.owner.caller, more)
            # Before it is written, so that many at the same time cannot pass the limit together.
            self._store.quotas.add(upload.owner.caller, more)
            upload.bytes = end
        bodies, piece = self._store.bodies, message.piece
        await self._store.run(lambda: bodies.write(message.id, message.offset, piece))

    async def end(self, message: EndUpload, now_ms: int) -> FileRecord:
        """Keep the file. Raises NotReady for an upload that is not there any more."""
        kept = self._store.files.get(message.id)
        if kept is not None:
            return kept
        upload = self._find(message.id)
        if message.bytes != upload.bytes:
            raise InvalidRequest(f"{upload.bytes} bytes came; {message.bytes} were expected")
        record = FileRecord(
            message.id, upload.owner, message.filename, message.purpose, upload.bytes, now_ms,
            now_ms + (message.ttl_ms or self._store.settings.ttl_ms),
        )  # fmt: skip
        upload.ends = True
        try:
            await self._store.keep_file(record)
        finally:
            upload.ends = False
        self._uploads.pop(message.id, None)
        return record

    async def drop(self, identifier: str) -> None:
        """Forget an upload and its bytes, if it is there."""
        upload = self._uploads.get(identifier)
        if upload is None or upload.ends:
            return
        del self._uploads[identifier]
        self._store.quotas.add(upload.owner.caller, -upload.bytes, -1)
        await self._store.run(lambda: self._store.bodies.delete(identifier))

    async def drop_idle(self, now_ms: int) -> None:
        """Forget the uploads of which nothing comes any more."""
        for identifier, upload in list(self._uploads.items()):
            if now_ms - upload.used_ms > _IDLE_MS:
                await self.drop(identifier)

    def _find(self, identifier: str) -> _Upload:
        upload = self._uploads.get(identifier)
        if upload is None:
            raise NotReady(
                "the upload is not there any more: another caller had the turn, or the process that"
                " took it was replaced; send the file again",
                _RETRY_AFTER_MS,
            )
        return upload
