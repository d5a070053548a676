"""A closed loop of callers: each sends again once it is answered, and every answer is judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.load.heads import DIFFERING, Requests


class ClosedLoop:
    """One turn. rows: different ones, sent in turns. check: raises unless an answer is that of its
    row. took_ms: of each answer."""

    def __init__(
        self, rows: int, at_once: int, seconds: float, check: Callable[[int, Any], None]
    ) -> None:
        self._rows, self._at_once, self._seconds, self._check = rows, at_once, seconds, check
        self._until_s = 0.0
        self._row = 0
        self.took_ms: list[float] = []

    async def run(self, one: Callable[[int], Any]) -> dict[str, Any]:
        """All callers until the time is over. one: a caller, by its number."""
        begun_s = time.monotonic()
        self._until_s = begun_s + self._seconds
        await asyncio.gather(*(one(number) for number in range(self._at_once)))
        return {
            "answers": len(self.took_ms),
            "seconds": time.monotonic() - begun_s,
            "took_ms": self.took_ms,
        }

    async def run_http(
        self,
        port: int,
        path: str,
        fields: Mapping[str, str],
        bodies: Sequence[bytes],
        parse: Callable[[bytes, bytes], Any],
    ) -> dict[str, Any]:
        """Callers with a keep-alive connection each and heads that differ. bodies: of the rows.
        parse: what is checked of an answer, by its head and body. RuntimeError: a status that is
        not 200."""
        heads = [
            Requests(path, fields, len(body), number, DIFFERING)
            for number, body in enumerate(bodies)
        ]

        async def one(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while (row := self.next_row()) is not None:
                since_s = time.perf_counter()
                writer.write(heads[row].head() + bodies[row])
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"\ncontent-length:")[2].split()[0])
                body = await reader.readexactly(length)
                if not head.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"{path} answered {head[:80]!r} {body[:300]!r}")
                self.answered(row, since_s, parse(head, body))
            writer.close()

        return await self.run(one)

    def next_row(self) -> int | None:
        """The next row; None when the time is over."""
        if time.monotonic() >= self._until_s:
            return None
        self._row = (self._row + 1) % self._rows
        return self._row

    def answered(self, row: int, since_s: float, found: Any) -> None:
        self.took_ms.append(round((time.perf_counter() - since_s) * 1e3, 3))
        self._check(row, found)
