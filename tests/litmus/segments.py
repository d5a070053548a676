"""The shared segments of litmus tests: single words, rings and lanes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from batchpool.core.layout.arena import Arena, largest_run
from batchpool.core.layout.segments import Layout, lane_layout
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.segment import Segment, create, map_checked, ring_parts, word
from tests.litmus.side_control import PATIENT_S, Progress

# Single words: the words and header columns of a lane are the kinds of words that are tested.
_WORDS = lane_layout(
    ModelSpec("words", "numpy", (Tensor("x", "uint64", (4,)),), (Tensor("y", "uint8"),)), 16
)
ONES = {
    "u64 word": 2**64 - 1,
    "ring entry by index": 2**64 - 1,
    "ring entries by slice": 2**64 - 1,
    "i64 scalar": -1,
    "u32 scalar": 2**32 - 1,
    "u32 column by index": 2**32 - 1,
    "u32 column by slots": 2**32 - 1,
    "u32 column by slice": 2**32 - 1,
}


def new(layout: Layout) -> int:
    """The inheritable descriptor of a new segment."""
    fd = create(layout, sealed=True)
    os.set_inheritable(fd, True)
    return fd


def new_words() -> int:
    return new(_WORDS)


def words(fd: int) -> tuple[Segment, list[str]]:
    return map_checked(fd, _WORDS), list(ONES)


def stores(segment: Segment, *, halves: bool) -> list[Callable[[int], None]]:
    """One store of each kind, as in the package's code, of 0 or, for the argument 1, all ones."""
    cells = segment.cells()
    gate, pairs = word(_WORDS, "gate"), memoryview(segment.map).cast("I")
    columns = {name: segment.array(_WORDS.columns[name]) for name in ("state", "cancel", "flow")}
    sq, cq = segment.array(_WORDS.columns["sq"]), segment.array(_WORDS.columns["cq"])
    deadline = segment.scalars(_WORDS.columns["deadline_ns"])
    priority = segment.scalars(_WORDS.columns["priority"])
    slots = np.array([1, 5, 9], dtype=np.uint32)
    three = [np.zeros(3, dtype=np.uint64), np.full(3, 2**64 - 1, dtype=np.uint64)]

    def whole(bit: int) -> None:
        cells[gate] = ONES["u64 word"] * bit

    def in_halves(bit: int) -> None:
        pairs[2 * gate] = ONES["u32 scalar"] * bit
        pairs[2 * gate + 1] = ONES["u32 scalar"] * bit

    def entry(bit: int) -> None:
        sq[3] = ONES["ring entry by index"] * bit

    def entries(bit: int) -> None:
        cq[5:8] = three[bit]

    def scalar64(bit: int) -> None:
        deadline[7] = -bit

    def scalar32(bit: int) -> None:
        priority[3] = ONES["u32 scalar"] * bit

    def by_index(bit: int) -> None:
        columns["state"][5] = ONES["u32 scalar"] * bit

    def by_slots(bit: int) -> None:
        columns["cancel"][slots] = ONES["u32 scalar"] * bit

    def by_slice(bit: int) -> None:
        columns["flow"][5:8] = ONES["u32 scalar"] * bit

    first = in_halves if halves else whole
    return [first, entry, entries, scalar64, scalar32, by_index, by_slots, by_slice]


def loads(segment: Segment) -> dict[str, Callable[[], int]]:
    """One load of each kind, as in the package's code."""
    cells, gate = segment.cells(), word(_WORDS, "gate")
    columns = {name: segment.array(_WORDS.columns[name]) for name in ("state", "cancel", "flow")}
    sq, cq = segment.array(_WORDS.columns["sq"]), segment.array(_WORDS.columns["cq"])
    deadline = segment.scalars(_WORDS.columns["deadline_ns"])
    priority = segment.scalars(_WORDS.columns["priority"])
    return {
        "u64 word": lambda: cells[gate],
        "ring entry by index": lambda: int(sq[3:4].copy()[0]),
        "ring entries by slice": lambda: int(cq[5:8].copy()[1]),
        "i64 scalar": lambda: deadline[7],
        "u32 scalar": lambda: priority[3],
        "u32 column by index": lambda: int(columns["state"][np.array([5])][0]),
        "u32 column by slots": lambda: int(columns["cancel"][5]),
        "u32 column by slice": lambda: int(columns["flow"][6]),
    }


# Words that no ring test uses otherwise, at the same offset in every lane.
_FLAGS = {
    "writer is here": word(_WORDS, "stale"),
    "reader is here": word(_WORDS, "generation"),
    "writer is done": word(_WORDS, "refused"),
    "reader is done": word(_WORDS, "cancels"),
}


def flag(segment: Segment, what: str) -> None:
    segment.cells()[_FLAGS[what]] = 1


def is_flagged(segment: Segment, what: str) -> bool:
    return bool(segment.cells()[_FLAGS[what]])


def rendezvous(segment: Segment, me: str, other: str) -> None:
    """Wait until the other side has started too."""
    flag(segment, f"{me} is here")
    progress = Progress(PATIENT_S)
    while not is_flagged(segment, f"{other} is here"):
        progress.none()


# -- rings ----------------------------------------------------------------------------------


def ring_layout(capacity: int) -> Layout:
    tiny = Tensor("x", "uint8")
    return lane_layout(ModelSpec("ring", "numpy", (tiny,), (tiny,)), capacity)


def new_ring(capacity: int, start: int) -> int:
    """A ring both of whose counters begin at `start`."""
    layout = ring_layout(capacity)
    fd = new(layout)
    cells = map_checked(fd, layout).cells()
    for counter in ("sq_tail", "sq_head"):
        cells[word(layout, counter)] = start
    return fd


def ring(fd: int, capacity: int, me: str, other: str) -> tuple[Any, ...]:
    """The parts of the ring, after both sides have started."""
    layout = ring_layout(capacity)
    segment = map_checked(fd, layout)
    rendezvous(segment, me, other)
    return ring_parts(segment, layout, "sq")


# -- lanes ----------------------------------------------------------------------------------

TEXT_BYTES = 40


def echo_spec(size: int) -> ModelSpec:
    """The model that echoes rows of up to `size` bytes and a text, with a checksum."""
    text = Tensor("text", "bytes", (), max_bytes=TEXT_BYTES)
    x = Tensor("x", "uint8", (Dim(size),))
    crc = Tensor("crc", "uint32")
    return ModelSpec("echo", "numpy", (x, text, crc), (x, text, crc), (Tensor("first", "uint32"),))


def echo_layout(size: int, slots: int, arena_rows: int) -> Layout:
    """The layout of an echo lane; with arena_rows, x and text stand in an arena of so many of the
    largest rows."""
    spec = echo_spec(size)
    inputs = ("x", "text") if arena_rows else ()
    return lane_layout(spec, slots, Arena(inputs, arena_rows * largest_run(spec, inputs)))


def new_lane(size: int, slots: int, arena_rows: int = 0) -> int:
    return new(echo_layout(size, slots, arena_rows))
