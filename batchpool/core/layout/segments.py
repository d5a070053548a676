"""The byte layout of the shared-memory segments; every offset is computed by adding.

Segments: a lane for each client and model, a segment of batch records for each worker, the pool's
state for clients to read, and the heartbeats. The segments that only hold counts and records for
people are in core/metrics/segments.py. Little-endian, x86-64 (see shm/ring.py). VERSION changes
whenever a word moves, and two processes compare a layout's digest before they map it.

A lane of S slots (ring capacity C = the smallest power of two >= S):

    0     +--------------------------------------------------------------+
          | head: magic, version, slots, capacity, total bytes, digest   |  supervisor
    4096  +--------------------------------------------------------------+
          | words, one per 128-byte line (two cache lines: the hardware  |
          | prefetches them in pairs)                                    |
          |   sq_tail      u64  client   entries ever published          |
          |   sq_head      u64  batcher  entries ever consumed           |
          |   cq_tail      u64  batcher  completions ever published      |
          |   cq_head      u64  client   completions ever consumed       |
          |   gate         u64  batcher  a LaneGate: admission of claims |
          |   generation   u64  batcher  raised for the client to look at|
          |                              the gate and its slots again    |
          |   cancels      u64  client   cancel words ever set           |
          |   claimed      u64  client   slots claimed now               |
          |   lent         u64  client   of these, slots read in place   |
          |   refused      u64  client   claims refused by the watermark |
          |   refused_share u64 client   claims refused by a flow's share|
          |   stale        u64  batcher  stale tickets ever seen         |
          +--------------------------------------------------------------+
          | sq: u64[C]   low 32 bits slot, high 32 bits sequence         |  client
          | cq: u64[2C]  entries as in sq; twice as many, see below      |  batcher
          +--------------------------------------------------------------+
          | header columns, u32/i64 [S] each, 128-byte aligned           |
          |   state        u32  its owner, see core/layout/states.py     |
          |   sequence     u32  client   one per use of the slot         |
          |   deadline_ns  i64  client   CLOCK_MONOTONIC                 |
          |   submit_ns    i64  client   CLOCK_MONOTONIC                 |
          |   priority     u32  client   1 highest .. 255; 0 default     |
          |   flow         u64  client   caller, for fair queueing       |
          |   cancel       u32  client   the sequence to cancel          |
          |   attempt      u32  batcher  failed batches so far           |
          |   status       u32  worker while RUNNING, else batcher       |
          |   message_len  u32  as status                                |
          |   size.in      u32  client   [S, k] dynamic sizes of inputs  |
          |   size.out     u32  worker   [S, k] dynamic sizes of outputs |
          |   message      u8   as status [S, 240] UTF-8                 |
          |   stage        u32  batcher  of models with stages: a Stage  |
          |   size.feat, size.pred u32 worker  of features, predictions  |
          +--------------------------------------------------------------+
          | tensor columns, one array [S, *row shape] each, page-aligned |
          |   in.NAME, par.NAME  client; feat., pred., out.NAME  worker  |
          |   len.in.NAME, len.feat.NAME and so on  u32 [S, *row shape]: |
          |     lengths of the elements of bytes tensors                 |
          |   at.in.NAME  u64 [S] client, instead of in.NAME: where the  |
          |     row stands in the arena                                  |
          |   arena  u8  client: rows of inputs that may be large, see   |
          |     core/layout/arena.py                                     |
          +--------------------------------------------------------------+

After a batcher's takeover the client looks for DONE slots itself. It may then claim a slot again
whose completion entry is still in cq, so that between two reaps up to two entries a slot can be in
cq.

A dynamic dimension's column has space for its maximum; the size is in size.in, size.out and so on,
in the order of the tensors and of their dynamic dimensions. A bytes tensor's column is
u8 [S, *row shape, max_bytes]. In the arena a row has its own sizes, and the elements of a bytes
tensor stand one behind the other. The client has set a run of the arena aside from claim to DONE.

Every word has one writer at a time, named at the right. A worker or batcher copies each
client-written word that it needs once, since the client may change it at any time.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from batchpool.core.layout.arena import Arena, arena_for, largest_run
from batchpool.core.layout.tensor_columns import tensor_columns
from batchpool.core.tensors.spec import ModelSpec

VERSION = 9
REFUSED_LANE = 2**32 - 1
LANE_MAGIC = 0x454E414C50544142  # "BATPLANE" read as a little-endian word
PAGE = 4096
LINE = 128
WORDS_AT = PAGE
MESSAGE_BYTES = 240
RECORDS = 4  # batch records per worker: two in flight, two waiting
MODELS_MOST = 64  # model entries of a pool, including those that a reload replaced

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
    "lent": "client",
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
    "flow": ("u8", "client"),
    "cancel": ("u4", "client"),
    "attempt": ("u4", "batcher"),
    "status": ("u4", "worker or batcher"),
    "message_len": ("u4", "worker or batcher"),
}

# A worker's segment: the rings of batch records, and the worker's progress and counts.
# running: the token of its oldest batch in flight, 0 for none; progress_ns: when that became the
# oldest, or a generator's step began. launched: the token of the last batch that it began. batches,
# good, rows: batches that it finished, those without a failure (a generator's steps with tokens),
# rows of all. ready: 1 once the model is warm. sequences, kv_tokens: of a generator, how many run
# at once, and how many tokens all may have, 0 for any number; stored before `ready`.
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
    "sequences": "worker",
    "kv_tokens": "worker",
}

# The pool's state page: read-only for clients.
BOARD_WORDS: dict[str, str] = {
    "state": "supervisor",
    "stalled": "supervisor",
    "edition": "supervisor",
}

# The writers of words by the kind of segment. A kind without words has writers at its columns.
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
    """One array of a segment: dtype and shape [rows, ...] at a byte offset, and its writer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    writer: str

    @cached_property
    def nbytes(self) -> int:
        return int(self.dtype[1:]) * math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The words and columns of one segment.

    slots: rows of a lane, or records of a worker.  capacity: entries of its submission ring.
    words: byte offset by name.  digest: equal for equal layouts only.
    """

    kind: str
    slots: int
    capacity: int
    words: dict[str, int]
    columns: dict[str, Column]
    total_bytes: int
    digest: str

    @property
    def arena_bytes(self) -> int:
        """The size of its arena, 0 if it has none."""
        return self.columns["arena"].nbytes if "arena" in self.columns else 0

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
    """Adds columns one behind the other, each at the next aligned offset."""

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
    """The offsets of the words, each in a line of its own, and the offset behind the last one."""
    words = {name: WORDS_AT + i * LINE for i, name in enumerate(names)}
    return words, WORDS_AT + len(names) * LINE


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (n >= 1)."""
    return 1 << (n - 1).bit_length()


