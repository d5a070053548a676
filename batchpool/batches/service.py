"""The parts of the task process that keep files and run batches, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchpool.batches.answers import BatchAnswers
from batchpool.batches.line_calls import LineCalls
from batchpool.batches.line_runner import Judge, LineRunner
from batchpool.batches.runner import BatchRunner
from batchpool.batches.settings import BatchSettings
from batchpool.batches.store import BatchStore
from batchpool.batches.uploads import Uploads
from batchpool.control.batch_messages import BatchCounts
from batchpool.control.edges import BatchReply, ToBatches


class BatchService:
    """Files and batches in a folder. server: the configuration's [server]. clock_ms: Unix time.

    Raises FolderUnusable where the folder cannot be used.
    """

    def __init__(
        self, folder: Path, server: Mapping[str, Any], clock_ms: Callable[[], int]
    ) -> None:
        self._settings = BatchSettings.of(server)
        self._store = BatchStore(folder, self._settings)
        self._clock_ms = clock_ms
        self._runner: BatchRunner | None = None
        self._answers: BatchAnswers | None = None

    def start(self, calls: LineCalls, judge: Judge) -> asyncio.Task[None]:
        """Run batches from now on, and answer. The task ends with an error of the server alone."""
        uploads = Uploads(self._store)
        lines = LineRunner(calls, judge, self._settings.attempts)
        self._runner = BatchRunner(self._store, uploads, lines, self._clock_ms)
        self._answers = BatchAnswers(self._store, uploads, self._runner, self._clock_ms)
        return asyncio.create_task(self._runner.run())

    async def answer(self, message: ToBatches) -> BatchReply:
        """The reply to one message. Raises the PoolError that refuses it."""
        assert self._answers is not None, "start comes first"
        return await self._answers.answer(message)

    def counts(self) -> BatchCounts:
        """The counts of files and batches."""
        return self._store.counts()

    async def stop(self) -> None:
        """Leave open batches to the next process; questions are still answered."""
        if self._runner is not None:
            await self._runner.stop()

    async def close(self) -> None:
        """Let go of the folder."""
        await self._store.close()
