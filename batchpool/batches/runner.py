"""The open batches of a store: which of them run, and what is dropped in time.

A few batches run at the same time, in turns by caller: the oldest of the caller that has the fewest
running. What went wrong with the store is tried again after a while; a batch that fails for another
reason again and again is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from batchpool.batches.batch_run import BatchRun
from batchpool.batches.line_runner import LineRunner
from batchpool.batches.records import BatchRecord, BatchStatus
from batchpool.batches.store import BatchStore
from batchpool.batches.uploads import Uploads
from batchpool.control.batch_messages import FaultForm
from batchpool.core.errors import NotReady, StorageFull

_LOG = logging.getLogger("batchpool.tasks")
MOST_RUNNING = 8
MOST_OF_AN_OWNER = 2  # so that one whose models do not answer leaves places to the others
_RETRY_MS = 5000
_MOST_FAILURES = 3
_UPKEEP_S = 1.0


class BatchRunner:
    """Runs the batches of one store. clock_ms: Unix time."""

    def __init__(
        self,
        store: BatchStore,
        uploads: Uploads,
        lines: LineRunner,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._uploads = uploads
        self._lines = lines
        self._clock_ms = clock_ms
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._not_before_ms: dict[str, int] = {}
        self._failures: Counter[str] = Counter()
        self._stopping = False
        self._cancelling: set[str] = set()  # the disk is told of it just now

    def waiting_for(self, identifier: str) -> str:
        """The reason why an open batch does not go on, "" for none."""
        run = self._runs.get(identifier)
        return "" if run is None else run.waiting_for

    def start_due(self) -> None:
        """Start the batches that are due, as many as there is room for."""
        now_ms = self._clock_ms()
        due = [
            each
            for each in self._store.open_batches()
            if each.id not in self._runs
            and each.id not in self._cancelling
            and self._not_before_ms.get(each.id, 0) <= now_ms
        ]
        running = Counter(run.record.owner for run in self._runs.values())
        while len(self._runs) < MOST_RUNNING and not self._stopping:
            due = [each for each in due if running[each.owner] < MOST_OF_AN_OWNER]
            if not due:
                break
            record = min(due, key=lambda each: running[each.owner])  # of equal ones the oldest
            due.remove(record)
            running[record.owner] += 1
            run = BatchRun(self._store, record, self._lines, self._window, self._clock_ms)
            self._runs[record.id] = run
            task = asyncio.create_task(self._run(run))
            self._tasks[record.id] = task
            task.add_done_callback(partial(self._ended, record.id))

    def _window(self) -> int:
        """The lines that a run may have under way: all runs together half of the lane's rows, of
        which the other half is left to tasks."""
        return max(1, self._store.settings.client_slots // (2 * max(1, len(self._runs))))

    def _ended(self, identifier: str, _: asyncio.Task[None]) -> None:
        del self._runs[identifier], self._tasks[identifier]
        self.start_due()

    async def _run(self, run: BatchRun) -> None:
        identifier = run.record.id
        try:
            await run.run()
            self._failures.pop(identifier, None)
            self._not_before_ms.pop(identifier, None)
        except (StorageFull, NotReady) as exc:
            _LOG.error("batch %s is tried again: %s", identifier, exc)
            self._not_before_ms[identifier] = self._clock_ms() + _RETRY_MS
        except Exception:
            _LOG.exception("batch %s met an error of the server", identifier)
            self._failures[identifier] += 1
            self._not_before_ms[identifier] = self._clock_ms() + _RETRY_MS
            if self._failures[identifier] >= _MOST_FAILURES:
                with suppress(StorageFull, NotReady):
                    await self._give_up(self._store.batches[identifier])

    async def _give_up(self, record: BatchRecord) -> None:
        now_ms = self._clock_ms()
        fault = FaultForm("internal", "internal error; the server's log has the details")
        record = msgspec.structs.replace(record, faults=(fault,))
        if record.status is BatchStatus.CANCELLING:
            last = BatchStatus.CANCELLED
        else:
            last = BatchStatus.FAILED
        await self._store.end_batch(record.at(last, now_ms), now_ms)

    async def cancel(self, record: BatchRecord) -> BatchRecord:
        """End a batch, which keeps the lines that are done. Returns it, while that goes on. Raises
        NotReady where the disk cannot be told."""
        if record.status.has_ended or record.status is BatchStatus.CANCELLING:
            return record
        run = self._runs.get(record.id)
        if run is not None:
            await run.cancel()
            record = self._store.batches[record.id]
            if not record.status.has_ended and record.status is not BatchStatus.CANCELLING:
                raise NotReady(f"batch {record.id} cannot be cancelled now; ask again", _RETRY_MS)
            return record
        changed = record.at(BatchStatus.CANCELLING, self._clock_ms())
        self._cancelling.add(record.id)
        try:
            await self._store.keep_batch(changed)
        finally:
            self._cancelling.discard(record.id)
        self.start_due()
        return changed

    # -- upkeep -------------------------------------------------------------------------

    async def run(self) -> None:
        """Begin with the open batches of an earlier process, and look after all until the end.
        Raises FolderUnusable where the folder is not there any more."""
        while True:
            self._store.check_place()  # another process can begin anew, and this one cannot
            self.start_due()
            try:
                await self._uploads.drop_idle(self._clock_ms())
                await self._drop_old()
            except (StorageFull, NotReady) as exc:
                _LOG.error("files and batches cannot be dropped: %s", exc)
            await asyncio.sleep(_UPKEEP_S)

    async def _drop_old(self) -> None:
        """Drop what was kept as long as it is to be."""
        now_ms, inputs = self._clock_ms(), self._store.inputs()
        old = [
            each.id
            for each in self._store.files.values()
            if each.expires_ms <= now_ms and each.id not in inputs
        ]
        old += [each.id for each in self._store.batches.values() if 0 < each.drop_ms <= now_ms]
        if old:
            await self._store.drop(old)

    async def stop(self) -> None:
        """Leave the open batches to the next process."""
        self._stopping = True
        tasks, runs = list(self._tasks.values()), list(self._runs)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for identifier in runs:
            with suppress(StorageFull, NotReady):
                await self._store.keep_batch(self._store.batches[identifier].left())
