"""One snapshot a second, shared by all viewers of a front end; none while there is no viewer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Protocol

import msgspec

from batchpool.core.errors import Draining, Overloaded, PoolError

_LOG = logging.getLogger("batchpool.frontend")
MOST_VIEWERS = 32
INTERVAL_S = 1.0
_RETRY_AFTER_MS = 10_000  # one of the viewers may have gone by then


class Source(Protocol):
    """Makes snapshots. begin: called when the first viewer comes; rest: when the last has gone.

    take: the snapshot of now; raises PoolError when there is none.
    """

    def begin(self) -> None: ...
    async def take(self) -> dict[str, Any]: ...
    def rest(self) -> None: ...


def event(content: Any, kind: str = "") -> bytes:
    """A server-sent event. JSON has no line breaks of its own, so it is one line."""
    named = b"event: %s\n" % kind.encode() if kind else b""
    return named + b"data: " + msgspec.json.encode(content) + b"\n\n"


class Broadcaster:
    """The snapshots of one front end to all its viewers."""

    def __init__(self, source: Source, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._interval_s = interval_s
        self._taking: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self.viewers = 0
        self._held: Counter[str] = Counter()  # viewers by address
        self.count = 0  # of snapshots
        self.latest = b""  # as an event; empty before the first
        self.ended = ""  # the reason that no more will come

    def join(self, address: str) -> None:
        """Add a viewer. Raises Overloaded when there are too many, or more of one address than
        places are left to others; Draining after `end`."""
        if self.ended:
            raise Draining(self.ended)
        if self.viewers >= MOST_VIEWERS:
            text = f"{self.viewers} viewers watch this front end, the most it serves"
            raise Overloaded(text, _RETRY_AFTER_MS)
        if self._held[address] >= MOST_VIEWERS - self.viewers:
            text = f"{self._held[address]} viewers of this address watch this front end, its share"
            raise Overloaded(text, _RETRY_AFTER_MS)
        self.viewers += 1
        self._held[address] += 1
        if self._taking is None:
            self.latest = b""
            self._source.begin()
            self._taking = asyncio.get_running_loop().create_task(self._run())

    def leave(self, address: str) -> None:
        """Remove a viewer; with the last one the snapshots stop."""
        self.viewers -= 1
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        if not self.viewers:
            self._stop()

    def end(self, reason: str) -> None:
        """Make no more snapshots, and send the reason to every viewer."""
        if not self.ended:
            self.ended = reason
            self._stop()
            self._notify()

    async def after(self, count: int, within_s: float) -> bool:
        """Wait for the snapshot after number `count`, or the end; False when neither comes."""
        if self.count > count or self.ended:
            return True
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._news,), timeout=within_s)
        return self.count > count or bool(self.ended)

    def _stop(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
            self._source.rest()

    def _notify(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self._interval_s
            try:
                self.latest = event(await self._source.take())
            except PoolError as exc:
                _LOG.debug("no snapshot for the page: %s", exc.message)
            except Exception:
                _LOG.exception("no snapshot for the page")
            else:
                self.count += 1
                self._notify()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
