"""The consumer between brokers: what counts as ended, and what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from batchpool.consume.consumer import Consumer
from batchpool.consume.plan import ConsumePlan
from batchpool.consume.rows import RowEnd
from batchpool.consume.topics import Topic
from batchpool.core.errors import InvalidRequest

PLAN = ConsumePlan(
    Topic("b:1", "in"), Topic("b:1", "out"), Topic("b:1", "in.dead"), "m", "g", {}, "json", (), {},
    {}, 0, "earliest",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes
    key: bytes = b"k"
    headers: Sequence[tuple[str, bytes]] = ()
    topic: str = "in"
    partition: int = 0


@dataclass
class Broker:
    """Both clients of a broker: records to fetch, and acknowledgements that the test gives."""

    fetched: list[list[Record]]
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    acknowledgements: list[asyncio.Future[None]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[str, list[Record]]:
        await asyncio.sleep(0)
        return {"p": self.fetched.pop(0)} if self.fetched else {}

    async def commit(self, offsets: dict[str, int]) -> None:
        self.commits.append(offsets["p"])

    async def send(self, topic: str, value: bytes, key: bytes, headers: Any) -> Any:
        self.sent.append((topic, value))
        self.acknowledgements.append(asyncio.get_running_loop().create_future())
        return self.acknowledgements[-1]


class Rows:
    """Results that are their values; b"bad" fails. The last one of a fetch waits for `last`."""

    def __init__(self) -> None:
        self.last = asyncio.Event()

    async def ends(self, values: Sequence[bytes]) -> AsyncGenerator[RowEnd, None]:
        for at, value in enumerate(values):
            if at == len(values) - 1:
                await self.last.wait()
            bad = value == b"bad"
            yield RowEnd(at, None if bad else value, InvalidRequest("no") if bad else None)


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def consumer_of(broker: Broker, rows: Any) -> Consumer:
    return Consumer(PLAN, broker, broker, rows, 100)


def test_a_record_ends_when_its_result_is_acknowledged_whoever_of_its_fetch_is_late() -> None:
    async def story() -> None:
        broker, rows = Broker([[Record(5, b"a"), Record(6, b"bad"), Record(7, b"c")]]), Rows()
        consumer = consumer_of(broker, rows)
        run = asyncio.create_task(consumer.run())
        await turns()
        assert broker.sent == [("out", b"a"), ("in.dead", b"bad")]
        assert consumer.records == 0
        for acknowledged in broker.acknowledgements:
            acknowledged.set_result(None)
        await turns()
        assert (consumer.records, consumer.failed) == (2, 1)
        rows.last.set()
        await turns()
        consumer.stop()
        await turns()
        assert consumer.records == 2
        broker.acknowledgements[2].set_result(None)
        await run
        assert (consumer.records, broker.commits[-1]) == (3, 8)

    asyncio.run(story())


def test_a_result_that_the_broker_refuses_ends_the_run_and_is_not_committed() -> None:
    async def story() -> None:
        broker, rows = Broker([[Record(0, b"a"), Record(1, b"b"), Record(2, b"c")]]), Rows()
        rows.last.set()
        consumer = consumer_of(broker, rows)
        run = asyncio.create_task(consumer.run())
        await turns()
        first, second, third = broker.acknowledgements
        first.set_result(None)
        for refused in (second, third):
            refused.set_exception(OSError("too large"))
        with pytest.raises(OSError, match="too large"):
            await run
        assert (consumer.records, broker.commits) == (1, [1])

    asyncio.run(story())


def test_a_partition_is_handed_over_when_its_records_have_ended() -> None:
    async def story() -> None:
        broker, rows = Broker([[Record(0, b"a")]]), Rows()
        consumer = consumer_of(broker, rows)
        run = asyncio.create_task(consumer.run())
        await turns()
        handed_over = asyncio.create_task(consumer.revoke(["p"]))
        rows.last.set()
        await turns()
        assert not handed_over.done()
        broker.acknowledgements[0].set_result(None)
        await handed_over
        assert broker.commits == [1]
        consumer.stop()
        await run
        assert broker.commits == [1]

    asyncio.run(story())
