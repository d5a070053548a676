"""The buckets of rows by what a client wrote into a lane: sizes, and lengths of bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.batcher.input_buckets import InputBuckets
from batchpool.batcher.lane import AdmittedLane
from batchpool.client.arena_lane_client import lane_client_of
from batchpool.core.layout.arena import Arena
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.size_buckets import most_sizes, sizes_of_bucket
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.lane import Lane
from tests.unit.lanes import other_side, segment_of
from tests.unit.specs import model

SLOTS, NOW = 16, 10**9
TEXT = Tensor("text", "bytes", max_bytes=500)
PAIR = Tensor("pair", "bytes", (2,), max_bytes=100)
WORDS = Tensor("words", "bytes", (Dim(4), 2), max_bytes=100)
SPEC = replace(
    model(TEXT, Tensor("x", "float32", (Dim(64),)), PAIR, WORDS),
    sized_by_length=("text", "pair", "words"),
)
# Sizes of x, words, and bytes of text, pair and words.
MOST = [64, 4, 500, 200, 800]


class Road:
    """A lane's client and the batcher's side. few: rows that need no arrays."""

    def __init__(self, few: int, arena: tuple[str, ...], spec: ModelSpec = SPEC) -> None:
        self.spec = spec
        layout = lane_layout(spec, SLOTS, Arena(arena, 1 << 16) if arena else None)
        self.lane = Lane(spec, segment_of(layout), layout)
        self.lane.gate.set(int(LaneGate.OPEN))
        self.client = lane_client_of(self.lane)
        self.side = AdmittedLane(3, 5, 0, other_side(self.lane), lambda: None, few=few)

    def send(self, **row: Any) -> Any:
        rows = check_rows(self.spec, {name: [value] for name, value in row.items()})
        return self.client.submit(rows, NOW, NOW + 1)

    def sizes(self) -> list[list[int]]:
        """The most sizes of the bucket of each row that came in."""
        self.client.flush()
        return [
            sizes_of_bucket(bucket, most_sizes(self.spec))
            for bucket in self.side.admit()[QueueColumn.BUCKET].tolist()
        ]


@pytest.fixture(params=[0, 8], ids=["arrays", "numbers"])
def few(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[(), ("text", "pair", "words")], ids=["slots", "arena"])
def road(request: pytest.FixtureRequest, few: int) -> Road:
    return Road(few, request.param)


def words(n: int, length: int) -> list[list[bytes]]:
    return [[b"w" * length, b"v" * length]] * n


def test_a_row_has_its_sizes_and_the_bytes_of_each_input(road: Road) -> None:
    assert most_sizes(SPEC) == MOST
    x = np.zeros(20, np.float32)
    road.send(text=b"t" * 300, x=x, pair=[b"p" * 30, b"q"], words=words(2, 40))
    road.send(text=b"", x=x[:1], pair=[b"", b""], words=words(0, 0))
    road.send(text=b"t" * 33, x=x, pair=[b"p" * 100] * 2, words=words(4, 100))
    assert road.sizes() == [
        [32, 4, 500, 32, 256],
        [16, 4, 16, 16, 16],
        [32, 4, 64, 200, 800],
    ]


def test_strings_behind_a_shorter_row_belong_to_an_earlier_one(road: Road) -> None:
    row: dict[str, Any] = {"text": b"", "x": np.zeros(1, np.float32), "pair": [b"", b""]}
    road.send(**row, words=words(4, 100))
    road.sizes()
    column = road.lane.inputs["words"]
    assert column.lengths is not None
    column.lengths[:] = 100
    column.lengths[1, 0] = 8
    road.send(**row, words=words(1, 8))
    assert road.sizes() == [[16, 4, 16, 16, 16]]


def test_a_length_above_the_maximum_counts_as_the_maximum(few: int) -> None:
    spec = replace(model(TEXT), sized_by_length=("text",))
    road = Road(few, (), spec)
    road.send(text=b"t")
    column = road.lane.inputs["text"]
    assert column.lengths is not None
    column.lengths[:] = 2**32 - 1
    assert road.sizes() == [[500]]


def test_lengths_that_are_no_sizes_make_no_bucket(few: int) -> None:
    road = Road(few, (), replace(SPEC, sized_by_length=()))
    road.send(text=b"t" * 300, x=np.zeros(20, np.float32), pair=[b"", b""], words=words(2, 40))
    assert road.sizes() == [[32, 4]]
    assert not InputBuckets(Road(few, (), model(TEXT)).lane).many