def lane_layout(spec: ModelSpec, slots: int, arena: Arena | None = None) -> Layout:
    """The layout of one lane of `slots` slots (1 to 2**31) for a model's tensors.

    arena: by default as `arena_for` chooses it.
    """
    assert 1 <= slots < 2**31, slots
    arena = arena_for(spec, slots) if arena is None else arena
    assert arena.nbytes >= largest_run(spec, arena.inputs), "a row has no room in the arena"
    capacity = power_of_two(slots)
    words, at = words_at(LANE_WORDS)
    adder = Adder(at)
    adder.add("sq", "u8", (capacity,), "client")
    adder.add("cq", "u8", (2 * capacity,), "batcher")
    for name, (dtype, writer) in HEADER_COLUMNS.items():
        adder.add(name, dtype, (slots,), writer)
    between = {"feat": spec.features, "pred": spec.predictions}
    roads = {"in": spec.inputs, **between, "out": spec.outputs}
    sizes = {road: sum(len(t.dynamic) for t in tensors) for road, tensors in roads.items()}
    adder.add("size.in", "u4", (slots, sizes["in"]), "client")
    adder.add("size.out", "u4", (slots, sizes["out"]), "worker")
    adder.add("message", "u1", (slots, MESSAGE_BYTES), "worker or batcher")
    if any(between.values()):
        adder.add("stage", "u4", (slots,), "batcher")
    for road in filter(between.get, between):
        adder.add(f"size.{road}", "u4", (slots, sizes[road]), "worker")
    for road, tensors in {"par": spec.parameters, **roads}.items():
        writer = "client" if road in ("par", "in") else "worker"
        large = arena.inputs if road == "in" else ()
        for column in tensor_columns(slots, road, tensors, large):
            align = PAGE if column.is_paged else LINE
            adder.add(column.name, column.dtype, column.shape, writer, align)
    if arena.nbytes:
        adder.add("arena", "u1", (arena.nbytes,), "client", PAGE)
    return finish("lane", slots, capacity, words, adder, _facts(spec))


def worker_layout_of(spec: ModelSpec, max_batch: int, max_lanes: int) -> Layout:
    """The layout of the segment of a model's worker. Each running sequence of a generator is a
    batch record of one row, so that its worker has at least max_batch records."""
    if spec.generates:
        return worker_layout(1, max_lanes, power_of_two(max_batch))
    return worker_layout(max_batch, max_lanes)


