"""Results for one asker: many questions in one look, and ends as they come.

A task that ends while somebody waits for it is told with its answer, as it was committed: nobody
reads it from the store again. A long answer is read when its asker can take it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from batchpool.control.task_messages import CollectResult, TaskForm, TaskResult
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.record import KeptResult

Turn = Callable[[], AbstractAsyncContextManager[Any]]
Missing = Callable[[str], TaskForm]
# Gets the result of one question, once, or the error for which there is none.
Reply = Callable[[TaskResult | BaseException], None]


@dataclass(frozen=True, slots=True)
class Desk:
    """The parts that all askers share. missing: the form of a task that is not there. is_stopping:
    nobody waits for an end any more."""

    committer: Committer
    ends: Ends
    missing: Missing
    is_stopping: Callable[[], bool]


class Collecting:
    """Answers the questions of one asker. turn: of it, to read a long result in."""

    def __init__(self, desk: Desk, turn: Turn) -> None:
        self.desk = desk
        self._turn = turn
        self._polls: set[Poll] = set()
        self._works: set[asyncio.Task[None]] = set()

    def collect(self, asked: Sequence[tuple[CollectResult, Reply]]) -> None:
        """Answer these questions, each in its time."""
        unknown = []
        for message, reply in asked:
            poll = Poll(self, message, reply)
            self._polls.add(poll)
            if not poll.waits_at_once():
                unknown.append(poll)
        if unknown:
            self.look(unknown)

    def look(self, polls: Sequence[Poll]) -> None:
        """Ask the store for the tasks of these."""
        self._start(self._look(polls))

    def read(self, poll: Poll, kept: KeptResult) -> None:
        """Read a long result in the asker's turn."""
        self._start(self._read(poll, kept))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def _look(self, polls: Sequence[Poll]) -> None:
        ids = [poll.message.id for poll in polls]
        found = await self.desk.committer.ask_each("collect", ids)
        for poll, kept in zip(polls, found, strict=True):
            poll.seen(kept)

    async def _read(self, poll: Poll, kept: KeptResult) -> None:
        identifier, answer = poll.message.id, kept.answer
        async with self._turn():
            try:
                body: bytes | None = await self.desk.committer.run(
                    lambda store, _: store.body(identifier)
                )
            except Exception as exc:  # whatever it is, the asker is answered
                poll.answer(exc)
                return
            if body is None or answer is None:
                poll.answer(TaskResult(self.desk.missing(identifier)))
            else:
                poll.answer(TaskResult(kept.form, answer.status, answer.headers, body))

    def forget(self, poll: Poll) -> None:
        """A question that is answered."""
        self._polls.discard(poll)

    def close(self) -> None:
        """The asker has gone."""
        for poll in tuple(self._polls):
            poll.end()
        for work in self._works:
            work.cancel()


class Poll:
    """One question for a result."""

    __slots__ = ("_collecting", "_ended", "_is_open", "_reply", "_timer", "message")

    def __init__(self, collecting: Collecting, message: CollectResult, reply: Reply) -> None:
        self.message = message
        self._collecting = collecting
        self._reply = reply
        self._is_open = False  # the task was open, and its caller may see it
        # The end that was told since the question came; `...` for none.
        self._ended: TaskResult | EllipsisType | None = ...
        self._timer: asyncio.TimerHandle | None = None
        if message.wait_ms:
            collecting.desk.ends.add(message.id, self._on_end)

    def waits_at_once(self) -> bool:
        """Wait, where it is known without the store that the task is open."""
        message, desk = self.message, self._collecting.desk
        if not message.wait_ms or desk.is_stopping():
            return False
        if not desk.ends.is_open(message.id, message.principal):
            return False
        self._wait()
        return True

    def seen(self, kept: KeptResult | BaseException | None) -> None:
        """The store has found this."""
        message, desk = self.message, self._collecting.desk
        if isinstance(kept, BaseException):
            self.answer(kept)
        elif kept is None or kept.principal != message.principal:
            self.answer(TaskResult(desk.missing(message.id)))
        elif kept.is_long:
            self._collecting.read(self, kept)
        elif kept.answer is not None:
            answer = kept.answer
            self.answer(TaskResult(kept.form, answer.status, answer.headers, answer.body))
        elif not message.wait_ms or self._timer is not None or desk.is_stopping():
            self.answer(TaskResult(kept.form))
        else:
            self._wait()
            if self._ended is not ...:
                self._on_end(self._ended)

    def _wait(self) -> None:
        self._is_open = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.message.wait_ms / 1000, self._on_time)

    def _on_end(self, result: TaskResult | None) -> None:
        if not self._is_open:
            self._ended = result
        elif result is None:
            self._on_time()
        else:
            self.answer(result)

    def _on_time(self) -> None:
        """Look once more, and answer with what is there then."""
        self._is_open = False
        self._collecting.look([self])

    def answer(self, found: TaskResult | BaseException) -> None:
        """Give the asker its answer."""
        self.end()
        self._reply(found)

    def end(self) -> None:
        """Wait no more."""
        if self.message.wait_ms:
            self._collecting.desk.ends.remove(self.message.id, self._on_end)
        if self._timer is not None:
            self._timer.cancel()
        self._collecting.forget(self)
