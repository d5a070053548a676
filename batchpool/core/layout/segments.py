"""The byte layout of the shared-memory segments, every offset computed by adding.

Purpose: one client's private road to one model (a lane), one worker's batch records, the
pool's small read-only state page, and its heartbeats; what only counts and tells is in
core/metrics/segments.py.
Little-endian, x86-64 (see shm/ring.py). VERSION changes whenever a word moves; two processes
agree on a layout's digest before they map it.

A lane of S slots (ring capacity C = the smallest power of two >= S):

    0     +--------------------------------------------------------------+
          | head: magic, version, slots, capacity, total bytes, digest   |  supervisor
    4096  +--------------------------------------------------------------+
          | words, one per 128-byte line (two cache lines: the hardware  |
          | prefetches them in pairs)                                    |
          |   sq_tail      u64  client   entries ever published          |
          |   sq_head      u64  batcher  entries ever handled            |
          |   cq_tail      u64  batcher  completions ever published      |
          |   cq_head      u64  client   completions ever handled        |
          |   gate         u64  batcher  Gate: may the client claim      |
          |   generation   u64  batcher  raised by each batcher takeover |
          |   cancels      u64  client   cancel words ever set           |
          |   claimed      u64  client   slots claimed now               |
          |   refused      u64  client   claims refused for want of room |
          |   refused_share u64 client   claims refused for the flow's   |
          |                              share                           |
          |   stale        u64  batcher  stale tickets ever seen         |
          +--------------------------------------------------------------+
          | sq: u64[C]   low 32 bits slot, high 32 bits sequence         |  client
          | cq: u64[2C]  the same; twice as many, see below              |  batcher
          +--------------------------------------------------------------+
          | header columns, u32/i64 [S] each, 128-byte aligned           |
          |   state        u32  the state's owner (core/layout/states.py)    |
          |   sequence     u32  client   one per use of the slot         |
          |   deadline_ns  i64  client   CLOCK_MONOTONIC                 |
          |   submit_ns    i64  client   CLOCK_MONOTONIC                 |
          |   priority     u32  client   1 highest .. 255; 0 default     |
          |   flow         u32  client   who must be fair to whom        |
          |   cancel       u32  client   the sequence to cancel          |
          |   attempt      u32  batcher  failed batches so far           |
          |   status       u32  worker while RUNNING, else batcher       |
          |   size.in      u32  client   [S, k] dynamic sizes of inputs  |
          |   size.out     u32  worker   [S, k] dynamic sizes of outputs |
          |   message_len  u32  as status                                |
          |   message      u8   as status [S, 240] UTF-8                 |
          +--------------------------------------------------------------+
          | tensor columns, one array [S, *row shape] each, page-aligned |
          |   in.NAME      client; out.NAME  worker; par.NAME  client    |
          |   len.in.NAME  u32 [S, *row shape]: lengths of bytes elements|
          +--------------------------------------------------------------+

After a batcher's takeover the client looks for DONE slots by itself. It may then give out a slot
again whose completion entry is still on its way, so that between two reaps up to two entries a
slot can stand in cq.

A dynamic dimension's column has room for its maximum; the size stands in size.in/size.out,
in the order of the tensors and their dynamic dimensions. A bytes tensor's column is
u8 [S, *row shape, max_bytes].

One writer at a time for every word: the names at the right. What a worker or batcher needs
of a client-written word it copies once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from batchpool.core.tensors.spec import ModelSpec, Tensor

VERSION = 3
LANE_MAGIC = 0x454E414C50544142  # "BATPLANE" read as a little-endian word
PAGE = 4096
LINE = 128
WORDS_AT = PAGE
MESSAGE_BYTES = 240
RECORDS = 4  # batch records per worker: two in flight, two waiting
MODELS_MOST = 64  # entries of a pool, those of models that a reload replaced included

HEAD_FIELDS = ("magic", "version", "slots", "capacity", "total_bytes", "digest_0", "digest_1")

LANE_WORDS: dict[str, str] = {
    "sq_tail": "client",
    "sq_head": "batcher",
    "cq_tail": "batcher",
    "cq_head": "client",
    "gate": "batcher",
    "generation": "batcher",
    "cancels": "client",
    "claimed": "client",
    "refused": "client",
    "refused_share": "client",
    "stale": "batcher",
}

HEADER_COLUMNS: dict[str, tuple[str, str]] = {
    "state": ("u4", "owner of the state"),
    "sequence": ("u4", "client"),
    "deadline_ns": ("i8", "client"),
    "submit_ns": ("i8", "client"),
    "priority": ("u4", "client"),
    "flow": ("u4", "client"),
    "cancel": ("u4", "client"),
    "attempt": ("u4", "batcher"),
    "status": ("u4", "worker or batcher"),
    "message_len": ("u4", "worker or batcher"),
}

# A worker's segment: the queue pair of batch records, and what the worker tells of itself.
WORKER_WORDS: dict[str, str] = {
    "sq_tail": "batcher",
    "sq_head": "worker",
    "cq_tail": "worker",
    "cq_head": "batcher",
    "progress_ns": "worker",
    "running": "worker",
    "launched": "worker",
    "batches": "worker",
    "good": "worker",
    "rows": "worker",
    "ready": "worker",
}

# The pool's state page: read-only for clients.
BOARD_WORDS: dict[str, str] = {
    "state": "supervisor",
    "stalled": "supervisor",
    "edition": "supervisor",
}

# Who writes to these stands with their columns; they have no words.
_WRITERS: dict[str, dict[str, str]] = {
    "lane": LANE_WORDS,
    "worker": WORKER_WORDS,
    "board": BOARD_WORDS,
    "pulse": {},
    "meters": {},
    "recorder": {},
}


@dataclass(frozen=True)
class Column:
    """One array of a segment: [rows, *shape] of dtype at `offset`; `writer` may store."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    writer: str

    @cached_property
    def nbytes(self) -> int:
        total = int(self.dtype[1:])
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True)
class Layout:
    """Words and columns of one segment. slots: rows of a lane, or records of a worker."""

    kind: str
    slots: int
    capacity: int
    words: dict[str, int]
    columns: dict[str, Column]
    total_bytes: int
    digest: str

    def drawing(self) -> str:
        """The layout as text: every word and column with offset, bytes, shape and writer."""
        writers = _WRITERS[self.kind]
        lines = [
            f"{self.kind}: {self.slots} slots, {self.total_bytes} bytes,"
            f" version {VERSION}, digest {self.digest}",
            f"{'offset':>12} {'bytes':>12}  {'name':<24} {'type':<24} writer",
        ]
        for name, offset in self.words.items():
            lines.append(f"{offset:>12} {8:>12}  {name:<24} {'u8 word':<24} {writers[name]}")
        for c in self.columns.values():
            kind = f"{c.dtype}{list(c.shape)}"
            lines.append(f"{c.offset:>12} {c.nbytes:>12}  {c.name:<24} {kind:<24} {c.writer}")
        return "\n".join(lines)


