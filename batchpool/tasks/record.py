"""Tasks as values: states and their order, ids, fingerprints, and what the store takes and gives.

Nothing here reads a clock or makes a system call; times are milliseconds of Unix time.

    queued -> running -> done | failed | cancelled
    running -> queued      tried again, after a time
    queued -> failed | cancelled

A state that has ended never becomes another one. A task whose attempts are used up has failed, and
a dead letter keeps its input.
"""

from __future__ import annotations

import enum
import hashlib
import re
from base64 import b32hexdecode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from batchpool.control.task_messages import TaskForm

TOKEN_BYTES = 16
PARTITIONS_MOST = 1 << 16
LOSSES_MOST = 20  # claims whose owner vanished, after which a task is given up
_PREFIX = "t_"
_ID_CHARACTERS = 39  # 24 bytes as base32
_TIME_BYTES, _PARTITION_BYTES = 6, 2
# Base32 with the digits 0 to v ("base32hex"), two characters at a time: Python's own takes three
# times as long. 24 bytes are 39 characters, the last of which has three bits of padding.
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
_PAIR_MASK = len(_PAIRS) - 1
_PAD_BITS = 3
_SHIFTS = range(190, -1, -10)
# The partition is the bits 48 to 63 of an id; these characters hold the bits 45 to 64.
_PARTITION_AT, _PARTITION_SHIFT = slice(len(_PREFIX) + 9, len(_PREFIX) + 13), 1
_ID = re.compile(f"{_PREFIX}[{_DIGITS}]{{{_ID_CHARACTERS}}}")
_SLICE_MS = 8
_PAST_MOST_MS, _FUTURE_MOST_MS = 60_000, 1000


class TaskState(enum.IntEnum):
    """The state of a task, as the store keeps it."""

    QUEUED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4

    @property
    def label(self) -> str:
        """The state as callers see it."""
        return self.name.lower()

    @property
    def has_ended(self) -> bool:
        return self >= TaskState.DONE


