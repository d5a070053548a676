"""Tasks that run: claimed, renewed, ended, queued again, taken over from owners that vanished.

A claim is a number and an owner in the task's record, and the owner's last sign of life in a sorted
set. An end counts only if number and owner are still that claim's, which one script decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import structs

from batchpool.core.errors import TooLarge
from batchpool.tasks.letter_box import LETTER_SHARE, LETTERS_MOST
from batchpool.tasks.record import (
    LOSSES_MOST,
    Again,
    ClaimedTask,
    Ended,
    Reclaimed,
    StoreLimits,
    TaskState,
    Want,
)
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_forms import claimed_of, text
from batchpool.tasks.redis_homes import reading_order, shares
from batchpool.tasks.redis_keys import LETTERS
from batchpool.tasks.redis_link import Command
from batchpool.tasks.redis_scripts import script
from batchpool.tasks.store import StoreAway
from batchpool.tasks.task_rows import error_answer

_FAR_EVERY = 4
_RECLAIMED_AT_ONCE = 256  # of one partition
RUNNING = b"1:"
# Half of what a server takes as one value (proto-max-bulk-len) unless it is told otherwise.
MOST_BODY_BYTES = 256 * 2**20


class RedisClaims:
    """The claims of one owner. homes: the partitions that it reads first."""

    def __init__(self, cells: Cells, owner: str, lease_ms: int, limits: StoreLimits) -> None:
        self._cells = cells
        self._owner = owner
        self._lease_ms = lease_ms
        self._ttl_ms = limits.result_ttl_ms
        self._letter_limits = (
            max(1, LETTERS_MOST // cells.number), limits.bytes // LETTER_SHARE // cells.number
        )  # fmt: skip
        self._held: dict[str, tuple[str, int]] = {}  # {id: (model, claim)}
        self._in_doubt: set[tuple[str, int]] = set()
        self._taken: list[str] = []  # in this group
        self._ended_now: list[tuple[str, int]] = []  # in this group, as (id, claim)
        self._turn = 0
        self.homes: list[int] = list(range(cells.number))

    @property
    def letter_limits(self) -> tuple[int, int]:
        """Dead letters of one partition, and their bytes, that are kept at most."""
        return self._letter_limits

    @contextmanager
    def group(self) -> Iterator[None]:
        """Tell the caller of claims and ends inside when the block has ended, or not at all.

        Claims of which he does not hear are let go, or they would be renewed and never run. Ends
        of which he does not hear come again.
        """
        self._taken.clear()
        self._ended_now.clear()
        try:
            yield
        except Exception:
            for identifier in self._taken:
                self._held.pop(identifier, None)
            self._in_doubt.update(self._ended_now)
            raise

    # -- taking -------------------------------------------------------------------------

    def take(self, want: Want, now_ms: int) -> list[ClaimedTask]:
        """Claim tasks whose time has come: from the homes first, and each fourth time from the
        other partitions, since an owner that lives may be unable to run what is in its own."""
        waiting = {p: n for p, n in enumerate(self._cells.each("waiting", want.model)) if n}
        self._turn += 1
        order = reading_order(self.homes, self._cells.number, self._turn)
        near_ones: Sequence[int] = self.homes
        if self._turn % _FAR_EVERY == 0:
            order = reading_order(self.homes, self._cells.number, self._turn // _FAR_EVERY)
            order = order[len(self.homes) :] + order[: len(self.homes)]
            near_ones = ()
        found: list[ClaimedTask] = []
        room = want.bytes
        while waiting and len(found) < want.tasks and (room > 0 or not found):
            near = [(p, waiting[p]) for p in order if p in waiting and p in near_ones]
            far = [(p, waiting[p]) for p in order if p in waiting]
            parts = shares(near or far, want.tasks - len(found))
            words = {
                p: (now_ms, self._owner, want.model, tasks, max(0, room // len(parts)),
                    int(not found and not i))
                for i, (p, tasks) in enumerate(parts)
            }  # fmt: skip
            for (partition, asked), reply in zip(
                parts, self._cells.scripts("claim", words).values(), strict=True
            ):
                tasks = [claimed_of(want.model, record, now_ms) for record in reply]
                self._hold(tasks)
                found += tasks
                room -= sum(len(task.input) for task in tasks)
                waiting[partition] -= len(tasks)
                if len(tasks) < asked or waiting[partition] <= 0:
                    del waiting[partition]
        return found

    def _hold(self, tasks: Iterable[ClaimedTask]) -> None:
        for task in tasks:
            self._held[task.id] = task.model, task.claim
            self._taken.append(task.id)

    def renew(self) -> None:
        """Show that the owner of what is held lives."""
        ids = list(self._held)
        more = [(identifier, self._held[identifier][1]) for identifier in ids]
        kept = self._cells.of_tasks("renew", ids, (self._owner,), more)
        for identifier, is_held in zip(ids, kept, strict=True):
            if not is_held:
                self._held.pop(identifier, None)

    def take_over(self, now_ms: int) -> Reclaimed:
        """Queue again what owners had claimed that gave no sign for a lease, and claim what was
        lost too often."""
        running = [
            (p, text(name[len(RUNNING):]))
            for p, counts in enumerate(self._cells.commands("HKEYS", "n"))
            for name in counts if name.startswith(RUNNING)
        ]  # fmt: skip
        tasks, lost = 0, []
        for model in sorted({model for _, model in running}):
            held = [name for name, (of, _) in self._held.items() if of == model]
            places = self._cells.by_partition(held)
            left = {p for p, of in running if of == model}
            while left:
                words = {
                    p: (now_ms, self._owner, model, self._lease_ms, LOSSES_MOST, _RECLAIMED_AT_ONCE,
                        *(held[place] for place in places.get(p, ())))
                    for p in sorted(left)
                }  # fmt: skip
                for p, (more, taken, records) in self._cells.scripts("reclaim", words).items():
                    found = [claimed_of(model, record, now_ms) for record in records]
                    self._hold(found)
                    lost += found
                    tasks += taken
                    if more == b"0" or not taken:
                        left.discard(p)
        return Reclaimed(tasks, tuple(lost))

    # -- ending -------------------------------------------------------------------------

    def finish(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        """End claimed tasks; False for one that is no longer that claim's. A result that the server
        does not take has failed: sent again and again it would keep all others from ending."""
        ends = [end if len(end.answer.body) <= MOST_BODY_BYTES else _too_large(end) for end in ends]
        letters = self.letter_numbers(sum(end.is_letter for end in ends))
        more = [
            (
                end.id, end.claim, int(end.state), int(end.counted), end.code, end.error,
                end.answer.status, msgspec.msgpack.encode(end.answer.headers), end.answer.body,
                self._letter(end.id, letters.pop()) if end.is_letter else 0,
                msgspec.msgpack.encode(end.facts),
            )
            for end in ends
        ]  # fmt: skip
        first = (now_ms, self._owner, self._ttl_ms, *self._letter_limits)
        return self._ended("finish", [(end.id, end.claim) for end in ends], first, more)

    def letter_numbers(self, n: int) -> list[int]:
        """So many numbers that no dead letter has."""
        if not n:
            return []
        (last,) = self._cells.link.run([Command(LETTERS, (n,), script("number"))])
        return list(range(last, last - n, -1))

    def _letter(self, identifier: str, count: int) -> int:
        """The number of a dead letter: that of its partition is what remains of it."""
        (partition,) = self._cells.by_partition([identifier]) or (0,)
        return count * self._cells.number + partition

    def retry(self, tasks: Sequence[Again], now_ms: int) -> list[bool]:
        """Queue claimed tasks for a later time; False for one that is no longer that claim's."""
        more = [(task.id, task.claim, task.due_ms, int(task.counted)) for task in tasks]
        claims = [(task.id, task.claim) for task in tasks]
        return self._ended("retry", claims, (now_ms, self._owner), more)

    def _ended(
        self,
        name: str,
        claims: Sequence[tuple[str, int]],
        first: tuple[Any, ...],
        more: Sequence[Sequence[Any]],
    ) -> list[bool]:
        """True for each end that was that of its claim.

        Of an end whose answer was lost nobody knows whether it counted. When it comes again the
        script is told, and takes what this claim has done as its own.
        """
        doubted = self._in_doubt.intersection(claims)
        try:
            replies = self._cells.of_tasks(
                name, [identifier for identifier, _ in claims], first, more, again=bool(doubted)
            )
        except StoreAway:
            self._in_doubt.update(claims)
            raise
        self._in_doubt -= doubted
        self._ended_now += claims
        for identifier, claim in claims:
            if self._held.get(identifier, ("", -1))[1] == claim:
                del self._held[identifier]
        return [reply == 1 for reply in replies]


def _too_large(end: Ended) -> Ended:
    error = TooLarge(
        f"the result takes {len(end.answer.body)} bytes; at most {MOST_BODY_BYTES} are kept in"
        " tasks_store: send fewer rows, or ask for fewer outputs"
    )
    return structs.replace(
        end, state=TaskState.FAILED, answer=error_answer(error), code=error.code,
        error=error.message, is_letter=True,
    )  # fmt: skip
