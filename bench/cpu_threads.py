"""Threads of a model on the CPU: how many, and whether they spin while they wait for one another.

    python -m bench.cpu_threads [--threads 1 2] [--busy 2] [--rounds 5] [--save F.json]

MiniLM over HTTP, texts of 4 to 60 words, one a request, one pool for each setting. All settings in
turns, alone on the machine and beside loops that compute all the time. `spin`: as GNU OpenMP
does by itself, up to some milliseconds; `passive`: a thread that waits sleeps at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random

from bench.process_cost import ran_ns
from bench.support.busy import busy_loops
from bench.support.machine import report, spread
from bench.support.serving import serving

_WORDS = ("the", "model", "batch", "request", "answer", "text", "of", "many", "words", "short")
SETTINGS = {
    "spin": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}


def _bodies(count: int = 200) -> list[bytes]:
    random = Random(1)
    texts = [" ".join(random.choices(_WORDS, k=random.randint(4, 60))) for _ in range(count)]
    return [json.dumps({"text": [text]}).encode() for text in texts]


async def _send(port: int, bodies: list[bytes], until_s: float) -> int:
    """Requests answered on one connection until then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v2/models/minilm/infer HTTP/1.1\r\nHost: pool\r\nContent-Length: %d\r\n\r\n"
    answered = 0
    while time.monotonic() < until_s:
        body = bodies[answered % len(bodies)]
        writer.write(head % len(body) + body)
        fields = await reader.readuntil(b"\r\n\r\n")
        if not fields.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the pool answered {fields!r}")
        length = int(fields.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        answered += 1
    writer.close()
    return answered


def rate(port: int, connections: int, seconds: float, bodies: list[bytes]) -> float:
    """Answers a second of a closed loop."""

    async def load() -> float:
        begin_s = time.monotonic()
        sent = [
            _send(port, bodies[i % len(bodies) :] + bodies[: i % len(bodies)], begin_s + seconds)
            for i in range(connections)
        ]
        total = sum(await asyncio.gather(*sent))
        return total / (time.monotonic() - begin_s)

    return asyncio.run(load())


def measure(
    model: str,
    threads: Sequence[int],
    connections: Sequence[int],
    rounds: int,
    seconds: float,
    busy: int,
) -> dict[str, list[float]]:
    """Answers a second of each round, by load and setting."""
    found: dict[str, list[float]] = defaultdict(list)
    bodies = _bodies()
    with ExitStack() as stack:
        pools = {
            f"{n} thread{'s' * (n > 1)}, {name}": stack.enter_context(
                serving(
                    [model],
                    *("--devices", "cpu"),
                    env={"OMP_NUM_THREADS": str(n), **environment},
                )
            )
            for n in threads
            for name, environment in SETTINGS.items()
            if n > 1 or name == "passive"  # a lone thread waits for no other
        }
        workers = {name: pool.pids()["worker 0 of minilm"] for name, pool in pools.items()}
        for pool in pools.values():
            rate(pool.port, 8, seconds, bodies)  # warms up
        for _ in range(rounds):
            for loops in (0, busy):
                with busy_loops(loops):
                    for n in connections:
                        beside = f"beside {loops} busy loops" if loops else "alone"
                        for name, pool in pools.items():
                            before_ns, begin_s = ran_ns(workers[name]), time.monotonic()
                            texts_s = rate(pool.port, n, seconds, bodies)
                            texts = texts_s * (time.monotonic() - begin_s)
                            spent_ms = (ran_ns(workers[name]) - before_ns) / 1e6
                            load = f"{beside}, {n} connections, {name}"
                            found[f"{load}: texts/s"].append(texts_s)
                            found[f"{load}: worker's CPU ms a text"].append(spent_ms / texts)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="batchpool.examples.minilm:MiniLM")
    parser.add_argument("--busy", type=int, default=2, help="loops that compute all the time")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save")
    args = parser.parse_args()
    found = measure(
        args.model, args.threads, args.connections, args.rounds, args.seconds, args.busy
    )
    rows = {name: spread(values, 1) for name, values in found.items()}
    report("MiniLM on the CPU over HTTP", rows, args.save)


if __name__ == "__main__":
    main()
