"""A batch record as the batcher wrote it, and the check that tells if anybody has overwritten it.

A worker runs the user's native code, and a wild pointer of that code may store into the segment
that the worker shares with the batcher. So a record carries a CRC-32 of all its words that the
batcher writes. The worker compares it before it looks at a row, since the rows of an overwritten
record may be other callers'; so does a batcher that takes over, which knows the records from
nowhere else.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchpool.shm.worker_segment import WorkerSegment

U32 = npt.NDArray[np.uint32]
_HEAD = struct.Struct("<qqIIIIqqq")


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
    tickets: U32


def check_of(record: BatchRecord, freed: int) -> int:
    """The CRC of a record. freed: the token of its former use, which a wrong word there would
    otherwise make the present one again."""
    token, n, reason, attempt, tokens, due_ns, detail, cancels, tickets = record
    head = _HEAD.pack(token, freed, n, reason, attempt, tokens, due_ns, detail, cancels)
    return zlib.crc32(tickets, zlib.crc32(head))  # type: ignore[arg-type]  # a C-contiguous array


def copy_of(segment: WorkerSegment, record: int) -> BatchRecord:
    """A record as it stands, whoever wrote it; its rows are at most those that it has room for."""
    n, tokens = segment.n_of[record], segment.tokens_of[record]
    detail = segment.submit_ns_of if tokens else segment.bucket_of
    return BatchRecord(
        segment.token_of[record],
        n,
        segment.reason_of[record],
        segment.attempt_of[record],
        tokens,
        segment.due_ns_of[record],
        detail[record],
        segment.cancels_of[record],
        segment.tickets[record, :, :n].copy(),
    )


def read_record(segment: WorkerSegment, record: int) -> BatchRecord:
    """A copy of a record in use. Raises DamagedSegment where it is not what the batcher wrote."""
    if not 0 <= record < segment.layout.slots:
        raise DamagedSegment(f"an entry names record {record} of {segment.layout.slots}")
    found = copy_of(segment, record)
    if segment.check_of[record] != check_of(found, segment.freed_of[record]):
        raise DamagedSegment(f"batch record {record} was overwritten")
    return found


def write_record(segment: WorkerSegment, record: int, written: BatchRecord) -> None:
    """Write a free record but for its token, the store of which makes it the rows' own."""
    _, n, reason, attempt, tokens, due_ns, detail, cancels, tickets = written
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
    segment.check_of[record] = check_of(written, segment.freed_of[record])