class Adder:
    """Places columns one behind the other."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.columns: dict[str, Column] = {}

    def add(
        self, name: str, dtype: str, shape: tuple[int, ...], writer: str, align: int = LINE
    ) -> None:
        assert name not in self.columns, name
        self.at = -(-self.at // align) * align
        self.columns[name] = column = Column(name, dtype, shape, self.at, writer)
        self.at += column.nbytes


def words_at(names: dict[str, str]) -> tuple[dict[str, int], int]:
    words = {name: WORDS_AT + i * LINE for i, name in enumerate(names)}
    return words, WORDS_AT + len(names) * LINE


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (n >= 1)."""
    return 1 << (n - 1).bit_length()


def size_columns(tensors: tuple[Tensor, ...]) -> dict[str, list[tuple[int, int]]]:
    """Where a tensor's dynamic sizes stand: {name: [(size column, row dimension), ...]}."""
    places: dict[str, list[tuple[int, int]]] = {}
    k = 0
    for tensor in tensors:
        places[tensor.name] = []
        for dim in tensor.dynamic:
            places[tensor.name].append((k, dim))
            k += 1
    return places


def _add_tensors(
    adder: Adder, slots: int, road: str, writer: str, tensors: tuple[Tensor, ...]
) -> None:
    for tensor in tensors:
        shape = (slots, *tensor.max_shape)
        name = f"{road}.{tensor.name}"
        if tensor.max_bytes is not None:
            adder.add(f"len.{name}", "u4", shape, writer)
            adder.add(name, "u1", (*shape, tensor.max_bytes), writer, PAGE)
        else:
            dtype = f"{tensor.np_dtype.kind}{tensor.np_dtype.itemsize}"
            adder.add(name, dtype, shape, writer, PAGE if tensor.shape else LINE)


def lane_layout(spec: ModelSpec, slots: int) -> Layout:
    """The layout of one lane of `slots` slots (1 to 2**31) for a model's tensors."""
    assert 1 <= slots < 2**31, slots
    capacity = power_of_two(slots)
    words, at = words_at(LANE_WORDS)
    adder = Adder(at)
    adder.add("sq", "u8", (capacity,), "client")
    adder.add("cq", "u8", (2 * capacity,), "batcher")
    for name, (dtype, writer) in HEADER_COLUMNS.items():
        adder.add(name, dtype, (slots,), writer)
    for road, writer, tensors in (("in", "client", spec.inputs), ("out", "worker", spec.outputs)):
        sizes = sum(len(t.dynamic) for t in tensors)
        adder.add(f"size.{road}", "u4", (slots, sizes), writer)
    adder.add("message", "u1", (slots, MESSAGE_BYTES), "worker or batcher")
    _add_tensors(adder, slots, "par", "client", spec.parameters)
    _add_tensors(adder, slots, "in", "client", spec.inputs)
    _add_tensors(adder, slots, "out", "worker", spec.outputs)
    return finish("lane", slots, capacity, words, adder, _facts(spec))