MOVES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.QUEUED: frozenset({TaskState.RUNNING, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset(
        {TaskState.QUEUED, TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED}
    ),
    TaskState.DONE: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}


def task_id(submitted_ms: int, token: bytes, partition: int = 0) -> str:
    """The id of a task: sorts by time, tells its partition, and cannot be guessed.

    token: 16 random bytes. ValueError for another length.
    """
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token has {TOKEN_BYTES} bytes, not {len(token)}")
    raw = submitted_ms.to_bytes(_TIME_BYTES, "big") + partition.to_bytes(_PARTITION_BYTES, "big")
    number = int.from_bytes(raw + token, "big") << _PAD_BITS
    pairs = [_PAIRS[number >> shift & _PAIR_MASK] for shift in _SHIFTS]
    return _PREFIX + "".join(pairs)[1:]


def submitted_of(identifier: str) -> int | None:
    """The time in an id; None for a text that is no id."""
    raw = _bytes_of(identifier)
    return None if raw is None else int.from_bytes(raw[:_TIME_BYTES], "big")


def partition_of(identifier: str) -> int | None:
    """The partition in an id; None for a text that is no id."""
    if _ID.fullmatch(identifier) is None:
        return None
    return int(identifier[_PARTITION_AT], 32) >> _PARTITION_SHIFT & PARTITIONS_MOST - 1


def partition_for(key: bytes, submitted_ms: int, seed: int) -> int:
    """The partition of a new task, which is the same one when its front end sends it again. key:
    `key_digest` of its Idempotency-Key, b"" without one: the tasks that may be the same one are in
    one partition. Those without a key go where all go that come with them, since a store pays for
    each partition that it writes to, and some milliseconds later to the next one. seed: of a pool,
    so that not all of them write to the same one."""
    if key:
        return int.from_bytes(key[-_PARTITION_BYTES:], "big")
    return (submitted_ms // _SLICE_MS + seed) % PARTITIONS_MOST


def submission_time(said_ms: int, now_ms: int) -> int:
    """When a task was submitted, by the clock of its store. said_ms: by that of its front end, the
    machine of which may be wrong: more than a minute ago, or the future, is no such time."""
    return said_ms if -_FUTURE_MOST_MS <= now_ms - said_ms <= _PAST_MOST_MS else now_ms


def _bytes_of(identifier: str) -> bytes | None:
    """The bytes that an id is made of; None for a text that is no id."""
    if _ID.fullmatch(identifier) is None:
        return None
    return b32hexdecode(identifier.removeprefix(_PREFIX).upper() + "=")


def fingerprint_of(packed_input: bytes, packed_answer: bytes) -> bytes:
    """A repeated request and the first one have this in common: 16 bytes of input and form."""
    digest = hashlib.sha256(len(packed_input).to_bytes(8, "little"))
    digest.update(packed_input)
    digest.update(packed_answer)
    return digest.digest()[:16]


def key_digest(model: str, caller: str, principal: str, key: str) -> bytes:
    """An Idempotency-Key in its scope: two callers, or two models, may use the same one."""
    parts = "\0".join((model, principal, caller if not principal else "", key))
    return hashlib.sha256(parts.encode()).digest()


class NewTask(msgspec.Struct, frozen=True, gc=False):
    """A task that is to be kept. key: of Idempotency-Key in its scope, b"" without one.
    deadline_ms: it has failed unless it is done by then. own_deadline: the caller has set it.
    origin: whose turns and share it takes, "" for those of its caller."""

    id: str
    model: str
    rows: int
    input: bytes
    answer: bytes
    caller: str
    principal: str
    submitted_ms: int
    deadline_ms: int
    own_deadline: bool = False
    key: bytes = b""
    fingerprint: bytes = b""
    origin: str = ""

    @property
    def holder(self) -> str:
        """The origin whose turns and share this task takes."""
        return self.origin or self.caller


class PutOutcome(enum.Enum):
    """NEW: the task is kept. KNOWN: it, or another one with its key, was kept before. MISMATCH: a
    task with its key has another input. FULL: the store has as many open tasks as it may.
    SHARE_FULL: its origin has half of those that may be open, and others have some too. BYTES_FULL:
    all that is kept takes as many bytes as it may. BYTES_SHARE_FULL: its origin has as many of them
    as one may have. DISK_FULL: the disk below it takes no more."""

    NEW = "new"
    KNOWN = "known"
    MISMATCH = "mismatch"
    FULL = "full"
    SHARE_FULL = "share_full"
    BYTES_FULL = "bytes_full"
    BYTES_SHARE_FULL = "bytes_share_full"
    DISK_FULL = "disk_full"


class Put(msgspec.Struct, frozen=True, gc=False):
    """The end of one `put`. task: of NEW and KNOWN."""

    outcome: PutOutcome
    task: TaskForm | None = None
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """Tasks of one model that the runner has room for. bytes: of inputs, after the first task."""

    model: str
    tasks: int
    bytes: int


class ClaimedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that runs now, since started_ms. claim: the number of its claim; an end with an older
    one is refused. attempts: those that were counted before this one."""

    id: str
    model: str
    claim: int
    attempts: int
    losses: int
    rows: int
    input: bytes
    answer: bytes
    submitted_ms: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a want. due_ms: when the first of the tasks that are left may run, 0 for at
    once; None where none is queued."""

    tasks: Sequence[ClaimedTask]
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """tasks: those whose owner had vanished. lost: those of them that were lost too often, which
    run from now on, to be ended by the caller; the others are queued again."""

    tasks: int
    lost: tuple[ClaimedTask, ...] = ()


class TaskAnswer(msgspec.Struct, frozen=True, gc=False):
    """The HTTP answer of a task that has ended."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The end of a claimed task. code, error: of one that failed. facts: of the error, for the
    dead letter. is_letter: a dead letter is to keep its input."""

    id: str
    claim: int
    state: TaskState
    answer: TaskAnswer
    counted: bool = True
    code: str = ""
    error: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    is_letter: bool = False


class Again(msgspec.Struct, frozen=True, gc=False):
    """A claimed task that is to be tried again. counted: an attempt was used up."""

    id: str
    claim: int
    due_ms: int
    counted: bool


class KeptTask(msgspec.Struct, frozen=True, gc=False):
    """A task as the store has it, and the caller whose key may see it."""

    form: TaskForm
    principal: str


class KeptResult(msgspec.Struct, frozen=True, gc=False):
    """A task with its answer; None while it is open. is_long: the body is more than a row of the
    store takes; `answer` has none, and it is read by itself."""

    form: TaskForm
    principal: str
    answer: TaskAnswer | None
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a sweep. ended: open tasks whose time was up. letters: those of them that
    became dead letters, as (model, code). results: results that were dropped. more: there is more
    to do."""

    ended: tuple[str, ...] = ()
    letters: tuple[tuple[str, str], ...] = ()
    results: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """open: tasks that have not ended. bytes: of everything that is kept. share: the part of the
    bytes that others leave which one origin may have."""

    open: int
    bytes: int
    result_ttl_ms: int
    grace_ms: int
    evict_on_read: bool
    share: float = 0.75


@dataclass(slots=True)
class StoreCounts:
    """The contents of a store. tasks: {model: {state: count}}. oldest_ms: the submission of the
    oldest open task, 0 for none."""

    tasks: dict[str, dict[str, int]]
    letters: int
    bytes: int
    oldest_ms: int
