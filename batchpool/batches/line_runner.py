"""One line of a batch, run until it has an answer, or an error that no attempt can change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from batchpool.batches.line_calls import LineCalls
from batchpool.core.errors import InternalError, PoolError
from batchpool.wire.batch_lines import BatchLine
from batchpool.wire.openai import error_object

_LOG = logging.getLogger("batchpool.tasks")
_OK = 200


class Verdict(Protocol):
    """The verdict on an error. after_s: the time until the next attempt, None for none. counted: an
    attempt was used up."""

    @property
    def after_s(self) -> float | None: ...
    @property
    def counted(self) -> bool: ...


Judge = Callable[[PoolError, int, int, float], Verdict]
"""The verdict on an error, after so many attempts, of which there may be so many; the last number,
from -1 to 1, spreads those that failed together."""


@dataclass(frozen=True, slots=True)
class LineEnd:
    """status: of the answer, as HTTP has it. body: its JSON."""

    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return self.status == _OK


class LineRunner:
    """Runs lines. attempts: the most of each, the pool's own weather aside."""

    def __init__(self, calls: LineCalls, judge: Judge, attempts: int) -> None:
        self._calls = calls
        self._judge = judge
        self._attempts = attempts

    async def run(self, endpoint: str, line: BatchLine) -> LineEnd:
        """The end of a line. It waits out whatever keeps the pool from answering now."""
        attempts = 0
        while True:
            try:
                return LineEnd(_OK, await self._calls.answer(endpoint, line.body))
            except PoolError as exc:
                error = exc
            except Exception:
                _LOG.exception("a line of a batch met an error of the server")
                error = InternalError("internal error; the server's log has the details")
            verdict = self._judge(error, attempts, self._attempts, random.uniform(-1, 1))
            if verdict.after_s is None:
                return LineEnd(error.status, msgspec.json.encode(error_object(error, {})))
            attempts += verdict.counted
            await asyncio.sleep(verdict.after_s)
