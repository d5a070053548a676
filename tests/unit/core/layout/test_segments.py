"""The byte layout: what every layout keeps, what changes its digest, and one drawn in full."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.layout.segments import (
    BOARD_WORDS,
    LANE_WORDS,
    LINE,
    PAGE,
    VERSION,
    WORKER_WORDS,
    Column,
    Layout,
    check,
    heartbeats_layout,
    lane_layout,
    power_of_two,
    state_page_layout,
    worker_layout,
)
from batchpool.core.layout.tensor_columns import size_columns
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.specs import MIXED, model, specs

GOLDEN_VERSION = 9
GOLDEN_DIGEST = "20457cb484e0c2d96777a1ac20eae147"
GOLDEN_DRAWING = """
lane: 6 slots, 36864 bytes, version 9, digest 20457cb484e0c2d96777a1ac20eae147
      offset        bytes  name                     type                     writer
        4096            8  sq_tail                  u8 word                  client
        4224            8  sq_head                  u8 word                  batcher
        4352            8  cq_tail                  u8 word                  batcher
        4480            8  cq_head                  u8 word                  client
        4608            8  gate                     u8 word                  batcher
        4736            8  generation               u8 word                  batcher
        4864            8  cancels                  u8 word                  client
        4992            8  claimed                  u8 word                  client
        5120            8  lent                     u8 word                  client
        5248            8  refused                  u8 word                  client
        5376            8  refused_share            u8 word                  client
        5504            8  stale                    u8 word                  batcher
        5632           64  sq                       u8[8]                    client
        5760          128  cq                       u8[16]                   batcher
        5888           24  state                    u4[6]                    owner of the state
        6016           24  sequence                 u4[6]                    client
        6144           48  deadline_ns              i8[6]                    client
        6272           48  submit_ns                i8[6]                    client
        6400           24  priority                 u4[6]                    client
        6528           48  flow                     u8[6]                    client
        6656           24  cancel                   u4[6]                    client
        6784           24  attempt                  u4[6]                    batcher
        6912           24  status                   u4[6]                    worker or batcher
        7040           24  message_len              u4[6]                    worker or batcher
        7168           24  size.in                  u4[6, 1]                 client
        7296           72  size.out                 u4[6, 3]                 worker
        7424         1440  message                  u1[6, 240]               worker or batcher
        8960           48  par.top_k                i8[6]                    client
        9088           24  par.scale                f4[6]                    client
       12288          144  in.x                     f4[6, 2, 3]              client
       16384          240  in.ids                   i8[6, 5]                 client
       16640           24  len.in.text              u4[6]                    client
       20480           54  in.text                  u1[6, 9]                 client
       24576           96  out.y                    f8[6, 2]                 worker
       28672          144  out.grid                 u1[6, 3, 2, 4]           worker
       28928           72  len.out.words            u4[6, 3]                 worker
       32768           72  out.words                u1[6, 3, 4]              worker
