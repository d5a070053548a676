"""Checks of a worker's segment, by which the batcher finds that somebody has overwritten it.

A worker runs the user's native code, and a wild pointer of that code may store any value into any
word of the segment, those that only the batcher writes among them. So the batcher

- keeps what it wrote in its own memory, and reads it back only when it takes over;
- copies each word of the worker's once, and checks the copy before it acts on it;
- holds a worker whose words cannot be for broken: nothing that its segment says counts any more.

Each function returns what was found, in words for people; "" where the segment is sound.
"""

from __future__ import annotations

from batchpool.core.layout.states import BatchOutcome
from batchpool.shm.batch_record import DamagedSegment, read_record
from batchpool.shm.ring import DamagedRing
from batchpool.shm.segment import word
from batchpool.shm.worker_segment import WorkerSegment

HOUR_NS = 3_600_000_000_000
LARGEST = 1 << 62  # of tokens and of times: what is added to them stays inside 64 bits
_LOW_HALF = 0xFFFFFFFF
_SKIPPED = 1 << 20  # tokens that batchers may have died with before they published them
_OK, _RETURNED = int(BatchOutcome.OK), int(BatchOutcome.RETURNED)
_LAST_OUTCOME = max(map(int, BatchOutcome))


# The words with which a worker ends a batch, copied once; see core/layout/segments.py: outcome,
# refused, expired, cancelled, extents, start_ns, end_ns. A plain tuple, made for every batch.
BatchEnd = tuple[int, int, int, int, int, int, int]


def end_damage(end: BatchEnd, size: int, most: int, generates: bool, now_ns: int) -> str:
    """The damage in the end of a batch of `size` rows, of at most `most`. now_ns: about now, 0 for
    unknown."""
    outcome, refused, expired, cancelled, extents, start_ns, end_ns = end
    latest_ns = now_ns + HOUR_NS if now_ns else LARGEST
    if not (0 <= end_ns <= latest_ns and 0 <= start_ns <= latest_ns):
        return f"a batch began at {start_ns} ns and ended at {end_ns} ns"
    if refused + expired + cancelled > size or extents > most:
        counts = f"{refused} refused, {expired} late, {cancelled} cancelled, {extents} extents"
        return f"a batch of {size} rows ended with {counts}"
    if outcome == _OK or (1 < outcome <= _LAST_OUTCOME and (generates or outcome != _RETURNED)):
        return ""
    return f"a batch ended with the outcome {outcome}"


def attached_damage(segment: WorkerSegment) -> str:
    """The damage in a segment that the batcher has just mapped, at whose other end the worker may
    be at work, or whose worker has ended: nothing here depends on how far it is."""
    return _counters_damage(segment) or _records_damage(segment) or _published_damage(segment)


def _counters_damage(segment: WorkerSegment) -> str:
    cells, layout = segment.memory.cells(), segment.layout
    for ring in ("sq", "cq"):
        # The head first: the worker may move either counter meanwhile, forwards.
        head, tail = cells[word(layout, f"{ring}_head")], cells[word(layout, f"{ring}_tail")]
        if not 0 <= tail - head <= 2 * layout.slots or tail >= LARGEST:
            return f"ring counters disagree: {ring} has the tail {tail} and the head {head}"
    return ""


def _records_damage(segment: WorkerSegment) -> str:
    tokens, freed = segment.token[:].tolist(), segment.freed[:].tolist()
    last, ended, launched = max(tokens), int(segment.finished[:].max()), segment.launched.get()
    if last >= LARGEST or not ended <= launched <= last:
        return f"batch {launched} was launched, of {ended} to {last}"
    published = segment.memory.cells()[word(segment.layout, "sq_tail")]
    if published > last:
        return f"{published} batches were published, of {last}"
    for record, token in enumerate(tokens):
        if freed[record] > token:
            return f"batch {freed[record]} was freed in record {record}, whose batch is {token}"
        if freed[record] == token:
            continue
        try:
            found = read_record(segment, record)
        except DamagedSegment as exc:
            return str(exc)
        if found.n > segment.tickets.shape[2]:
            return f"batch record {record} has {found.n} rows"
    in_use = [token for record, token in enumerate(tokens) if freed[record] != token]
    return "two records have the same batch" if len(set(in_use)) < len(in_use) else ""


def _published_damage(segment: WorkerSegment) -> str:
    """Damage of the submission ring: of a batch whose entry is lost it would look as if the worker
    had never got it, and its rows would run again beside it."""
    tokens = segment.token[:].tolist()
    last = max(tokens)
    try:
        pending = segment.sq_consumer().peek().tolist()
    except DamagedRing as exc:  # the counters were good just before
        return str(exc)
    before = -1
    for entry in pending:
        record, behind = entry & _LOW_HALF, (last - (entry >> 32)) & _LOW_HALF
        age = -1 if record >= len(tokens) else (tokens[record] - (entry >> 32)) & _LOW_HALF
        if record >= len(tokens) or age > _SKIPPED or behind > _SKIPPED:
            return f"an entry of the submission ring names batch {entry >> 32} of record {record}"
        if before >= 0 and behind >= before:
            return "the entries of the submission ring are out of order"
        before = behind
    return ""


def freed_entries(segment: WorkerSegment) -> set[int]:
    """The completion entries that a former batcher has handled; it may have died before it said so,
    and the worker may still be about to push them."""
    freed = segment.freed[:].tolist()
    return {record | (token & _LOW_HALF) << 32 for record, token in enumerate(freed)}
