"""Event streams in an open loop, at a load that the generator can serve and at four times that.

    python -m bench.generate.overload [--sequences 8] [--tokens 25] [--step-ms 10] [--slots 32]
                                      [--loads 1 4] [--seconds 10] [--save FILE.json]

The generator makes a token for each running sequence at even times, so that it can serve
sequences / (tokens x step) requests a second whatever the machine is. Two callers ask over HTTP,
the one seven times as often as the other. For each load: how many were served and refused, the time
to a refusal, to the first token, and between the tokens of one stream; the share of each caller's
requests that was served; and which part of the time front end and this client waited for a core,
without which the rest would look like the pool's. Every token is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bench.generate.loads import arrivals
from bench.support.machine import percentile, report
from bench.support.paced import waited_ns
from bench.support.serving import Served, serving

_MODEL = "paced"
_CALLERS = ("often", "seldom")
_SELDOM_EACH = 8  # one of so many requests is the second caller's
_TOKENS = re.compile(rb'"token":\[([0-9,]*)\]')
_PATIENCE_S = 60.0


@dataclass
class Call:
    """One request. All times by time.perf_counter. steps: its tokens, which count from 0. events:
    how many brought some."""

    caller: str
    sent_s: float
    status: int = 0
    answered_s: float = 0.0
    came_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    events: int = 0

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in pairwise(self.came_s)]


class Connections:
    """Keep-alive connections; one is opened where none is free."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, call: Call, tokens: int) -> None:
        """Ask for so many tokens, and read the answer."""
        reader, writer = (
            self._free.pop()
            if self._free
            else await asyncio.open_connection("127.0.0.1", self._port)
        )
        body = json.dumps({"prompt": [1], "parameters": {"max_tokens": tokens}})
        writer.write(
            f"POST /v2/models/{_MODEL}/generate_stream HTTP/1.1\r\nHost: bench\r\n"
            f"X-Client-Id: {call.caller}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        call.status, call.answered_s = int(head.split(b" ", 2)[1]), time.perf_counter()
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length is not None:
            await reader.readexactly(int(length[1]))
        else:
            await self._read_events(reader, call)
        self._free.append((reader, writer))

    async def _read_events(self, reader: asyncio.StreamReader, call: Call) -> None:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            new = await reader.read(1 << 16)
            if not new:
                raise SystemExit("a stream broke off")
            now_s, received = time.perf_counter(), received + new
            *events, received = received.split(b"\n\n") if b"\n\n" in received else [received]
            for event in events:
                if b'"error"' in event:
                    raise SystemExit(f"a stream ended with {event!r}")
                found = _TOKENS.search(event)
                steps = [int(step) for step in found[1].split(b",") if step] if found else []
                call.steps += steps
                call.events += bool(steps)
                call.came_s += [now_s] * len(steps)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def offer(port: int, rate: float, seconds: float, tokens: int) -> list[Call]:
    """Send requests at a rate, whatever becomes of them, and read all answers."""
    connections, calls = Connections(port), []
    begun_s = time.perf_counter()
    async with asyncio.timeout(seconds + _PATIENCE_S), asyncio.TaskGroup() as tasks:
        for number, due_s in enumerate(arrivals(int(rate * seconds), rate)):
            wait_s = begun_s + due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            caller = _CALLERS[number % _SELDOM_EACH == 0]
            calls.append(Call(caller, time.perf_counter()))
            tasks.create_task(connections.ask(calls[-1], tokens))
    connections.close()
    return calls


def figures(calls: Sequence[Call], tokens: int) -> dict[str, Any]:
    """The figures of one load. Raises SystemExit for an answer that is not right."""
    served = [call for call in calls if call.status == 200]
    refused = [call for call in calls if call.status == 503]
    if len(served) + len(refused) < len(calls):
        raise SystemExit(f"statuses {sorted({call.status for call in calls})}")
    for call in served:
        if call.steps != list(range(tokens)):
            raise SystemExit("a token was lost")
    gaps = [gap for call in served for gap in call.gaps_s]
    found: dict[str, Any] = {"served": len(served), "refused": len(refused)}
    series = {
        "refusal": [call.answered_s - call.sent_s for call in refused],
        "first token": [call.came_s[0] - call.sent_s for call in served],
        "gap": gaps,
    }
    for name, values in series.items():
        for share in (0.5, 0.99) if values else ():
            found[f"{name} p{100 * share:.0f}, ms"] = round(percentile(values, share) * 1e3, 1)
    for caller in _CALLERS:
        asked = [call for call in calls if call.caller == caller]
        told = sum(call.status == 200 for call in asked)
        found[f"served of caller {caller!r}"] = f"{told} of {len(asked)}"
    return found


async def measure(served: Served, args: argparse.Namespace) -> dict[str, Any]:
    capacity = args.sequences / (args.tokens * args.step_ms / 1e3)
    front_end = next(pid for name, pid in served.pids().items() if "front" in name)
    await offer(served.port, capacity, 1.0, args.tokens)  # a warm-up
    rows: dict[str, Any] = {"requests/s that it can serve": round(capacity, 1)}
    for load in args.loads:
        before, begun_ns = (waited_ns(front_end), waited_ns()), time.monotonic_ns()
        calls = await offer(served.port, load * capacity, args.seconds, args.tokens)
        took_ns = time.monotonic_ns() - begun_ns
        found = figures(calls, args.tokens)
        for name, now, then in zip(
            ("front end", "client"), (waited_ns(front_end), waited_ns()), before, strict=True
        ):
            found[f"{name} waited for a core, %"] = round(100 * (now - then) / took_ns, 1)
        rows |= {f"{load:g} x: {what}": value for what, value in found.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.generate.overload", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--sequences", type=int, default=8, help="that run at once")
    parser.add_argument("--tokens", type=int, default=25, help="of each request")
    parser.add_argument("--step-ms", type=float, default=10.0, help="from one step to the next")
    parser.add_argument("--slots", type=int, default=32, help="running and waiting requests")
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--save", help="a JSON file for the figures")
    args = parser.parse_args()
    flags = ["--max-batch", str(args.sequences), "--slots", str(args.slots), "--frontends", "1"]
    flags += ["--option", f"step_ms={args.step_ms}"]
    with serving([f"{_MODEL}=bench.support.paced:Paced"], *flags) as served:
        rows = asyncio.run(measure(served, args))
    report("Streams in an open loop", rows, args.save)


if __name__ == "__main__":
    main()
