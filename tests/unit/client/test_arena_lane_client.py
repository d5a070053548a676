"""Claims of rows whose large inputs stand in the arena of the lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client.arena_lane_client import ArenaLaneClient, lane_client_of
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Overloaded, Status, TooLarge
from batchpool.core.layout.arena import ALIGN, Arena
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.shm.lane import Lane
from tests.unit.client.lane_clients import LATER, NOW, Pool, new_lane_client
from tests.unit.lanes import segment_of

LARGEST = 1024
ARENA_BYTES = 4096
SPEC = ModelSpec(
    "pictures",
    "numpy",
    (
        Tensor("x", "float32"),
        Tensor("picture", "bytes", max_bytes=LARGEST - 2 * ALIGN),
        Tensor("boxes", "int16", (Dim(16), 4)),
    ),
    (Tensor("y", "float32"),),
)
IN_ARENA = ("picture", "boxes")
S = 10**9


def client(slots: int = 10, arena_bytes: int = ARENA_BYTES, **options: Any) -> ArenaLaneClient:
    layout = lane_layout(SPEC, slots, Arena(IN_ARENA, arena_bytes))
    lane = Lane(SPEC, segment_of(layout), layout)
    lane.gate.set(int(LaneGate.OPEN))
    found = lane_client_of(lane, **options)
    assert isinstance(found, ArenaLaneClient)
    return found


def rows(*lengths: int, boxes: int = 0) -> Rows:
    """Rows with pictures of these lengths."""
    pictures = [bytes([65 + i]) * length for i, length in enumerate(lengths)]
    x = np.arange(len(lengths), dtype=np.float32)
    shape = (len(lengths), boxes, 4)
    tensors = {"x": x, "picture": pictures, "boxes": np.full(shape, 7, np.int16)}
    return check_rows(SPEC, tensors)


def send(it: LaneClient, wanted: Rows, **options: Any) -> PendingRequest:
    pending = it.submit(wanted, options.pop("now_ns", NOW), LATER, **options)
    it.flush()
    return pending


def used(it: ArenaLaneClient) -> int:
    return it.arena.allocator.used


def test_only_lanes_with_an_arena_pay_for_one() -> None:
    assert type(lane_client_of(new_lane_client().lane)) is LaneClient
    assert type(client()) is ArenaLaneClient


def test_the_pool_reads_what_was_written() -> None:
    it = client()
    send(it, rows(3, 0, 700, boxes=2))
    pool = Pool(it)
    slots = pool.admit()[QueueColumn.SLOT]
    lane = pool.lane.lane
    found = lane.inputs["picture"].load(slots)
    assert found.tolist() == [b"AAA", b"", b"C" * 700]
    assert lane.inputs["boxes"].load(slots).tolist() == [[[7] * 4] * 2] * 3
    assert used(it) == (ALIGN * 2) + ALIGN + (768 + ALIGN)


def test_a_run_is_free_when_its_rows_are_done_and_the_slots_later() -> None:
    it = client()
    pool = Pool(it)
    pending = send(it, rows(100, 100))
    assert used(it) == 2 * ALIGN
    pool.admit()
    pool.finish(pool.rows[0])
    it.reap(NOW)
    assert used(it) == 2 * ALIGN, "the other row may run"
    pool.finish(pool.rows[1])
    assert it.reap(NOW) == [pending]
    assert (used(it), it.allocator.claimed) == (0, 2)
    it.release(pending)
    assert it.allocator.claimed == 0


def test_a_cancelled_row_keeps_its_run_until_the_pool_is_done_with_it() -> None:
    it = client()
    pool = Pool(it)
    pending = send(it, rows(500))
    pool.admit()
    it.abandon(pending)
    assert used(it) == 512
    pool.finish(*pool.rows)
    assert it.reap(NOW) == []
    assert (used(it), it.allocator.claimed) == (0, 0)


def test_rows_that_cannot_be_written_give_their_runs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    it = client()
    pool = Pool(it)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(it.arena, "place", fail)
        with pytest.raises(MemoryError):
            it.submit(rows(100, 100), NOW, LATER)
    assert (used(it), it.allocator.claimed) == (0, 0)
    send(it, rows(100))
    assert pool.admit().shape[1] == 1


def test_where_slots_are_full_the_arena_is_untouched() -> None:
    it = client(slots=2)
    send(it, rows(10))
    with pytest.raises(Overloaded, match="1 of 2 slots"):
        it.submit(rows(10), NOW, LATER)
    assert used(it) == ALIGN
    assert not it.has_room(rows(10), NOW)


def test_a_full_arena_is_the_same_503_and_counts_as_one() -> None:
    it = client()
    pool = Pool(it)
    sent = [send(it, rows(768)) for _ in range(4)]
    assert used(it) == 3072
    with pytest.raises(Overloaded) as caught:
        it.submit(rows(768), NOW, LATER)
    assert str(caught.value) == (
        "model 'pictures' is overloaded: 3.0 KiB of the 4.0 KiB for its large inputs are in use"
    )
    assert caught.value.retry_after_ms == 1000
    assert it.lane.refused.get() == 1
    assert not it.has_room(rows(768), NOW)
    assert it.has_room(rows(256), NOW)
    assert it.has_room(rows(768), NOW, 1), "a raised priority may use what is above the watermark"
    pool.finish_all()
    assert len(it.reap(NOW)) == 4
    assert it.has_room(rows(768), NOW)
    send(it, rows(768))
    assert len(sent) == 4


def test_the_head_of_a_request_is_refused_while_there_is_no_room_at_all() -> None:
    it = client()
    send(it, rows(768, 768, 768, 768))
    it.check(1, NOW)
    send(it, rows(512))
    with pytest.raises(Overloaded):
        it.submit(rows(768), NOW, LATER)
    with pytest.raises(Overloaded, match="for its large inputs"):
        it.check(1, NOW)
    assert it.lane.refused.get() == 2
    it.check(1, NOW, priority=1)


def test_half_of_the_arena_is_the_share_of_a_flow_while_others_are_active() -> None:
    it = client()
    send(it, rows(10), flow=2)
    send(it, rows(768), flow=1)
    send(it, rows(768), flow=1)
    with pytest.raises(Overloaded) as caught:
        it.submit(rows(768), NOW, LATER, flow=1)
    assert str(caught.value) == (
        "model 'pictures' is overloaded: this flow holds 1.5 KiB of the 4.0 KiB for its large"
        " inputs, and half (1.8 KiB) is its share while others are active"
    )
    assert (it.lane.refused.get(), it.lane.refused_share.get()) == (0, 1)
    send(it, rows(768), flow=2)


def test_a_large_row_that_was_refused_finds_room_before_smaller_ones() -> None:
    it = client(slots=40)
    pool = Pool(it)
    for _ in range(28):
        send(it, rows(100))
    assert used(it) == 28 * ALIGN
    with pytest.raises(Overloaded):
        it.submit(rows(768), NOW, LATER)
    for _ in range(28):  # one comes wherever one goes, as long as it may
        pool.admit()
        pool.finish(pool.rows.pop(0))
        it.reap(NOW)
        if it.has_room(rows(768), NOW):
            break
        if it.has_room(rows(100), NOW):
            send(it, rows(100))
    send(it, rows(768))


def test_whoever_waits_has_room_kept_while_it_asks() -> None:
    it = client(slots=40)
    send(it, rows(*[100] * 23))
    assert not it.has_room(rows(768), NOW)
    assert not it.has_room(rows(100), NOW + S - 1)
    assert it.has_room(rows(100), NOW + S)


def test_rows_that_never_fit_together_are_too_large() -> None:
    it = client()
    with pytest.raises(TooLarge) as caught:
        it.submit(rows(768, 768, 768, 768, 768), NOW, LATER)
    assert str(caught.value) == (
        "5 rows whose large inputs take 3.8 KiB at once; model 'pictures' takes at most 3.6 KiB"
        " here: send them in smaller requests, or raise input_arena_mib"
    )
    assert used(it) == 0


def test_windows_are_as_many_rows_as_fit_wherever_they_begin() -> None:
    it = client(slots=100)
    assert it.most_rows(rows(*[10] * 20)) == 20
    assert it.most_rows(rows(*[768] * 20)) == 3
    assert it.most_rows(rows(*[10] * 10, 768, 768, 768, 768, 768)) == 4
    assert it.most_rows(rows(768)) == 1
    assert client(slots=4).most_rows(rows(*[10] * 20)) == 3, "as slots allow"


def test_another_watermark_holds_for_both() -> None:
    it = client()
    it.set_watermark(0.5)
    assert (it.allocator.bound, it.arena.allocator.bound) == (5, 2048)


def test_rows_without_bytes_take_no_room() -> None:
    it = client()
    pool = Pool(it)
    send(it, rows(*[0] * 9))
    assert used(it) == 0
    pool.finish_all()
    assert len(it.reap(NOW)) == 1


def test_a_failed_row_frees_its_run() -> None:
    it = client()
    pool = Pool(it)
    pending = send(it, rows(300))
    pool.admit()
    pool.finish(*pool.rows, status=Status.WORKER_LOST)
    assert it.reap(NOW) == [pending]
    assert used(it) == 0
