"""Group commit: what many callers ask of the store in one turn of the loop goes there together.

The store runs in one thread. While that one commits, questions gather; the next group takes all of
them, up to a size, in one transaction. A commit costs a disk and two processors the same for one
task as for ten, so the store rests after each one as long as it took, two milliseconds at most, and
less where many wait: at a rate that it could just serve one by one, questions share commits too.
After a rest nobody waits for company.

Where a group meets a full disk, new tasks are refused, and everything else in it is tried once more
by itself, in ever smaller groups: what has been taken is to end. A group that fails otherwise is
divided too, until the question that is to blame is alone.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from batchpool.tasks.record import Claimed, ClaimedTask, Want
from batchpool.tasks.store import StoreAway, StoreFull, TaskStore

MOST_TASKS = 256
MOST_BYTES = 4 * 2**20
REST_MOST_S = 0.002
ENOUGH = 64  # questions that end a rest
LEAST_TASKS = 16  # of each kind that waits, however many of the kinds before it do
# What ends and makes room comes before what is new.
_ORDER = ("finish", "retry", "cancel", "put", "look", "collect", "mark_read", "claim")


class _Question:
    """Entries that one asker asks together. answers: one for each, in their order."""

    __slots__ = ("answers", "future", "left")

    def __init__(self, n: int, future: asyncio.Future[list[Any]]) -> None:
        self.answers: list[Any] = [None] * n
        self.left = n
        self.future = future

    def answer(self, place: int, found: Any) -> None:
        """One entry has its answer; with the last one the asker goes on."""
        self.answers[place] = found
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(self.answers)


Entry = tuple[Any, _Question, int]  # an entry, and its place in the question


def _fitting(waiting: Sequence[Entry]) -> int:
    """The number of the first new tasks that a group takes, by the bytes of their inputs."""
    size = 0
    for n, (task, _, _) in enumerate(waiting):
        if size >= MOST_BYTES:
            return n
        size += len(task.input)
    return len(waiting)


class CommitTimes(Protocol):
    """Takes the time of each commit."""

    def __call__(self, seconds: float) -> None: ...


class Committer:
    """Groups the questions to one store, which its thread alone uses.

    clock_ms: Unix time. noted: gets the time of each group. rest_most_s: the longest rest after
    one. Awaiting an answer raises StoreFull or StoreAway.
    """

    def __init__(
        self,
        store: TaskStore,
        clock_ms: Callable[[], int],
        noted: CommitTimes,
        rest_most_s: float = REST_MOST_S,
    ) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._noted = noted
        self._thread = ThreadPoolExecutor(1, "task-store")
        self._waiting: dict[str, list[Entry]] = {kind: [] for kind in _ORDER}
        self._commits: asyncio.Task[None] | None = None
        self._rest_most_s = rest_most_s
        self._took_s = 0.0  # the last group
        self._rested_s = 0.0  # by the loop's clock: when the rest after the last group is over
        self._rest: asyncio.Future[None] | None = None

    async def ask(self, kind: str, entry: Any) -> Any:
        """The store's answer for one entry of the method `kind`, which takes a group of them."""
        (found,) = await self.ask_all(kind, (entry,))
        return found

    async def ask_all(self, kind: str, entries: Sequence[Any]) -> list[Any]:
        """As `ask`, for several entries that come together; raises the first error of them."""
        found = await self.ask_each(kind, entries)
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return found

    async def ask_each(self, kind: str, entries: Sequence[Any]) -> list[Any]:
        """As `ask_all`, with the error of an entry in its place: they may be of several commits."""
        if not entries:
            return []
        question = _Question(len(entries), asyncio.get_running_loop().create_future())
        self._waiting[kind] += [(entry, question, place) for place, entry in enumerate(entries)]
        if self._rest is not None and self._has_enough():
            _end(self._rest)
        if self._commits is None:
            self._commits = asyncio.create_task(self._commit_all())
        return await question.future

    async def run(self, work: Callable[[TaskStore, int], Any]) -> Any:
        """The result of work(store, now_ms) in the store's thread, between two groups. What fails
        outside a group of the store's own is StoreAway, too: nobody who asks ends with it."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._thread, lambda: work(self._store, self._clock_ms())
            )
        except (OSError, sqlite3.Error) as exc:
            raise StoreAway(f"the store of tasks cannot be read: {exc}") from exc

    async def _commit_all(self) -> None:
        """Commit groups until nothing waits."""
        loop = asyncio.get_running_loop()
        # A turn of the loop, in which the questions of other connections join.
        await asyncio.sleep(0)
        while any(self._waiting.values()):
            await self._until_rested(loop)
            group = self._take()
            answers = await loop.run_in_executor(self._thread, self._answered, group)
            self._rested_s = loop.time() + min(self._took_s, self._rest_most_s)
            for (_, entries), found in zip(group, answers, strict=True):
                for (_, question, place), answer in zip(entries, found, strict=True):
                    question.answer(place, answer)
        self._commits = None

    async def _until_rested(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let questions gather until the rest is over, or they are enough."""
        left_s = self._rested_s - loop.time()
        if left_s <= 0 or self._has_enough():
            return
        self._rest = loop.create_future()
        timer = loop.call_later(left_s, _end, self._rest)
        try:
            await self._rest
        finally:
            timer.cancel()
            self._rest = None

    def _has_enough(self) -> bool:
        return self._rest_most_s <= 0 or sum(map(len, self._waiting.values())) >= ENOUGH

    def _take(self) -> list[tuple[str, list[Entry]]]:
        """The next group, by kind in the store's order."""
        group = []
        room = MOST_TASKS
        kept = sum(min(len(waiting), LEAST_TASKS) for waiting in self._waiting.values())
        for kind in _ORDER:
            waiting = self._waiting[kind]
            kept -= min(len(waiting), LEAST_TASKS)
            n = min(len(waiting), max(0, room - kept))
            if kind == "put":
                n = _fitting(waiting[:n])
            room -= n
            if n:
                group.append((kind, waiting[:n]))
                del waiting[:n]
        return group

    # -- in the store's thread ----------------------------------------------------------

    def _answered(self, group: Sequence[tuple[str, list[Entry]]]) -> list[list[Any]]:
        begun_s = time.monotonic()
        try:
            with self._store.group():
                answers = self._answers_of_all(group)
        except Exception as exc:
            answers = [self._apart(kind, entries, exc) for kind, entries in group]
        self._took_s = time.monotonic() - begun_s
        self._noted(self._took_s)
        return answers

    def _answers_of_all(self, group: Sequence[tuple[str, list[Entry]]]) -> list[list[Any]]:
        """The store's answers to a group, of which new tasks and wants are one step."""
        kinds = dict(group)
        if "put" not in kinds or "claim" not in kinds:
            return [self._answers(kind, entries) for kind, entries in group]
        found: dict[str, list[Any]] = {}
        for kind, entries in group:
            if kind == "put":
                wants = [want for want, _, _ in kinds["claim"]]
                tasks = [task for task, _, _ in entries]
                now_ms = self._clock_ms()
                found["put"], claims = self._store.put_and_claim(tasks, wants, now_ms)
                found["claim"] = self._claimed(wants, claims)
            elif kind != "claim":
                found[kind] = self._answers(kind, entries)
        return [found[kind] for kind in kinds]

    def _answers(self, kind: str, entries: Sequence[Entry]) -> list[Any]:
        """The store's answers to entries of one kind."""
        method = getattr(self._store, kind)
        given = [entry for entry, _, _ in entries]
        if kind == "claim":  # one list for all wants: each gets its own
            claims = [method([want], self._clock_ms()) for want in given]
            return self._claimed(given, claims)
        found: list[Any] = method(given, self._clock_ms())
        return found

    def _claimed(
        self, wants: Sequence[Want], claims: Sequence[Sequence[ClaimedTask]]
    ) -> list[Claimed]:
        """The tasks of each want, and when there are more: where as many as were wanted came, at
        once."""
        due: dict[str, int | None] = {want.model: 0 for want in wants}
        spent = [w.model for w, tasks in zip(wants, claims, strict=True) if len(tasks) < w.tasks]
        if spent:
            due.update(zip(spent, self._store.next_due_ms(spent), strict=True))
        return [Claimed(tasks, due[want.model]) for want, tasks in zip(wants, claims, strict=True)]

    def _apart(self, kind: str, entries: Sequence[Entry], exc: Exception) -> list[Any]:
        """The answers of entries whose group failed: by themselves, but for new tasks on a full
        disk. Half of them takes less room, and so on, or is without the one that is to blame: what
        is wrong with one entry, or with the record that it asks for, fails no other."""
        if isinstance(exc, StoreAway) or (kind == "put" and isinstance(exc, StoreFull)):
            return [exc] * len(entries)
        try:
            with self._store.group():
                return self._answers(kind, entries)
        except Exception as again:
            if len(entries) == 1:
                return [self._fewer(entries[0], again)]
            half = len(entries) // 2
            parts = (entries[:half], entries[half:])
            return [found for part in parts for found in self._apart(kind, part, again)]

    def _fewer(self, entry: Entry, exc: Exception) -> Any:
        """The answer to a single entry that there was no room for: fewer tasks than were wanted."""
        want, question, place = entry
        if not isinstance(want, Want) or want.tasks == 1 or not isinstance(exc, StoreFull):
            return exc
        fewer = replace(want, tasks=want.tasks // 2)
        (found,) = self._apart("claim", [(fewer, question, place)], exc)
        return found

    async def close(self) -> None:
        """Commit what waits, and close the store."""
        self._rest_most_s = 0.0
        if self._rest is not None:
            _end(self._rest)
        if self._commits is not None:
            await self._commits
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()


def _end(rest: asyncio.Future[None]) -> None:
    if not rest.done():
        rest.set_result(None)