def worker_layout(max_batch: int, max_lanes: int, records: int = RECORDS) -> Layout:
    """The layout of one worker's segment: batch records (a power of two) of up to max_batch rows.

    `token` names one use of a record. The batcher stores it when the record's rows are written;
    the worker copies it into `finished` when the outputs are written; the batcher copies it into
    `freed` when the completions are written. A record is free where token == freed. `due_ns`: the
    earliest deadline of its rows. `bucket`: the size bucket of its rows as the batcher read their
    sizes, 0 for any. `cancels`: the sum of its lanes' `cancels` as the batcher last read them.
    `expired`, `cancelled`: rows that were over when the worker came to them, which the model did
    not get. `refused`: rows that the model refused. `lanes`: by lane number, the serial of the lane
    that the worker has mapped, REFUSED_LANE if it could not map it, else 0 or an earlier serial. Of
    a generator's row, `tokens`: reserved for it, its prompt among them; `submit_ns`: as the batcher
    has bounded it; `made`: its tokens in this use of the record, a count that no client can write.
    `tickets`: lanes, slots and sequences. `check`: its checksum, see shm/batch_record.py.
    """
    words, at = words_at(WORKER_WORDS)
    adder = Adder(at)
    # Twice the records: one may be used again before its ring's consumer has passed its last entry.
    adder.add("sq", "u8", (2 * records,), "batcher")
    adder.add("cq", "u8", (2 * records,), "worker")
    for names, dtype, writer in (
        (("token", "freed"), "u8", "batcher"),
        (("finished",), "u8", "worker"),
        (("n", "reason", "attempt", "tokens", "check"), "u4", "batcher"),
        (("due_ns", "bucket", "cancels"), "i8", "batcher"),
        (("outcome", "refused", "expired", "cancelled", "extents"), "u4", "worker"),
        (("start_ns", "end_ns"), "i8", "worker"),
    ):
        for name in names:
            adder.add(name, dtype, (records,), writer)
    adder.add("tickets", "u4", (records, 3, max_batch), "batcher")
    adder.add("lanes", "u4", (max_lanes,), "worker")
    for name, dtype, writer in (("submit_ns", "i8", "batcher"), ("made", "u4", "worker")):
        adder.add(name, dtype, (records,), writer)
    return finish("worker", records, records, words, adder)


def state_page_layout() -> Layout:
    """The layout of the pool's state page. serving[model]: warm workers. accepting[model]: 1 while
    the model takes requests; 0 means not ready.

    stalled: 1 while the batcher makes no progress.  edition: raised when a reload changes facts
    that clients have been told of the pool.
    """
    words, at = words_at(BOARD_WORDS)
    adder = Adder(at)
    adder.add("serving", "u4", (MODELS_MOST,), "supervisor")
    adder.add("accepting", "u4", (MODELS_MOST,), "supervisor")
    return finish("board", MODELS_MOST, 1, words, adder)


def heartbeats_layout(processes: int) -> Layout:
    """The layout of the heartbeats: when each of the watched processes last made progress.

    progress_ns[i]: CLOCK_MONOTONIC, 0 before the first stamp. Word 0 is the batcher's, word
    1 + i that of front end i; a process that takes another's place takes its word.
    """
    assert processes >= 1, processes
    words, at = words_at({})
    adder = Adder(at)
    adder.add("progress_ns", "i8", (processes,), "the post's process")
    return finish("pulse", processes, 1, words, adder)


def _facts(spec: ModelSpec) -> list[str]:
    """Facts for the digest in which two lanes with equal columns may still differ."""
    kind_of_model = ["generates"] if spec.generates else []
    return kind_of_model + [
        f"{kind} {tensor.name} {tensor.dtype} {tensor.describe_slot()}"
        for kind in ("inputs", "outputs", "parameters", "features", "predictions")
        for tensor in getattr(spec, kind)
    ]


def finish(
    kind: str,
    slots: int,
    capacity: int,
    words: dict[str, int],
    adder: Adder,
    more_facts: Sequence[str] = (),
) -> Layout:
    """The checked layout of these words and columns. more_facts: further text for the digest."""
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
    """Assert the invariants of every layout: alignment, no overlap, everything inside."""
    ends = [(at, at + 8, name) for name, at in layout.words.items()]
    for c in layout.columns.values():
        assert c.offset % int(c.dtype[1:]) == 0, f"{c.name} is not aligned"
        ends.append((c.offset, c.offset + c.nbytes, c.name))
    ends.sort()
    assert ends[0][0] >= PAGE, "the head page belongs to the supervisor"
    for (_, end, name), (start, _, following) in itertools.pairwise(ends):
        assert end <= start, f"{name} overlaps {following}"
    assert ends[-1][1] <= layout.total_bytes
    lines = [at // LINE for at in layout.words.values()]
    assert len(set(lines)) == len(lines), "two words share a line"
    assert layout.capacity & (layout.capacity - 1) == 0


assert LINE % 64 == PAGE % LINE == 0
assert len(HEAD_FIELDS) * 8 <= PAGE
assert RECORDS & (RECORDS - 1) == 0, "records are ring entries too"
