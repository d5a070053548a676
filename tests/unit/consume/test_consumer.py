"""The consumer between brokers: what counts as ended, and what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from batchpool.consume.consumer import Consumer
from batchpool.consume.letters import whole_letter
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
    headers: Sequence[tuple[str, bytes | None]] = ()
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


class TooLargeForThisBroker(Exception):
    pass


@dataclass
class SmallBroker(Broker):
    """Acknowledges at once, and refuses what has more than 1000 bytes with its headers."""

    letters: list[tuple[Any, dict[str, bytes]]] = field(default_factory=list)

    async def send(self, topic: str, value: bytes, key: bytes, headers: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        size = len(value) + len(key or b"") + sum(len(k) + len(v) for k, v in headers)
        if size > 100_000:  # which its client finds itself
            raise TooLargeForThisBroker("of the client")
        if size > 1000:
            future.set_exception(TooLargeForThisBroker("of the broker"))
        else:
            self.sent.append((topic, value))
            self.letters.append((key, dict(headers)))
            future.set_result(None)
        return future


class Larger(Rows):
    """Results of 60 times the size of their values."""

    async def ends(self, values: Sequence[bytes]) -> AsyncGenerator[RowEnd, None]:
        for at, value in enumerate(values):
            bad = value.startswith(b"bad")
            error = InvalidRequest("no \ud800" + "o" * 10**5)
            yield RowEnd(at, None if bad else value * 60, error if bad else None)


@pytest.mark.parametrize(
    ("record", "sent"),
    [
        (Record(0, b"0123456789"), ("out", b"0123456789" * 60)),
        (Record(0, b"0123456789" * 3), ("in.dead", b"0123456789" * 3)),
        (Record(0, b"0123456789" * 200), ("in.dead", b"")),
        (Record(0, b"bad" * 300), ("in.dead", b"")),
        (Record(0, b"bad", headers=[("h", b"x" * 1000)]), ("in.dead", b"")),
        (Record(0, b"bad", key=b"k" * 5000), ("in.dead", b"")),
    ],
)
def test_a_record_that_the_broker_finds_too_large_has_a_letter_and_ends_nobody(
    record: Record, sent: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.consume.letters._MOST_ERROR_CHARACTERS", 200)

    async def story() -> None:
        broker = SmallBroker([[record, Record(1, b"small")]])
        rows: Any = Larger()
        consumer = Consumer(PLAN, broker, broker, rows, 100, (TooLargeForThisBroker,))
        run = asyncio.create_task(consumer.run())
        await turns()
        consumer.stop()
        await run
        assert sorted(broker.sent) == sorted([sent, ("out", b"small" * 60)])
        assert (consumer.records, consumer.failed) == (2, sent[0] == "in.dead")
        assert broker.commits[-1] == 2
        if not sent[1]:
            key, headers = broker.letters[[topic for topic, _ in broker.sent].index("in.dead")]
            assert headers["batchpool.left_out"] == b"value and headers"
            assert headers["batchpool.offset"] == b"0"
            assert key in (b"k", None)

    asyncio.run(story())


def test_a_record_without_key_and_value_has_a_letter_that_a_producer_takes() -> None:
    letter = whole_letter(Record(0, None, None), InvalidRequest("a tombstone \ud800"))  # type: ignore[arg-type]
    assert (letter.key, letter.value) == (None, b"")
    assert dict(letter.headers)["batchpool.error"] == b"a tombstone \\ud800"
    assert whole_letter(Record(0, None), InvalidRequest("")).value is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "large", [Record(0, b"a" * 10), Record(0, b"a", b"k", [("h", b"1" * 8), ("", None)])]
)
def test_no_more_is_fetched_while_large_records_are_under_way(
    monkeypatch: pytest.MonkeyPatch, large: Record
) -> None:
    """Headers count, too: a record may have megabytes of them."""
    monkeypatch.setattr("batchpool.consume.consumer._MOST_BYTES", 10)

    async def story() -> None:
        broker = Broker([[large], [Record(1, b"b")]])
        rows = Rows()
        rows.last.set()
        consumer = consumer_of(broker, rows)
        run = asyncio.create_task(consumer.run())
        await turns()
        assert broker.sent == [("out", large.value)]
        broker.acknowledgements[0].set_result(None)
        await turns()
        assert broker.sent[1:] == [("out", b"b")]
        broker.acknowledgements[1].set_result(None)
        consumer.stop()
        await run
        assert consumer.records == 2

    asyncio.run(story())
