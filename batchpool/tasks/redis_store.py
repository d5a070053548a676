"""The store of tasks in Redis, Valkey, or a cluster of them, for the pools of several machines.

Tasks lie in partitions, by a number in their ids; batchpool/tasks/redis_keys.py has the
layout. Each change of tasks is one script in one partition, so it happens as a whole or not at all.
No pool holds a lock, and none leads: whoever has room claims, and what an owner does not renew for
a lease is queued again by whoever sees it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.record import (
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
)
from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_claims import RedisClaims
from batchpool.tasks.redis_forms import form_of, headers_in, number, text
from batchpool.tasks.redis_homes import homes_of
from batchpool.tasks.redis_keys import BOXES, CONFIG, PARTITIONS, UPGRADED_VERSION, VERSION, key
from batchpool.tasks.redis_letters import RedisLetters
from batchpool.tasks.redis_link import Command, Link
from batchpool.tasks.redis_listing import counted, newest
from batchpool.tasks.redis_room import Room
from batchpool.tasks.redis_scripts import script
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.tasks.task_rows import expired_answer

_LOG = logging.getLogger("batchpool.tasks")
_RENEWALS_A_LEASE = 3
_SWEPT_AT_ONCE = 64  # of one partition
_GONE_MS = 30_000  # without a sign an owner has no homes any more


# methods: those of the interface of a store
class RedisStore:
    """The store at an address. It connects with the first call, and again whenever it must.

    clock_ms: Unix time here. lease_s: as of `TaskStore`.
    """

    def __init__(
        self,
        address: StoreAddress,
        limits: StoreLimits,
        clock_ms: Callable[[], int],
        lease_s: float = 10.0,
    ) -> None:
        self._limits = limits
        self._clock_ms = clock_ms
        self._skew_ms = 0
        self.lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        # A new name each time: a process that comes back must not look like the one that died.
        self._owner = f"{socket.gethostname()}-{os.urandom(8).hex()}"
        self._link = Link(address)
        self._url = address.url
        self._cells: Cells | None = None
        self._renewed_s = 0.0

    # -- what several pools have in common ----------------------------------------------

    def clock_ms(self) -> int:
        """Unix time of the server, as far as it is known: the clocks of machines differ."""
        return self._clock_ms() + self._skew_ms

    @contextmanager
    def group(self) -> Iterator[None]:
        """Each call inside is kept by itself: what ends together here need not be one change."""
        self._open()
        with self._claims.group():
            yield

    def _open(self) -> Cells:
        """The partitions, once the server is known to have a store that this release can use."""
        if self._cells is None:
            version, partitions = self._configure(PARTITIONS)
            if version != VERSION:
                raise StoreAway(
                    f"the tasks at {self._url} have version {version} and this batchpool knows"
                    f" {VERSION}: install the release that wrote them, or name another database"
                )
            self._cells = Cells(self._link, partitions)
            self._claims = RedisClaims(self._cells, self._owner, self._lease_ms, self._limits)
            self._letters = RedisLetters(self._cells)
            self._room = Room(self._cells, self._limits)
        return self._cells

    def _configure(self, partitions: int) -> tuple[int, int]:
        """Version and partitions of the store, which is made if there is none."""
        commands = [
            Command(CONFIG, ("HSETNX", CONFIG, "version", VERSION)),
            Command(CONFIG, ("HSETNX", CONFIG, "partitions", partitions)),
            Command(CONFIG, ("HMGET", CONFIG, "version", "partitions")),
        ]
        *made, found = self._link.run(commands, errors="return")
        if found[1] is None:
            raise next(fault for fault in made if isinstance(fault, StoreFull))
        if number(found[1]) < 1:
            raise StoreAway(
                f"the tasks at {self._url} are in no form that this batchpool knows: {CONFIG} has"
                f" {text(found[1])!r} partitions; name another database"
            )
        version = number(found[0])
        if version == UPGRADED_VERSION:  # its boxes go on; those that start are refused
            self._link.run([Command(CONFIG, ("HSET", CONFIG, "version", VERSION))])
            version = VERSION
        return version, number(found[1])

    def _live(self, now_ms: int) -> None:
        """Give a sign of life, learn who else lives, and what time it is there."""
        cells = self._open()
        beat = Command(BOXES, (now_ms, self._owner, now_ms - _GONE_MS), script("beat"))
        (owners,) = self._link.run([beat])
        self._claims.homes = homes_of(self._owner, [text(name) for name in owners], cells.number)
        if self._configure(cells.number)[1] != cells.number:  # FLUSHALL, and another pool was first
            self._cells = None
            self._open()
        self._skew_ms = self._link.server_ms() - self._clock_ms()
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self.lease_s / _RENEWALS_A_LEASE:
            self._renewed_s = now_s
            self._claims.renew()

    # -- new tasks ----------------------------------------------------------------------

    def put(self, tasks: Sequence[NewTask], now_ms: int) -> list[Put]:
        cells = self._open()
        lacks = self._room.lacks(tasks, now_ms)
        places = cells.by_partition(task.id for task in tasks)
        words = {
            p: [now_ms, *(word for at in where for word in _put_words(tasks[at], lacks[at]))]
            for p, where in places.items()
        }
        puts = [Put(PutOutcome.DISK_FULL)] * len(tasks)
        for partition, found in cells.scripts("put", words, errors="return").items():
            if isinstance(found, StoreFull):
                _LOG.error("no new task is kept: %s", found)
                continue
            for at, answer in zip(places[partition], found, strict=True):
                puts[at] = _put_of(tasks[at], answer)
        return puts

    # -- tasks that run -----------------------------------------------------------------

    def claim(self, wants: Sequence[Want], now_ms: int) -> list[ClaimedTask]:
        self._open()
        return [task for want in wants for task in self._claims.take(want, now_ms)]

    def put_and_claim(
        self, tasks: Sequence[NewTask], wants: Sequence[Want], now_ms: int
    ) -> tuple[list[Put], list[list[ClaimedTask]]]:
        puts = self.put(tasks, now_ms)
        return puts, [self.claim([want], now_ms) for want in wants]

    def reclaim(self, now_ms: int) -> Reclaimed:
        with self.group():
            return self._claims.take_over(now_ms)

    def finish(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        self._open()
        return self._claims.finish(ends, now_ms)

    def retry(self, tasks: Sequence[Again], now_ms: int) -> list[bool]:
        self._open()
        return self._claims.retry(tasks, now_ms)

    # -- callers ------------------------------------------------------------------------

    def look(self, ids: Sequence[str], now_ms: int) -> list[KeptTask | None]:
        replies = self._open().of_tasks("look", ids, (), [(identifier,) for identifier in ids])
        return [KeptTask(form_of(reply), text(reply[-1])) if reply else None for reply in replies]

    def collect(self, ids: Sequence[str], now_ms: int) -> list[KeptResult | None]:
        more = [(identifier,) for identifier in ids]
        replies = self._open().of_tasks("collect", ids, (LONG_BYTES,), more)
        return [_result_of(reply) if reply else None for reply in replies]

    def body(self, identifier: str) -> bytes | None:
        for partition in self._open().by_partition([identifier]):
            name = key(partition, f"t:{identifier}")
            (found,) = self._link.run([Command(name, ("HGET", name, "body"))])
            return None if found is None else bytes(found)
        return None

    def mark_read(self, ids: Sequence[str], now_ms: int) -> list[None]:
        if self._limits.evict_on_read:
            more = [(identifier,) for identifier in ids]
            first = (now_ms + self._limits.grace_ms,)
            self._open().of_tasks("mark_read", ids, first, more)
        return [None] * len(ids)

    def cancel(self, ids: Sequence[str], now_ms: int) -> list[TaskForm | None]:
        more = [(identifier,) for identifier in ids]
        first = (now_ms, self._limits.result_ttl_ms)
        replies = self._open().of_tasks("cancel", ids, first, more)
        return [form_of(reply) if reply else None for reply in replies]

    # -- upkeep -------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> Dropped:
        self._live(now_ms)
        cells = self._open()
        late = cells.commands("ZRANGEBYSCORE", "until", "-inf", now_ms, "LIMIT", 0, _SWEPT_AT_ONCE)
        cells.forget_strays("until", late)
        ended, letters = self._expire([text(name) for of in late for name in of], now_ms)
        dropped = cells.each("drop", now_ms, _SWEPT_AT_ONCE)
        more = _SWEPT_AT_ONCE in (*map(len, late), *dropped)
        return Dropped(tuple(ended), tuple(letters), sum(dropped), more)

    def _expire(self, ids: Sequence[str], now_ms: int) -> tuple[list[str], list[tuple[str, str]]]:
        """End open tasks whose time is up: their ids, and (model, code) of the dead letters."""
        if not ids:
            return [], []
        cells, claims = self._open(), self._claims
        numbers = claims.letter_numbers(len(ids))
        first: list[Any] = [now_ms, self._limits.result_ttl_ms, *claims.letter_limits]
        for own in (True, False):
            code, error, answer = expired_answer(own=own)
            headers = msgspec.msgpack.encode(answer.headers)
            first += [code, error, answer.status, headers, answer.body]
        words = {
            p: [*first, *(word for at in where for word in
                          (ids[at], numbers.pop() * cells.number + p))]
            for p, where in cells.by_partition(ids).items()
        }  # fmt: skip
        found = [task for reply in cells.scripts("expire", words).values() for task in reply]
        letters = [(text(model), first[9]) for _, model, own in found if own != b"1"]
        return [text(identifier) for identifier, _, _ in found], letters

    def next_due_ms(self, models: Sequence[str]) -> list[int | None]:
        # What no pool has had yet may run at once.
        due = (self._open().each("due", model) for model in models)
        return [min((number(at) for at in found if at), default=None) for found in due]

    def models(self) -> set[str]:
        states = (f"{TaskState.QUEUED:d}", f"{TaskState.RUNNING:d}")
        names = (text(name) for of in self._open().commands("HKEYS", "n") for name in of)
        pairs = (name.partition(":") for name in names)
        return {model for state, colon, model in pairs if colon and state in states}

    def counts(self) -> StoreCounts:
        return counted(self._open())

    def list_tasks(self, state: str, model: str, most: int) -> list[TaskForm]:
        return newest(self._open(), state, model, most)

    # -- dead letters -------------------------------------------------------------------

    def letters(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        self._open()
        return self._letters.find(model, code, before, most, ids, whole=whole)

    def replay(self, letters: Sequence[int], now_ms: int, deadline_ms: int) -> list[str | None]:
        self._open()
        return self._letters.replay(letters, now_ms, deadline_ms)

    def drop_letters(self, letters: Sequence[int]) -> list[bool]:
        self._open()
        return self._letters.drop(letters)

    def close(self) -> None:
        try:
            self._link.run([Command(BOXES, ("ZREM", BOXES, self._owner))])
        except (StoreAway, StoreFull) as exc:
            _LOG.info("the store of tasks was left without a word: %s", exc)
        self._link.close()


def _put_words(task: NewTask, lack: PutOutcome | None) -> tuple[Any, ...]:
    """A new task as the script `put` takes it. lack: the limit that keeps it out."""
    return (
        task.id, task.model, task.rows, task.input, task.answer, task.caller, task.principal,
        task.submitted_ms, task.deadline_ms, int(task.own_deadline), task.key.hex(),
        task.fingerprint, task.holder, "" if lack is None else lack.value,
    )  # fmt: skip


def _put_of(task: NewTask, answer: Sequence[Any]) -> Put:
    """The outcome of one new task."""
    outcome = PutOutcome(text(answer[0]))
    if outcome is PutOutcome.NEW:
        form = TaskForm(task.id, TaskState.QUEUED.label, task.model, 0, task.submitted_ms)
        return Put(outcome, form, task.principal)
    if outcome is PutOutcome.KNOWN:
        return Put(outcome, form_of(answer[2]), text(answer[1]))
    return Put(outcome)


def _result_of(reply: Sequence[Any]) -> KeptResult:
    """A task with its answer, as the script `collect` gives it."""
    principal, status, headers, body, is_long, fields = reply
    form = form_of(fields)
    if form.state in (TaskState.QUEUED.label, TaskState.RUNNING.label):
        return KeptResult(form, text(principal), None)
    answer = TaskAnswer(number(status), headers_in(headers), body)
    return KeptResult(form, text(principal), answer, is_long == 1)
