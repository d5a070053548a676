"""A batch record as the batcher wrote it, and the check that tells if anybody has overwritten it.

A worker runs the user's native code, and a wild pointer of that code may store into the segment
that the worker shares with the batcher. So a record carries a checksum of all its words that the
batcher writes. The worker compares it before it looks at a row, since the rows of an overwritten
record may be other callers'; so does a batcher that takes over, which knows the records from
nowhere else.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchpool.shm.worker_segment import WorkerSegment

I64 = npt.NDArray[np.int64]


class DamagedSegment(Exception):
    """A worker's segment holds what no correct process of the pool writes; the text says what."""


class BatchRecord(NamedTuple):
    """A copy of a record. tickets: lanes, slots and sequences of its rows, [3, n]. The other words
    as in core/layout/segments.py:worker_layout; detail: `submit_ns` of a generator's row, whose
    `tokens` are not 0, else `bucket`."""

    token: int
    n: int
    reason: int
    attempt: int
    tokens: int
    due_ns: int
    detail: int
    cancels: int
    tickets: I64


def write_record(
    segment: WorkerSegment,
    record: int,
    tickets: I64,
    token: int,
    reason: int,
    attempt: int,
    tokens: int,
    due_ns: int,
    detail: int,
    cancels: int,
) -> None:
    """Write a free record but for its token, the store of which makes it the rows' own."""
    n = tickets.shape[1]
    segment.n_of[record] = n
    segment.reason_of[record] = reason
    segment.attempt_of[record] = attempt
    segment.due_ns_of[record] = due_ns
    segment.cancels_of[record] = cancels
    if tokens:
        segment.tokens_of[record] = tokens
        segment.submit_ns_of[record] = detail
    else:
        segment.bucket_of[record] = detail
    segment.tickets[record, :, :n] = tickets
    head = token, segment.freed_of[record], n, reason, attempt, tokens, due_ns, detail, cancels
    segment.check_of[record] = _check(head, tickets)


def read_record(segment: WorkerSegment, record: int) -> BatchRecord:
    """A copy of a record in use. Raises DamagedSegment where it is not what the batcher wrote."""
    if not 0 <= record < segment.layout.slots:
        raise DamagedSegment(f"an entry names record {record} of {segment.layout.slots}")
    token, n, reason = segment.token_of[record], segment.n_of[record], segment.reason_of[record]
    attempt, tokens = segment.attempt_of[record], segment.tokens_of[record]
    due_ns, cancels = segment.due_ns_of[record], segment.cancels_of[record]
    detail = (segment.submit_ns_of if tokens else segment.bucket_of)[record]
    tickets = segment.tickets[record, :, :n].astype(np.int64)  # as many as there is room for
    head = token, segment.freed_of[record], n, reason, attempt, tokens, due_ns, detail, cancels
    if segment.check_of[record] != _check(head, tickets):
        raise DamagedSegment(f"batch record {record} was overwritten")
    return BatchRecord(token, n, reason, attempt, tokens, due_ns, detail, cancels, tickets)


def _check(head: tuple[int, ...], tickets: I64) -> int:
    """The checksum of a record.

    head: its words, among them the token of its former use, which a wrong word there would
    otherwise make the present one again. The hash of whole numbers is the same in all processes of
    a pool, which run the same Python. Adler-32 reads no table, which each batch would bring into
    the cache.
    """
    return zlib.adler32(tickets.tobytes(), hash(head) & 0xFFFFFFFF)
