"""A connection whose work takes turns with that of other callers (loop_scheduler.py).

Bytes that come while others are next stay unparsed, as those behind a request under way do; of a
connection whose bytes are many nothing more is read meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from mypy_extensions import mypyc_attr
from uvicorn.protocols.utils import is_ssl

from batchpool.frontend.http.loop_scheduler import LoopScheduler
from batchpool.frontend.http.one_message import OneMessageConnection


@mypyc_attr(allow_interpreted_subclasses=True)
class ScheduledConnection(OneMessageConnection):
    """One connection. scheduler: of the loop that serves it. awaits_turn: bytes have come which
    are parsed when its turn comes."""

    scheduler: ClassVar[LoopScheduler]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.awaits_turn = False
        self._has_ended = False  # the caller sends nothing more
        self._share = self.scheduler.share_of(self.own_caller.origin)

    def data_received(self, data: bytes) -> None:
        scheduler = self.scheduler
        if scheduler.alone is self._share:  # nothing waits
            self.receive(data)
            return
        if self.awaits_turn or (scheduler.is_full and scheduler.defers(self._share)):
            self._keep(data)
            return
        begun_s = scheduler.begin(self.loop)
        self.receive(data)
        scheduler.charge(self._share, begun_s)

    def eof_received(self) -> bool:  # type: ignore[override]
        """True if the transport stays open until the bytes that have come were parsed."""
        if self.awaits_turn and is_ssl(self.transport):  # TLS has ended at once
            self._take_turn()
        self._has_ended = self.awaits_turn
        return self._has_ended

    def _keep(self, data: bytes) -> None:
        """Leave the bytes of one read unparsed until its turn comes."""
        self._active_s = self.loop.time()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self._unparsed.append(data)
        self._await_turn()
        self._count_held()

    def _await_turn(self) -> None:
        if not self.awaits_turn:
            self.awaits_turn = True
            self.scheduler.defer(self.loop, self._share, self._take_turn)

    def _take_turn(self) -> None:
        if not self.awaits_turn:
            return
        self.awaits_turn = False
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        size = self._unparsed.size
        self._parse()
        self._took(size)
        if self._has_ended and not self.awaits_turn:
            self.transport.close()

    def _go_on(self) -> None:
        if self._parsing or self.awaits_turn:
            return
        scheduler = self.scheduler
        if scheduler.is_full and scheduler.defers(self._share):
            self._await_turn()
            return
        begun_s = scheduler.begin(self.loop)
        self._parse()
        scheduler.charge(self._share, begun_s)
