"""The interface of a store of tasks.

Every method takes and gives a group, so that a store pays for one commit, or one round trip, for
all of them; an entry that cannot be had is told in its place and disturbs no other. A store may be
shared by several pools: a claimed task belongs to the owner that claimed it, and only that owner's
present claim can end it. No method assumes that its owner has all tasks.

Errors: `StoreFull` where the disk or the server below takes no more bytes, `StoreAway` where the
store cannot be reached or read at all. After either nothing of the group has changed.

Times are milliseconds of Unix time, given by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.record import (
    Again,
    ClaimedTask,
    Dropped,
    Ended,
    KeptResult,
    KeptTask,
    NewTask,
    Put,
    Reclaimed,
    StoreCounts,
    Want,
)


class StoreFull(Exception):
    """The medium of the store is full."""


class StoreAway(Exception):
    """The store cannot be used; the text says why."""


class StoreGone(StoreAway):
    """The store that is open is not at its place any more: another process has to open it anew."""


# methods: one for each thing that is asked of a store
class TaskStore(Protocol):
    """Keeps tasks, results and dead letters. It is used by one thread.

    lease_s: after so long without a sign of its owner a claim may be reclaimed; 0 where no owner
    can vanish while another one has the store, so that it is enough to reclaim once.
    """

    lease_s: float

    def group(self) -> AbstractContextManager[None]:
        """All that is called inside is kept together at its end, where the store can do that."""

    def put(self, tasks: Sequence[NewTask], now_ms: int) -> list[Put]:
        """Keep new tasks. One with a key or an id that is there, or came before it in the group, is
        that task; where its input is another one it is refused."""

    def claim(self, wants: Sequence[Want], now_ms: int) -> list[ClaimedTask]:
        """Take queued tasks whose time has come, in turns by origin, within an origin by caller; of
        each caller the oldest first. They run from now on. A store of several parts has turns in
        each of them."""

    def put_and_claim(
        self, tasks: Sequence[NewTask], wants: Sequence[Want], now_ms: int
    ) -> tuple[list[Put], list[list[ClaimedTask]]]:
        """As `put` and then `claim` of each want, in one step where the store has one: a new task
        that is claimed in the transaction that keeps it was never queued."""

    def reclaim(self, now_ms: int) -> Reclaimed:
        """Queue tasks again whose owner has vanished, but for those that were lost too often."""

    def finish(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        """End claimed tasks; False for one that is no longer that claim's."""

    def retry(self, tasks: Sequence[Again], now_ms: int) -> list[bool]:
        """Queue claimed tasks again; False for one that is no longer that claim's."""

    def look(self, ids: Sequence[str], now_ms: int) -> list[KeptTask | None]:
        """Tasks as they are now; None for one that is not there."""

    def collect(self, ids: Sequence[str], now_ms: int) -> list[KeptResult | None]:
        """Results. They count as read once `mark_read` says so; a long body is for `body`."""

    def body(self, identifier: str) -> bytes | None:
        """The long body of a result; None if it is not there any more."""

    def mark_read(self, ids: Sequence[str], now_ms: int) -> list[None]:
        """Their callers have these results: they are dropped after the grace. Failed tasks keep
        their time."""

    def cancel(self, ids: Sequence[str], now_ms: int) -> list[TaskForm | None]:
        """Take back open tasks and drop those that have ended; as they were before. None for one
        that is not there, or was cancelled before."""

    def sweep(self, now_ms: int) -> Dropped:
        """End open tasks whose deadline has passed, and drop results whose time is over; a part of
        them at a time."""

    def next_due_ms(self, models: Sequence[str]) -> list[int | None]:
        """When the first queued task of each model may run, 0 for at once; None where none is
        queued."""

    def models(self) -> set[str]:
        """The models that have open tasks."""

    def counts(self) -> StoreCounts:
        """The contents of the store."""

    def list_tasks(self, state: str, model: str, most: int) -> list[TaskForm]:
        """The newest tasks; "" is every state, or every model."""

    def letters(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        """Dead letters, the newest first; see `ListLetters`."""

    def replay(self, letters: Sequence[int], now_ms: int, deadline_ms: int) -> list[str | None]:
        """Make queued tasks of dead letters, which are then gone; the ids of the new tasks."""

    def drop_letters(self, letters: Sequence[int]) -> list[bool]:
        """Drop dead letters; False for one that is not there."""

    def close(self) -> None:
        """Let go of the store; claims that were not ended are reclaimed by the next owner."""