"""


def test_the_bytes_of_a_lane_do_not_move_without_a_new_version() -> None:
    """Processes of two ages compare digests. If this fails, raise VERSION and draw it anew."""
    layout = lane_layout(MIXED, 6)
    assert layout.drawing() == GOLDEN_DRAWING.strip("\n")
    assert (VERSION, layout.digest) == (GOLDEN_VERSION, GOLDEN_DIGEST)


def intervals(layout: Layout) -> list[tuple[int, int]]:
    words = [(at, at + 8) for at in layout.words.values()]
    columns = [(c.offset, c.offset + c.nbytes) for c in layout.columns.values() if c.nbytes]
    return sorted(words + columns)


@settings(max_examples=60, deadline=None)
@given(specs(), st.integers(1, 70))
def test_every_lane_keeps_the_rules(spec: ModelSpec, slots: int) -> None:
    layout = lane_layout(spec, slots)
    check(layout)
    places = intervals(layout)
    assert places[0][0] >= PAGE
    assert places[-1][1] <= layout.total_bytes
    assert layout.total_bytes % PAGE == 0
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert layout.capacity == power_of_two(slots)
    assert slots <= layout.capacity < 2 * slots
    assert layout.words.keys() == LANE_WORDS.keys()
    for column in layout.columns.values():
        assert column.offset % LINE == 0
        rings = {"sq": layout.capacity, "cq": 2 * layout.capacity}
        assert column.shape[0] == rings.get(column.name, slots)
    for road, declared in (("in", spec.inputs), ("out", spec.outputs)):
        for tensor in declared:
            column = layout.columns[f"{road}.{tensor.name}"]
            most = (*tensor.max_shape, *([tensor.max_bytes] if tensor.max_bytes else []))
            assert column.shape == (slots, *most)
            assert column.nbytes == slots * tensor.row_bytes
            if tensor.shape or tensor.is_bytes:
                assert column.offset % PAGE == 0, "a tensor column can be registered with a GPU"
            if tensor.is_bytes:
                assert layout.columns[f"len.{road}.{tensor.name}"].shape == (
                    slots,
                    *tensor.max_shape,
                )
        dynamic = sum(len(t.dynamic) for t in declared)
        assert layout.columns[f"size.{road}"].shape == (slots, dynamic)


@settings(max_examples=30, deadline=None)
@given(specs(), st.integers(1, 70))
def test_the_same_model_has_the_same_layout(spec: ModelSpec, slots: int) -> None:
    again = ModelSpec.from_wire(spec.to_wire())
    assert lane_layout(again, slots) == lane_layout(spec, slots)


def digest(*inputs: Tensor, slots: int = 8, **rest: tuple[Tensor, ...]) -> str:
    return lane_layout(model(*inputs, **rest), slots).digest


FIRST = Tensor("x", "float32", (4,))
OTHERS = {
    "name": Tensor("z", "float32", (4,)),
    "dtype": Tensor("x", "float64", (4,)),
    "dtype of the same size": Tensor("x", "int32", (4,)),
    "size": Tensor("x", "float32", (5,)),
    "rank": Tensor("x", "float32", (4, 1)),
    "reshaped": Tensor("x", "float32", (2, 2)),
    "dynamic": Tensor("x", "float32", (Dim(4),)),
    "larger maximum": Tensor("x", "float32", (Dim(5),)),
    "bytes": Tensor("x", "bytes", (4,), max_bytes=4),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_tensor_is_another_digest(what: str) -> None:
    assert digest(OTHERS[what]) != digest(FIRST)
    with_output = [digest(FIRST, outputs=(t,)) for t in (FIRST, OTHERS[what])]
    assert len(set(with_output)) == 2


def test_digests_tell_all_of_these_apart() -> None:
    extra = Tensor("p", "int32")
    known = [digest(tensor) for tensor in (FIRST, *OTHERS.values())]
    known += [digest(FIRST, slots=9), digest(FIRST, slots=16), digest(FIRST, extra)]
    known += [digest(extra, FIRST), digest(FIRST, parameters=(extra,))]
    known += [digest(FIRST, outputs=(Tensor("y", "float32"), extra))]
    assert len(set(known)) == len(known)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The same bytes, read otherwise.
        ((Tensor("x", "uint16", (4,)),), (Tensor("x", "bfloat16", (4,)),)),
        (
            (Tensor("a", "int8", (Dim(4),)), Tensor("b", "int8", (4,))),
            (Tensor("a", "int8", (4,)), Tensor("b", "int8", (Dim(4),))),
        ),
        ((Tensor("x", "int8", (Dim(4), 4)),), (Tensor("x", "int8", (4, Dim(4))),)),
    ],
)
def test_columns_that_look_alike_but_mean_something_else(
    one: tuple[Tensor, ...], other: tuple[Tensor, ...]
) -> None:
    assert digest(*one) != digest(*other)


@settings(max_examples=60, deadline=None)
@given(specs(), specs(), st.integers(1, 20), st.integers(1, 20))
def test_equal_digests_mean_equal_tensors_and_slots(
    a: ModelSpec, b: ModelSpec, slots_a: int, slots_b: int
) -> None:
    def facts(spec: ModelSpec, slots: int) -> object:
        roads = (spec.inputs, spec.outputs, spec.parameters)
        return slots, [
            [(t.name, t.dtype, t.describe_shape(), t.max_bytes) for t in road] for road in roads
        ]

    same_digest = lane_layout(a, slots_a).digest == lane_layout(b, slots_b).digest
    assert same_digest == (facts(a, slots_a) == facts(b, slots_b))


@pytest.mark.parametrize("max_batch", [1, 3, 64, 1000])
@pytest.mark.parametrize("max_lanes", [1, 33])
def test_worker_and_state_page_layouts(max_batch: int, max_lanes: int) -> None:
    worker = worker_layout(max_batch, max_lanes)
    assert worker.words.keys() == WORKER_WORDS.keys()
    assert worker.columns["tickets"].shape == (4, 3, max_batch)
    assert worker.columns["lanes"].shape == (max_lanes,)
    state_page = state_page_layout()
    assert state_page.words.keys() == BOARD_WORDS.keys()
    assert (
        len({worker.digest, state_page.digest, worker_layout(max_batch + 1, max_lanes).digest}) == 3
    )
    for layout in (worker, state_page):
        check(layout)
        assert layout.digest in layout.drawing()
        assert all(name in layout.drawing() for name in layout.words)


@pytest.mark.parametrize("posts", [1, 2, 17, 257])
def test_the_heartbeats_has_one_word_for_each_process(posts: int) -> None:
    heartbeats = heartbeats_layout(posts)
    check(heartbeats)
    assert heartbeats.words == {}
    (column,) = heartbeats.columns.values()
    assert (column.name, column.dtype, column.shape) == ("progress_ns", "i8", (posts,))
    assert column.offset >= PAGE
    assert "the post's process" in heartbeats.drawing().splitlines()[-1]
    assert len({layout.digest for layout in (heartbeats, heartbeats_layout(posts + 1))}) == 2


def test_a_heartbeats_page_of_nobody_is_none() -> None:
    with pytest.raises(AssertionError):
        heartbeats_layout(0)


def test_a_drawing_shows_every_word_and_column_with_its_writer() -> None:
    layout = lane_layout(MIXED, 6)
    lines = layout.drawing().splitlines()[2:]
    assert len(lines) == len(layout.words) + len(layout.columns)
    shown = {line.split()[2]: line.split()[-1] for line in lines}
    assert shown["sq_tail"] == "client"
    assert shown["gate"] == "batcher"
    assert shown["in.x"] == "client"
    assert shown["out.y"] == "worker"


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (4097, 8192)])
def test_power_of_two(n: int, power: int) -> None:
    assert power_of_two(n) == power


def test_sizes_stand_in_the_order_of_tensors_and_dimensions() -> None:
    assert size_columns(MIXED.inputs) == {"x": [], "ids": [(0, 0)], "text": []}
    assert size_columns(MIXED.outputs) == {"y": [], "grid": [(0, 0), (1, 2)], "words": [(2, 0)]}


def broken(layout: Layout, **changed: Column) -> Layout:
    return replace(layout, columns={**layout.columns, **changed})


def test_check_refuses_what_no_layout_may_have() -> None:
    layout = lane_layout(MIXED, 6)
    state, sequence = layout.columns["state"], layout.columns["sequence"]
    with pytest.raises(AssertionError, match="overlaps"):
        check(broken(layout, state=replace(state, offset=sequence.offset)))
    with pytest.raises(AssertionError, match="not aligned"):
        check(broken(layout, state=replace(state, offset=state.offset + 2)))
    with pytest.raises(AssertionError, match="head page"):
        check(broken(layout, state=replace(state, offset=128)))
    with pytest.raises(AssertionError, match="share a line"):
        check(replace(layout, words={**layout.words, "stale": layout.words["refused"] + 8}))
    with pytest.raises(AssertionError):
        check(replace(layout, total_bytes=layout.total_bytes - PAGE))
    with pytest.raises(AssertionError):
        check(replace(layout, capacity=6))


@pytest.mark.parametrize("slots", [0, -1, 2**31])
def test_a_lane_has_at_least_one_slot(slots: int) -> None:
    with pytest.raises(AssertionError):
        lane_layout(MIXED, slots)
