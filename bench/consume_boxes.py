"""`batchpool consume` on several boxes, of which one is killed as a whole while another one joins.

    python -m bench.consume_boxes [--records 100000] [--partitions 12] [--rounds 5]
        [--save FILE.json]

A box is a pool with a socket and a state directory of its own and a consumer beside it, all in one
process group; the broker and the model are those of `bench.consume`, the model at 0.25 ms a row, so
that several boxes have room on few cores. First one box alone, in turns with `Client.infer` of the
same rows at the same pool. Then three boxes: after a fifth of the results a fourth one starts,
after two fifths the group of one gets SIGKILL, pool and consumer at once. Every record must have
its result or its dead letter at least once, none a wrong one, and none committed before it; how
many came twice is told. At the end the consumers that live end with 0, and so do their pools.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from bench.consume import ASSIGNED, Topics, alone, consumer, ended_well
from bench.support.kafka_broker import kafka_broker
from bench.support.machine import report, spread
from bench.support.serving import Served, await_ready, free_port

_BOXES = 3
_JOIN_AT, _KILL_AT = 0.2, 0.4
_POLL_S = 0.4
_MODEL = "paced"


class Box:
    """A pool and, once `consume` is called, a consumer, in one process group. log: of both."""

    def __init__(self, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        place = folder / name
        place.mkdir()
        socket, port = f"{place}/pool.sock", free_port()
        command = [
            sys.executable, "-m", "batchpool", "serve", "--model", "bench.consume:Paced",
            "--socket", socket, "--port", str(port), "--state-dir", str(place / "state"),
            "--frontends", "1", "--devices", "cpu", "--log-level", "warning",
        ]  # fmt: skip
        with open(self.log, "ab") as log:
            process = subprocess.Popen(command, stderr=log, process_group=0)
        self.pool = Served(socket, port, process)
        self.consumer: subprocess.Popen[bytes] | None = None

    def consume(self, topics: Topics, address: str) -> None:
        """Wait for the pool, then begin to consume."""
        await_ready(self.pool.process, self.pool.socket)
        self.consumer = consumer(
            topics, address, self.pool, self.log, _MODEL, process_group=self.pool.pid
        )

    @property
    def moves(self) -> int:
        """The times that the consumer was given partitions."""
        return len(ASSIGNED.findall(self.log.read_text()))

    def check(self) -> None:
        """SystemExit where a process of it has ended."""
        for process in (self.pool.process, self.consumer):
            if process is not None and process.poll() is not None:
                raise SystemExit(f"a process ended\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL to all processes at once."""
        os.killpg(self.pool.pid, signal.SIGKILL)
        for process in (self.pool.process, self.consumer):
            if process is not None:
                process.wait(30)

    def end(self) -> None:
        """End the consumer, then the pool; SystemExit where one does not end with 0."""
        if self.consumer is not None:
            ended_well(self.consumer, self.log)
        ended_well(self.pool.process, self.log)


def client_rate(pool: Served, records: int) -> float:
    """Rows per second of `Client.infer` with all rows at once."""
    x = np.arange(records)
    with bp.Client(pool.socket) as client:
        client.infer(_MODEL, x=x[:500])
        began_s = time.perf_counter()
        client.infer(_MODEL, x=x, errors="return")
        return records / (time.perf_counter() - began_s)


def one_box(address: str, folder: Path, rounds: int, records: int, partitions: int) -> Any:
    """The rates of one box and of the client, in turns."""
    found: dict[str, list[float]] = {}
    box = Box(folder, "alone")
    try:
        await_ready(box.pool.process, box.pool.socket)
        for number in range(rounds):
            topics = Topics(address, f"alone{number}", partitions, records)
            rates = {"rows/s of Client.infer": client_rate(box.pool, records)}
            consumed = asyncio.run(alone(topics, address, box.pool, box.log, _MODEL))
            rates |= consumed
            rates["of the client's rate"] = consumed["records/s"] / rates["rows/s of Client.infer"]
            for name, value in rates.items():
                found.setdefault(name, []).append(value)
        box.end()
    except BaseException:
        box.kill()
        raise
    return {name: spread(of, 3 if "of the client" in name else 1) for name, of in found.items()}


async def several(topics: Topics, address: str, folder: Path) -> dict[str, Any]:
    """Boxes that share a topic. moves: the share of the results that was there when a consumer was
    given other partitions."""
    await topics.fill()
    boxes = [Box(folder, f"box{number}") for number in range(_BOXES)]
    everyone = list(boxes)
    joining: asyncio.Future[None] | None = None
    killed_s: float | None = None
    moves: list[float] = []
    assigned = 0
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(_BOXES + 1))
        loop = asyncio.get_running_loop()
        try:
            await topics.open(stack)
            starts = [loop.run_in_executor(threads, box.consume, topics, address) for box in boxes]
            await asyncio.gather(*starts)
            begun_s = time.monotonic()
            while True:
                committed, done = await topics.look()
                share = done / topics.records
                found = sum(box.moves for box in everyone)
                if found > assigned:
                    assigned = found
                    moves.append(round(share, 2))
                if share > _JOIN_AT and joining is None:
                    boxes.append(Box(folder, "joined"))
                    everyone.append(boxes[-1])
                    joining = loop.run_in_executor(threads, boxes[-1].consume, topics, address)
                if share > _KILL_AT and killed_s is None:
                    killed_s = time.monotonic()
                    boxes.pop(1).kill()
                if committed == topics.records:
                    break
                for box in boxes:
                    box.check()
                await asyncio.sleep(_POLL_S)
            ended_s = time.monotonic()
            assert joining is not None
            assert killed_s is not None
            await joining
            for box in boxes:
                await asyncio.to_thread(box.end)
        except BaseException:
            for box in boxes:
                box.kill()
            raise
        await topics.look()
        await topics.read()
    return {
        **topics.verdict(),
        "seconds": round(ended_s - begun_s, 1),
        "seconds from the kill to the last commit": round(ended_s - killed_s, 1),
        "moves": moves,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="of the three boxes")
    parser.add_argument("--alone", type=int, default=30_000, help="records of a round of one box")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5, help="of one box and the client")
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bp-boxes-") as text:
        folder = Path(text)
        with kafka_broker(folder, free_port()) as address:
            if args.rounds:
                found = one_box(address, folder, args.rounds, args.alone, args.partitions)
                rows |= {f"one box, {name}": values for name, values in found.items()}
            topics = Topics(address, "boxes", args.partitions, args.records)
            rows["three boxes, one killed while a fourth joins"] = asyncio.run(
                several(topics, address, folder)
            )
    report(f"{args.records:,} records of a topic, on boxes", rows, args.save)


if __name__ == "__main__":
    main()
