"""The parts that keep files and run batches, on a folder of a test, and calls that it steers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from batchpool.batches.answers import BatchAnswers
from batchpool.batches.line_runner import LineRunner
from batchpool.batches.records import BatchRecord, FileRecord
from batchpool.batches.runner import BatchRunner
from batchpool.batches.settings import BatchSettings
from batchpool.batches.store import BatchStore
from batchpool.batches.uploads import Uploads
from batchpool.control.batch_messages import (
    AppendToUpload,
    BatchFound,
    BeginUpload,
    CreateBatch,
    EndUpload,
    FileFound,
    UploadState,
)
from batchpool.control.edges import BatchReply, ToBatches
from batchpool.core.errors import PoolError
from batchpool.tasks.judgement import judge

ENDPOINT = "/v1/embeddings"
NOW_MS = 1_000_000_000
SETTINGS = BatchSettings(
    files=100, bytes=1 << 20, most_bytes=1 << 18, ttl_ms=10_000_000, most_lines=1000, attempts=2,
    client_slots=8,
)  # fmt: skip


class FakeCalls:
    """Answers a body with itself. errors: raised for the values of its member x. closed: those of
    bodies whose answers wait for `release`. seen: the values in the order of their calls."""

    def __init__(self) -> None:
        self.errors: dict[int, PoolError | Exception] = {}
        self.closed: set[int] = set()
        self.seen: list[int] = []
        self._released = asyncio.Event()

    async def answer(self, endpoint: str, body: bytes) -> bytes:
        x = json.loads(body)["x"]
        self.seen.append(x)
        while x in self.closed:
            await self._released.wait()
        if x in self.errors:
            raise self.errors[x]
        return body

    def release(self) -> None:
        """Let all calls go on."""
        self.closed.clear()
        self._released.set()


class Desk:
    """A process's parts. now_ms: of its clock, which the test moves."""

    def __init__(self, folder: Path, settings: BatchSettings = SETTINGS) -> None:
        self.now_ms = NOW_MS
        self.calls = FakeCalls()
        self.store = BatchStore(folder, settings)
        self.uploads = Uploads(self.store)
        lines = LineRunner(self.calls, judge, settings.attempts)
        self.runner = BatchRunner(self.store, self.uploads, lines, lambda: self.now_ms)
        self.answers = BatchAnswers(self.store, self.uploads, self.runner, lambda: self.now_ms)
        self._tokens = 0

    def token(self) -> bytes:
        """16 bytes that no other one has in this folder."""
        self._tokens += 1
        return (len(self.store.files) * 1000 + len(self.store.batches) * 100_000).to_bytes(
            8, "big"
        ) + self._tokens.to_bytes(8, "big")

    async def ask(self, message: ToBatches) -> BatchReply:
        return await self.answers.answer(message)

    async def file(self, content: bytes, caller: str = "a", principal: str = "") -> FileRecord:
        """Upload a file."""
        begun = await self.ask(BeginUpload(self.token(), principal, caller))
        assert isinstance(begun, UploadState)
        await self.ask(AppendToUpload(begun.id, 0, content))
        kept = await self.ask(EndUpload(begun.id, "name", "batch", len(content)))
        assert isinstance(kept, FileFound)
        return self.store.files[kept.file.id]

    async def batch(self, content: bytes, caller: str = "a", principal: str = "") -> str:
        """Upload a file and make a batch of it; returns its id."""
        file = await self.file(content, caller, principal)
        message = CreateBatch(self.token(), principal, caller, ENDPOINT, file.id)
        made = await self.ask(message)
        assert isinstance(made, BatchFound)
        return made.batch.id

    def record(self, batch: str) -> BatchRecord:
        return self.store.batches[batch]

    async def end_of(self, batch: str) -> BatchRecord:
        """The batch once it has ended."""
        await self.until(lambda: self.record(batch).status.has_ended)
        return self.record(batch)

    async def until(self, condition: Any) -> None:
        """Wait for a condition, which changes with the loop and the disk."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    def content(self, file: str) -> bytes:
        return self.store.bodies.path(file).read_bytes()

    def output(self, batch: str) -> list[int]:
        """The values of x of the good answers."""
        lines = self.content(self.record(batch).output_file).splitlines()
        return [json.loads(line)["response"]["body"]["x"] for line in lines]

    def errors(self, batch: str) -> list[tuple[Any, str]]:
        """(custom_id, code) of the lines in the error file."""
        found = []
        for line in self.content(self.record(batch).error_file).splitlines():
            end = json.loads(line)
            error = end["error"] or end["response"]["body"]["error"]
            found.append((end["custom_id"], error["code"]))
        return found

    async def close(self) -> None:
        await self.runner.stop()
        await self.store.close()


def request(x: int, **members: Any) -> bytes:
    """A line."""
    line = {"custom_id": f"n{x}", "method": "POST", "url": ENDPOINT, "body": {"x": x}}
    return json.dumps({**line, **members}).encode()


def requests(xs: Iterable[int]) -> bytes:
    """An input file."""
    return b"\n".join(map(request, xs)) + b"\n"
