"""The consumer: fetches records, runs them, produces their results, commits what has ended.

A group's coordinator gives each consumer its partitions, so that boxes share a topic without a lock
of ours. Every record has its result or its dead letter at least once: an offset is committed only
behind records whose ends the broker has acknowledged. A record may have two after a death or where
a partition moves in haste; consumers of the results tell them by their key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from batchpool.consume.letters import Letter, short_letter, whole_letter
from batchpool.consume.partitions import Partitions
from batchpool.consume.plan import ConsumePlan
from batchpool.consume.rows import RecordRows, RowEnd
from batchpool.core.errors import TooLarge

_LOG = logging.getLogger("batchpool.consume")
_FETCH_MS = 500
_COMMIT_S = 1.0
_HAND_OVER_S = 20.0  # rows of a partition that moves may take so long to end
_MOST_BYTES = 256 << 20  # of the records under way, however many these are


class Consumer:
    """One member of a group. kafka_consumer, producer: of aiokafka, started; the caller stops them.

    records, failed: that have ended, and those of them with a dead letter. most: rows under way.
    too_large: the errors by which a broker refuses one record for its size, and goes on.
    """

    def __init__(
        self,
        plan: ConsumePlan,
        kafka_consumer: Any,
        producer: Any,
        rows: RecordRows,
        most: int,
        too_large: tuple[type[Exception], ...] = (),
    ) -> None:
        self._plan = plan
        self._consumer = kafka_consumer
        self._producer = producer
        self._rows = rows
        self._most = most
        self._too_large = too_large
        self._bytes = 0  # of the records under way
        self._partitions = Partitions()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._fault: BaseException | None = None
        self.records = 0
        self.failed = 0

    def stop(self) -> None:
        """Fetch no more; `run` ends when what is under way has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Consume until `stop`. Raises what makes it impossible to go on."""
        committed_s = time.monotonic()
        while not self._stopping.is_set() and self._fault is None:
            room = self._most - self._partitions.under_way
            if room <= 0 or self._bytes >= _MOST_BYTES:
                await self._partitions.wait_for_end(_COMMIT_S)
            else:
                found = await self._consumer.getmany(timeout_ms=_FETCH_MS, max_records=room)
                for partition, records in found.items():
                    self._begin(partition, records)
            if time.monotonic() - committed_s >= _COMMIT_S:
                await self._commit()
                committed_s = time.monotonic()
        await self._finish()

    def _begin(self, partition: Any, records: Sequence[Any]) -> None:
        progress = self._partitions.begin(partition, [record.offset for record in records])
        self._bytes += sum(map(_size, records))
        task = asyncio.create_task(self._process(progress, records))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault

    async def _process(self, progress: Any, records: Sequence[Any]) -> None:
        """Run fetched records of one partition; each counts as ended once the broker has what came
        of it."""
        sent: list[tuple[RowEnd, asyncio.Future[Any]]] = []
        async for end in self._rows.ends([record.value for record in records]):
            record = records[end.at]
            acknowledged = await self._send(record, end)
            acknowledged.add_done_callback(
                partial(self._acknowledged, progress, record, end.error is not None)
            )
            sent.append((end, acknowledged))
        for end, acknowledged in sent:  # in turn: most are there, in one batch of the broker
            try:
                await acknowledged
            except self._too_large as exc:
                await self._send_smaller(records[end.at], end, exc)
                self._ended(progress, records[end.at], failed=True)

    def _acknowledged(
        self, progress: Any, record: Any, failed: bool, acknowledged: asyncio.Future[Any]
    ) -> None:
        """A callback, since a task for each record would cost more than all else of this file."""
        if acknowledged.cancelled() or acknowledged.exception() is not None:
            return  # `_process` raises it, or sends less
        self._ended(progress, record, failed=failed)

    def _ended(self, progress: Any, record: Any, *, failed: bool) -> None:
        self._partitions.end(progress, record.offset)
        self._bytes -= _size(record)
        self.records += 1
        self.failed += failed

    async def _send(self, record: Any, end: RowEnd) -> asyncio.Future[Any]:
        """Give the producer what came of a record; the future of the broker's answer."""
        if end.error is None:
            result = Letter(record.key, end.value, list(record.headers))
            return await self._produce(self._plan.target.name, result)
        return await self._produce(self._plan.dead.name, whole_letter(record, end.error))

    async def _send_smaller(self, record: Any, end: RowEnd, refusal: Exception) -> None:
        """Have the broker keep a dead letter in place of what is too large for it: no record may
        end the consumer, which would meet it again after each start."""
        letters = [short_letter(record, end.error)] if end.error is not None else []
        if end.error is None:
            error = TooLarge(f"the result is larger than the broker takes: {refusal}")
            letters = [whole_letter(record, error), short_letter(record, error)]
        for letter in letters:
            try:
                await (await self._produce(self._plan.dead.name, letter))
                return
            except self._too_large as exc:
                refusal = exc
        raise refusal

    async def _produce(self, topic: str, sent: Letter) -> asyncio.Future[Any]:
        """The future of the broker's answer. What the producer itself finds too large is refused as
        the broker would."""
        try:
            key, headers = sent.key, sent.headers
            future: asyncio.Future[Any] = await self._producer.send(
                topic, sent.value, key=key, headers=headers
            )
        except self._too_large as exc:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(exc)
        return future

    # -- offsets ------------------------------------------------------------------------

    async def _commit(self, partitions: Iterable[Any] | None = None) -> None:
        offsets = self._partitions.to_commit(partitions)
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except Exception as exc:  # the group has moved on, or the broker is away for a moment
            _LOG.warning("the offsets of %d partitions are not committed: %s", len(offsets), exc)
        else:
            self._partitions.committed(offsets)

    async def revoke(self, partitions: Iterable[Any]) -> None:
        """These go to another consumer: wait for what is under way of them, and commit it."""
        chosen = list(partitions)
        if not await self._partitions.wait_until_ended(chosen, _HAND_OVER_S):
            _LOG.warning(
                "rows of partitions that go to another consumer take more than %g s; it runs them"
                " again", _HAND_OVER_S,
            )  # fmt: skip
        await self._commit(chosen)
        self._partitions.forget(chosen)

    async def _finish(self) -> None:
        """Wait for what is under way, then commit all of it."""
        while self._tasks and self._fault is None:
            await asyncio.wait(self._tasks, timeout=_COMMIT_S)
            await self._commit()
        for task in self._tasks:
            task.cancel()
        await self._commit()
        if self._fault is not None:
            raise self._fault


def _size(record: Any) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)
