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

from batchpool.consume.partitions import Partitions
from batchpool.consume.plan import ConsumePlan
from batchpool.consume.rows import RecordRows, RowEnd
from batchpool.core.errors import PoolError

_LOG = logging.getLogger("batchpool.consume")
_FETCH_MS = 500
_COMMIT_S = 1.0
_HAND_OVER_S = 20.0  # rows of a partition that moves may take so long to end
_HEADERS = "batchpool."  # of a dead letter's own headers


class Consumer:
    """One member of a group. kafka_consumer, producer: of aiokafka, started; the caller stops them.

    records, failed: that have ended, and those of them with a dead letter. most: rows under way.
    """

    def __init__(
        self,
        plan: ConsumePlan,
        kafka_consumer: Any,
        producer: Any,
        rows: RecordRows,
        most: int,
    ) -> None:
        self._plan = plan
        self._consumer = kafka_consumer
        self._producer = producer
        self._rows = rows
        self._most = most
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
            if room <= 0:
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
        sent: list[asyncio.Future[Any]] = []
        async for end in self._rows.ends([record.value for record in records]):
            record = records[end.at]
            acknowledged = await self._send(record, end)
            acknowledged.add_done_callback(
                partial(self._ended, progress, record.offset, end.error is not None)
            )
            sent.append(acknowledged)
        for acknowledged in sent:  # one after the other: most are there, in one batch of the broker
            await acknowledged

    def _ended(
        self, progress: Any, offset: int, failed: bool, acknowledged: asyncio.Future[Any]
    ) -> None:
        """A callback, since a task for each record would cost more than all else of this file."""
        if acknowledged.cancelled() or acknowledged.exception() is not None:
            return  # `_process` raises it
        self._partitions.end(progress, offset)
        self.records += 1
        self.failed += failed

    async def _send(self, record: Any, end: RowEnd) -> Any:
        """Give the producer what came of a record; the future of the broker's answer."""
        headers = list(record.headers)
        if end.error is None:
            topic, value = self._plan.target.name, end.value
        else:
            topic, value = self._plan.dead.name, record.value
            headers += dead_headers(record, end.error)
        return await self._producer.send(topic, value, key=record.key, headers=headers)

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


def dead_headers(record: Any, error: PoolError) -> list[tuple[str, bytes]]:
    """Headers of a dead letter: the error, and the place where the record stood."""
    said = {
        "code": error.code,
        "error": error.message,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
    }
    return [(_HEADERS + name, text.encode()) for name, text in said.items()]
