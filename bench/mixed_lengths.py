"""A short text beside a flood of long ones, and texts of mixed lengths, on the CPU.

    python -m bench.mixed_lengths [--against CHECKOUT] [--turns 5] [--save FILE.json]

MiniLM over HTTP, with its stages in the worker, as is the default on a CPU. Each turn starts a pool
and runs, with every vector compared with that of its text alone:

    flood    900 connections of one caller with a text of 256 tokens each, for so many seconds; once
             in a second one short text of another caller, and one of the same caller. Unanswered
             ones count as if they were answered at the end
    mixed    64 connections with texts of 4 to 120 words, median 20
    wide     64 connections; of ten texts five have 8 words, three 40 and two 200

CHECKOUT needs an environment in .venv.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.support.texts import make_texts
from bench.support.two_checkouts import in_turns, parser_of, use

_FLOOD = 900
_AT_ONCE = 64
_MODEL = "batchpool.examples.minilm:MiniLM"
_FLAGS = ("--devices", "cpu", "--request-timeout-s", "600", "--frontends", "1")
_NAMES = (
    "flood: texts/s",
    "flood, short text of another caller: median ms",
    "flood, short text of another caller: p99 ms",
    "flood, short text of the same caller: median ms",
    "flood, short text of the same caller: p99 ms",
    "mixed: texts/s",
    "mixed: p99 ms",
    "mixed: CPU ms of the worker a text",
    "wide: texts/s",
    "wide: p99 ms",
    "wide: CPU ms of the worker a text",
)
_CALLER = "X-Client-Id"


def wide_texts(n: int) -> list[str]:
    words, draw = " ".join(make_texts(40)).split(), random.Random(7)
    lengths = [8, 40, 8, 200, 8, 40, 8, 200, 8, 40]
    return [" ".join(draw.choices(words, k=lengths[at % len(lengths)])) for at in range(n)]


class Caller:
    """Requests of one text each; a vector is compared with the first one of its text."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._right: dict[str, Any] = {}

    async def ask(self, text: str, caller: str) -> None:
        """One request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await self.ask_on(reader, writer, text, caller)
        finally:
            writer.close()

    async def ask_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, caller: str
    ) -> None:
        import numpy as np

        asked = {"model": "minilm", "input": [text], "encoding_format": "base64"}
        body = json.dumps(asked).encode()
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n{_CALLER}: {caller}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        told = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(told.partition(b"\ncontent-length:")[2].split()[0])
        answer = await reader.readexactly(length)
        if not told.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{told[:80]!r} {answer[:300]!r}")
        (found,) = json.loads(answer)["data"]
        vector = np.frombuffer(base64.b64decode(found["embedding"]), np.float32)
        cosine = float(vector @ self._right.setdefault(text, vector))
        if not cosine > 0.999:
            raise RuntimeError(f"cosine {cosine:.5f} of {text[:80]!r}")

    async def loop(self, texts: Iterator[str], caller: str, until_s: float) -> int:
        """Ask again once answered; the number of answers before `until_s`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        answers = 0
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                while True:
                    await self.ask_on(reader, writer, next(texts), caller)
                    answers += 1
        writer.close()
        return answers

    async def timed(self, texts: Iterator[str], until_s: float, took: list[float]) -> None:
        """As `loop`, until the last one is answered; `took` gets the ms of each."""
        clock = asyncio.get_running_loop().time
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while (since_s := clock()) < until_s:
            await self.ask_on(reader, writer, next(texts), "mixed")
            took.append((clock() - since_s) * 1e3)
        writer.close()


async def flood(port: int, seconds: float) -> list[float]:
    from bench.support.machine import percentile

    caller, clock = Caller(port), asyncio.get_running_loop().time
    long_texts = [text for text in wide_texts(200) if len(text.split()) == 200]
    for text in (*long_texts, "a short text"):
        await caller.ask(text, "warm")
    until_s = clock() + seconds
    loops = [
        asyncio.create_task(caller.loop(_endless(long_texts, number), "flood", until_s))
        for number in range(_FLOOD)
    ]
    await asyncio.sleep(2)
    took: dict[str, list[float]] = {"other": [], "flood": []}

    async def short(name: str) -> None:
        since_s = clock()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await caller.ask("a short text", name)
        took[name].append((clock() - since_s) * 1e3)

    shorts = []
    while clock() < until_s - 8:  # so that a slow one has time to be seen
        shorts += [asyncio.create_task(short(name)) for name in took]
        await asyncio.sleep(1)
    await asyncio.gather(*shorts)
    answers = sum(await asyncio.gather(*loops))
    found = [answers / seconds]
    for each in took.values():
        found += [percentile(each, 0.5), percentile(each, 0.99)]
    return found


def _endless(texts: list[str], start: int) -> Iterator[str]:
    while True:
        yield texts[start % len(texts)]
        start += 1


async def mixed(port: int, seconds: float, texts: list[str], worker: int) -> list[float]:
    from bench.support.machine import percentile
    from bench.support.serving import cpu_seconds

    caller, clock = Caller(port), asyncio.get_running_loop().time
    shared, took = _endless(texts, 0), list[float]()
    await asyncio.gather(*(caller.timed(shared, clock() + 3, []) for _ in range(_AT_ONCE)))
    since_s, before_s = clock(), cpu_seconds(worker)
    until_s = since_s + seconds
    await asyncio.gather(*(caller.timed(shared, until_s, took) for _ in range(_AT_ONCE)))
    passed_s, used_s = clock() - since_s, cpu_seconds(worker) - before_s
    return [len(took) / passed_s, percentile(took, 0.99), used_s * 1e3 / len(took)]


def one(checkout: str, seconds: float) -> None:
    """One turn; prints the figures in the order of `_NAMES`."""
    use(checkout)
    from bench.support.serving import serving

    tree = Path(checkout)
    with serving([_MODEL], *_FLAGS, env={"PYTHONPATH": checkout}, tree=tree) as pool:
        worker = next(pid for name, pid in pool.pids().items() if name.startswith("worker"))
        found = asyncio.run(mixed(pool.port, seconds / 2, make_texts(400), worker))
        found += asyncio.run(mixed(pool.port, seconds / 2, wide_texts(400), worker))
        time.sleep(0.5)
        found = [*asyncio.run(flood(pool.port, seconds)), *found]
    print(*(f"{figure:.3f}" for figure in found))


def main() -> None:
    parser = parser_of(__doc__, turns=3)
    parser.add_argument(
        "--seconds", type=float, default=24.0, help="of the flood; half of each mix"
    )
    args = parser.parse_args()
    if args.one:
        one(args.one, args.seconds)
        return
    turns = in_turns(
        "bench.mixed_lengths", ["--seconds", str(args.seconds)], args.against, args.turns
    )
    from bench.support.machine import report, spread

    rows = {
        f"{checkout}: {name}": spread([figures[at] for figures in turn], 1)
        for checkout, turn in turns.items()
        for at, name in enumerate(_NAMES)
    }
    report("MiniLM: short texts beside long ones", rows, args.save)


if __name__ == "__main__":
    main()
