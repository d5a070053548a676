"""Callers who submit tasks to several boxes and collect every result, whatever ends meanwhile.

A task that was answered anything but 202 is sent again, with the same Idempotency-Key, to the next
box. So each has one end, which one of the boxes tells.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_AGAIN_S = 0.05
_ANSWER_S = 20.0


@dataclass
class Account:
    """ends: tasks by "right", "wrong", "gone" (404) or what else was answered. refusals: answers
    after which a task was sent again, by status, 0 for a broken connection. last_s: CLOCK_MONOTONIC
    of the last result."""

    ends: Counter[str] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    last_s: float = 0.0


class Callers:
    """ports: of the boxes. One that has died is asked no more."""

    def __init__(self, ports: Sequence[int], tasks: int) -> None:
        self._ports = list(ports)
        self._tasks = tasks
        self._next = 0
        self.submitted = 0
        self.account = Account()

    def lose(self, port: int) -> None:
        """This box is not asked any more."""
        self._ports.remove(port)

    async def run(self, connections: int, pause_s: float) -> None:
        """Submit all tasks and collect them, `pause_s` between two of one connection."""
        await asyncio.gather(*(self._caller(pause_s) for _ in range(connections)))

    async def _caller(self, pause_s: float) -> None:
        collecting = []
        while self._next < self._tasks:
            number, self._next = self._next, self._next + 1
            path = await self._submit(number)
            self.submitted += 1
            collecting.append((number, path))
            await asyncio.sleep(pause_s)
        for number, path in collecting:
            self.account.ends[await self._collect(number, path)] += 1
            self.account.last_s = time.monotonic()

    async def _submit(self, number: int) -> str:
        body = json.dumps({"x": [number]}).encode()
        head = (
            "POST /v2/models/sleeper/infer HTTP/1.1\r\nhost: x\r\nprefer: respond-async\r\n"
            f"connection: close\r\nidempotency-key: {number}\r\nx-client-id: {number % 4}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        while True:
            status, fields, _ = await self._ask(head + body, number)
            if status == 202:
                return fields["location"]
            self.account.refusals[status] += 1
            await asyncio.sleep(_AGAIN_S)

    async def _collect(self, number: int, path: str) -> str:
        request = f"GET {path}/result?wait_s=5 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        while True:
            status, _, body = await self._ask(request.encode(), number)
            if status in (202, 503) or not status:  # not yet; the store is away; a box that died
                await asyncio.sleep(0 if status == 202 else _AGAIN_S)
                continue
            if status == 404:
                return "gone"
            if status != 200:
                return f"{status} {body[:80]!r}"
            return "right" if json.loads(body)["y"] == [2 * number + 1] else "wrong"

    async def _ask(self, request: bytes, turn: int) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer of one box; status 0 for none."""
        port = self._ports[turn % len(self._ports)]
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(request)
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                    fields = dict(line.split(": ", 1) for line in head[1:] if line)
                    body = await reader.readexactly(int(fields["content-length"]))
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError):
            return 0, {}, b""
        return int(head[0].split()[1]), fields, body