def worker_layout(max_batch: int, max_lanes: int) -> Layout:
    """The layout of one worker's segment: RECORDS batch records of up to max_batch rows.

    `token` names one use of a record: the batcher stores it when the record's rows stand,
    the worker stores it into `finished` when the outputs stand, the batcher stores it into
    `freed` when the completions stand. token == freed: the record is free.
    """
    words, at = words_at(WORKER_WORDS)
    adder = Adder(at)
    # Twice the records: the other side may be told that a record is free, and use it again, before
    # its old entry was moved past.
    adder.add("sq", "u8", (2 * RECORDS,), "batcher")
    adder.add("cq", "u8", (2 * RECORDS,), "worker")
    for name, dtype, writer in (
        ("token", "u8", "batcher"),
        ("freed", "u8", "batcher"),
        ("finished", "u8", "worker"),
        ("n", "u4", "batcher"),
        ("reason", "u4", "batcher"),
        ("attempt", "u4", "batcher"),
        ("outcome", "u4", "worker"),
        ("extents", "u4", "worker"),
        ("start_ns", "i8", "worker"),
        ("end_ns", "i8", "worker"),
    ):
        adder.add(name, dtype, (RECORDS,), writer)
    for name in ("lane", "slot", "sequence"):
        adder.add(f"rows.{name}", "u4", (RECORDS, max_batch), "batcher")
    adder.add("lanes", "u4", (max_lanes,), "worker")
    return finish("worker", RECORDS, RECORDS, words, adder)


def state_page_layout() -> Layout:
    """The layout of the pool's state page. serving[model]: warm workers; 0 means not ready.

    stalled: 1 while the batcher makes no progress. edition: raised when a reload changes what
    clients know of the pool.
    """
    words, at = words_at(BOARD_WORDS)
    adder = Adder(at)
    adder.add("serving", "u4", (MODELS_MOST,), "supervisor")
    return finish("board", MODELS_MOST, 1, words, adder)


def heartbeats_layout(posts: int) -> Layout:
    """The layout of the heartbeats: when each of the watched processes last made progress.

    progress_ns[post]: CLOCK_MONOTONIC, 0 before the first stamp. Post 0 is the batcher's, post
    1 + i that of front end i; a process that takes another's place takes its post.
    """
    assert posts >= 1, posts
    words, at = words_at({})
    adder = Adder(at)
    adder.add("progress_ns", "i8", (posts,), "the post's process")
    return finish("pulse", posts, 1, words, adder)


def _facts(spec: ModelSpec) -> list[str]:
    """What two lanes must have in common although their columns may look alike."""
    return [
        f"{road} {tensor.name} {tensor.dtype} {tensor.describe_shape()}"
        for road in ("inputs", "outputs", "parameters")
        for tensor in getattr(spec, road)
    ]


def finish(
    kind: str,
    slots: int,
    capacity: int,
    words: dict[str, int],
    adder: Adder,
    more_facts: Sequence[str] = (),
) -> Layout:
    total = -(-adder.at // PAGE) * PAGE
    facts = [f"{VERSION} {kind} {slots} {capacity} {total}"]
    facts += [f"{name} {at}" for name, at in words.items()]
    facts += [f"{c.name} {c.dtype} {c.shape} {c.offset}" for c in adder.columns.values()]
    facts += more_facts
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    layout = Layout(kind, slots, capacity, words, adder.columns, total, digest)
    check(layout)
    return layout


def check(layout: Layout) -> None:
    """Assert what every layout must keep: alignment, no overlap, all inside."""
    ends = [(at, at + 8, name) for name, at in layout.words.items()]
    for c in layout.columns.values():
        assert c.offset % int(c.dtype[1:]) == 0, f"{c.name} is not aligned"
        ends.append((c.offset, c.offset + c.nbytes, c.name))
    ends.sort()
    assert ends[0][0] >= PAGE, "the head page is the supervisor's alone"
    for (_, end, name), (start, _, following) in itertools.pairwise(ends):
        assert end <= start, f"{name} overlaps {following}"
    assert ends[-1][1] <= layout.total_bytes
    lines = [at // LINE for at in layout.words.values()]
    assert len(set(lines)) == len(lines), "two words share a line"
    assert layout.capacity & (layout.capacity - 1) == 0


assert LINE % 64 == 0
assert PAGE % LINE == 0
assert len(HEAD_FIELDS) * 8 <= PAGE
assert RECORDS & (RECORDS - 1) == 0, "records are ring entries too"
