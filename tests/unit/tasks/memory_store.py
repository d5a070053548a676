"""A store of tasks in memory, for tests of what stands above a store.

It passes the same contract as every store (test_store_contract.py). is_full, is_away: the next
calls raise StoreFull or StoreAway. commits: the groups so far. long_bytes: a result of as many is
long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import structs

from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.account import Account
from batchpool.tasks.record import (
    LOSSES_MOST,
    MOVES,
    TOKEN_BYTES,
    Again,
    ClaimedTask,
    Dropped,
    Ended,
    KeptResult,
    KeptTask,
    NewTask,
    Put,
    PutOutcome,
    Reclaimed,
    StoreCounts,
    StoreLimits,
    TaskAnswer,
    TaskState,
    Want,
    task_id,
)
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.tasks.task_rows import expired_answer
from batchpool.tasks.turns import Head, Turns


@dataclass
class Kept:
    """One task."""

    task: NewTask
    state: TaskState = TaskState.QUEUED
    due_ms: int = 0
    turn: int | None = None
    attempts: int = 0
    losses: int = 0
    claims: int = 0
    owner: bytes = b""
    started_ms: int = 0
    finished_ms: int = 0
    drop_ms: int = 0
    code: str = ""
    error: str = ""
    answer: TaskAnswer | None = None
    moves: list[TaskState] = field(default_factory=list)

    def become(self, state: TaskState) -> None:
        assert state in MOVES[self.state], (self.state, state)
        self.state = state
        self.moves.append(state)

    @property
    def form(self) -> TaskForm:
        task = self.task
        return TaskForm(
            task.id, self.state.label, task.model, self.attempts, task.submitted_ms,
            self.started_ms, self.finished_ms, self.code, self.error,
        )  # fmt: skip


@dataclass
class Shelf:
    """The part that outlives one store object."""

    tasks: dict[str, Kept] = field(default_factory=dict)
    letters: dict[int, tuple[LetterForm, str]] = field(default_factory=dict)
    count: int = 0
    turns: Turns = field(default_factory=Turns)


# methods: those of the interface of a store
class MemoryStore:
    """The store of one owner on a shelf."""

    lease_s = 0.0

    def __init__(self, shelf: Shelf, limits: StoreLimits) -> None:
        self.shelf = shelf
        self.tasks = shelf.tasks
        self.limits = limits
        self.owner = os.urandom(8)
        self.is_full = self.is_away = False
        self.commits = 0
        self.long_bytes = 2**20

    @contextmanager
    def group(self) -> Iterator[None]:
        if self.is_away:
            raise StoreAway("the store is away")
        if self.is_full:
            raise StoreFull("the store is full")
        self.commits += 1
        yield

    def _account(self) -> Account:
        account = Account()
        for kept in self.tasks.values():
            account.add(kept.task.model, kept.state, kept.task.holder)
            account.shares.add(kept.task.holder, len(kept.task.input))
        return account

    def _bytes(self) -> int:
        return sum(len(kept.task.input) for kept in self.tasks.values())

    def put(self, tasks: Sequence[NewTask], now_ms: int) -> list[Put]:
        return [self._put(task, now_ms) for task in tasks]

    def _put(self, task: NewTask, now_ms: int) -> Put:
        for kept in self.tasks.values():
            if kept.task.id == task.id or (task.key and kept.task.key == task.key):
                if task.key and kept.task.fingerprint != task.fingerprint:
                    return Put(PutOutcome.MISMATCH)
                return Put(PutOutcome.KNOWN, kept.form, kept.task.principal)
        if self._bytes() >= self.limits.bytes:
            return Put(PutOutcome.BYTES_FULL)
        account, size, limits = self._account(), len(task.input), self.limits
        if not account.shares.has_room(
            task.holder, size, self._bytes(), limits.bytes, limits.share
        ):
            return Put(PutOutcome.BYTES_SHARE_FULL)
        if lack := account.lack(task.holder, limits.open):
            return Put(lack)
        self._queue(Kept(task, due_ms=now_ms))
        return Put(PutOutcome.NEW, self.tasks[task.id].form, task.principal)

    def claim(self, wants: Sequence[Want], now_ms: int) -> list[ClaimedTask]:
        found = []
        for want in wants:
            queued = [
                kept for kept in self.tasks.values()
                if kept.state is TaskState.QUEUED and kept.task.model == want.model
            ]  # fmt: skip
            for kept in queued:
                if kept.turn is None and kept.due_ms <= now_ms:
                    self._line_up(kept)

            heads = partial(_heads, queued)
            for head in self.shelf.turns.take(want.model, want.tasks, want.bytes, heads):
                found.append(self._claimed(queued[head.n], now_ms))
        return found

    def put_and_claim(
        self, tasks: Sequence[NewTask], wants: Sequence[Want], now_ms: int
    ) -> tuple[list[Put], list[list[ClaimedTask]]]:
        puts = self.put(tasks, now_ms)
        return puts, [self.claim([want], now_ms) for want in wants]

    def _queue(self, kept: Kept) -> None:
        self._line_up(kept)
        self.tasks[kept.task.id] = kept

    def _line_up(self, kept: Kept) -> None:
        task = kept.task
        kept.turn = self.shelf.turns.join(task.model, task.holder, task.caller, task.rows)

    def _claimed(self, kept: Kept, now_ms: int) -> ClaimedTask:
        kept.become(TaskState.RUNNING)
        kept.claims, kept.owner, kept.started_ms = kept.claims + 1, self.owner, now_ms
        task = kept.task
        return ClaimedTask(
            task.id, task.model, kept.claims, kept.attempts, kept.losses, task.rows, task.input,
            task.answer, task.submitted_ms, now_ms,
        )  # fmt: skip

    def reclaim(self, now_ms: int) -> Reclaimed:
        lost, hopeless = 0, []
        for kept in self.tasks.values():
            if kept.state is TaskState.RUNNING and kept.owner != self.owner:
                lost += 1
                kept.losses += 1
                kept.become(TaskState.QUEUED)
                kept.turn = None
                if kept.losses >= LOSSES_MOST:
                    hopeless.append(self._claimed(kept, now_ms))
        return Reclaimed(lost, tuple(hopeless))

    def _is_claim(self, identifier: str, claim: int) -> bool:
        kept = self.tasks.get(identifier)
        return (
            kept is not None
            and kept.state is TaskState.RUNNING
            and (kept.claims, kept.owner) == (claim, self.owner)
        )

    def finish(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        return [self._finish(end, now_ms) for end in ends]

    def _finish(self, end: Ended, now_ms: int) -> bool:
        if not self._is_claim(end.id, end.claim):
            return False
        kept = self.tasks[end.id]
        kept.attempts += end.counted
        if end.is_letter:
            self._letter(kept, end.code, end.error, end.facts, now_ms)
        kept.become(end.state)
        kept.answer, kept.code, kept.error = end.answer, end.code, end.error
        kept.finished_ms, kept.drop_ms = now_ms, now_ms + self.limits.result_ttl_ms
        return True

    def _letter(
        self, kept: Kept, code: str, error: str, facts: dict[str, Any], now_ms: int
    ) -> None:
        self.shelf.count += 1
        task = kept.task
        form = LetterForm(
            self.shelf.count, task.id, task.model, code, error, kept.attempts, task.rows,
            task.submitted_ms, now_ms, task.caller, facts, task.input, task.answer,
        )  # fmt: skip
        self.shelf.letters[form.letter] = form, task.principal

    def retry(self, tasks: Sequence[Again], now_ms: int) -> list[bool]:
        accepted = []
        for again in tasks:
            accepted.append(self._is_claim(again.id, again.claim))
            if accepted[-1]:
                kept = self.tasks[again.id]
                kept.become(TaskState.QUEUED)
                kept.due_ms, kept.losses, kept.turn = again.due_ms, 0, None
                kept.attempts += again.counted
        return accepted

    def look(self, ids: Sequence[str], now_ms: int) -> list[KeptTask | None]:
        found = map(self.tasks.get, ids)
        return [
            None if kept is None
            else KeptTask(kept.form, kept.task.principal)
            for kept in found
        ]  # fmt: skip

    def collect(self, ids: Sequence[str], now_ms: int) -> list[KeptResult | None]:
        found: list[KeptResult | None] = []
        for kept in map(self.tasks.get, ids):
            if kept is None:
                found.append(None)
                continue
            answer = kept.answer or (TaskAnswer(0, (), b"") if kept.state.has_ended else None)
            is_long = answer is not None and len(answer.body) >= self.long_bytes
            if answer is not None and is_long:
                answer = structs.replace(answer, body=b"")
            found.append(KeptResult(kept.form, kept.task.principal, answer, is_long))
        return found

    def body(self, identifier: str) -> bytes | None:
        kept = self.tasks.get(identifier)
        return None if kept is None or kept.answer is None else kept.answer.body

    def mark_read(self, ids: Sequence[str], now_ms: int) -> list[None]:
        for kept in filter(None, map(self.tasks.get, ids)):
            if kept.state is TaskState.DONE and self.limits.evict_on_read:
                kept.drop_ms = min(kept.drop_ms, now_ms + self.limits.grace_ms)
        return [None] * len(ids)

    def cancel(self, ids: Sequence[str], now_ms: int) -> list[TaskForm | None]:
        return [self._cancel(identifier, now_ms) for identifier in ids]

    def _cancel(self, identifier: str, now_ms: int) -> TaskForm | None:
        kept = self.tasks.get(identifier)
        if kept is None or kept.state is TaskState.CANCELLED:
            return None
        before = kept.form
        if kept.state.has_ended:
            del self.tasks[identifier]
            return before
        kept.become(TaskState.CANCELLED)
        kept.finished_ms, kept.drop_ms = now_ms, now_ms + self.limits.result_ttl_ms
        kept.task = structs.replace(kept.task, key=b"")
        return before

    def sweep(self, now_ms: int) -> Dropped:
        ended, letters, results = [], [], 0
        for identifier, kept in list(self.tasks.items()):
            task = kept.task
            if not kept.state.has_ended and task.deadline_ms <= now_ms:
                kept.code, kept.error, kept.answer = expired_answer(own=task.own_deadline)
                if not task.own_deadline:
                    self._letter(kept, kept.code, kept.error, {}, now_ms)
                    letters.append((task.model, kept.code))
                kept.become(TaskState.FAILED)
                kept.finished_ms, kept.drop_ms = now_ms, now_ms + self.limits.result_ttl_ms
                ended.append(identifier)
            elif kept.state.has_ended and kept.drop_ms <= now_ms:
                del self.tasks[identifier]
                results += 1
        return Dropped(tuple(ended), tuple(letters), results)

    def next_due_ms(self, models: Sequence[str]) -> list[int | None]:
        queued = [kept for kept in self.tasks.values() if kept.state is TaskState.QUEUED]
        return [
            min(
                (
                    kept.due_ms if kept.turn is None else 0
                    for kept in queued if kept.task.model == model
                ),
                default=None,
            )
            for model in models
        ]  # fmt: skip

    def models(self) -> set[str]:
        return self._account().models()

    def counts(self) -> StoreCounts:
        open_ = [k.task.submitted_ms for k in self.tasks.values() if not k.state.has_ended]
        by_model, letters = self._account().by_model(), len(self.shelf.letters)
        return StoreCounts(by_model, letters, self._bytes(), min(open_, default=0))

    def list_tasks(self, state: str, model: str, most: int) -> list[TaskForm]:
        forms = [kept.form for kept in reversed(list(self.tasks.values()))]
        return [f for f in forms if state in ("", f.state) and model in ("", f.model)][:most]

    def letters(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        found = [
            form for form, _ in reversed(self.shelf.letters.values())
            if model in ("", form.model) and code in ("", form.code)
            and (not before or form.letter < before) and (not ids or form.id in ids)
        ]  # fmt: skip
        return found[:most]

    def replay(self, letters: Sequence[int], now_ms: int, deadline_ms: int) -> list[str | None]:
        ids: list[str | None] = []
        for letter in letters:
            form, principal = self.shelf.letters.pop(letter, (None, ""))
            if form is None:
                ids.append(None)
                continue
            identifier = task_id(now_ms, os.urandom(TOKEN_BYTES))
            task = NewTask(
                identifier, form.model, form.rows, form.input, form.answer, form.caller, principal,
                now_ms, deadline_ms,
            )  # fmt: skip
            self._queue(Kept(task, due_ms=now_ms))
            ids.append(identifier)
        return ids

    def drop_letters(self, letters: Sequence[int]) -> list[bool]:
        return [self.shelf.letters.pop(letter, None) is not None for letter in letters]

    def close(self) -> None:
        """Nothing to let go of."""


def _heads(
    queued: Sequence[Kept], origins: Sequence[str], most: int, skip: int
) -> list[list[Head]]:
    """The tasks at the front of these origins' lines, as `Turns` reads them."""
    lines: dict[str, list[Head]] = {origin: [] for origin in origins}
    for n, kept in enumerate(queued):
        task = kept.task
        if kept.turn is not None and task.holder in lines:
            lines[task.holder].append(Head(n, kept.turn, task.rows, len(task.input)))
    return [sorted(line, key=lambda head: head.turn)[skip : skip + most] for line in lines.values()]
