"""A lane as its sides bind it: words, columns, statuses with their texts."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.core.errors import Status
from batchpool.core.layout.segments import LANE_WORDS, MESSAGE_BYTES, WORKER_WORDS
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stages_of
from batchpool.shm.lane import Lane, Origin, lane_of
from tests.unit.lanes import new_lane, new_worker_segment, other_side
from tests.unit.specs import AFFINE, MIXED


def test_both_sides_see_the_same_words() -> None:
    lane = new_lane(AFFINE, 4, LaneGate.CLOSED)
    theirs = other_side(lane)
    names = [name for name in LANE_WORDS if not name.endswith(("_tail", "_head"))]
    for value, name in enumerate(names, start=2**63):
        getattr(lane, name).set(value)
    for value, name in enumerate(names, start=2**63):
        assert getattr(theirs, name).get() == value
    assert not lane.gate_is_open()
    theirs.gate.set(LaneGate.OPEN)
    assert lane.gate_is_open()


def test_a_fresh_lane_is_closed_and_all_its_slots_are_free() -> None:
    lane = new_lane(MIXED, 4, LaneGate.CLOSED)
    assert not lane.gate_is_open()
    assert (lane.state == SlotState.FREE).all()
    assert lane.sq_consumer().pending() == lane.cq_consumer().pending() == 0


def test_columns_come_as_arrays_and_as_scalars() -> None:
    lane = new_lane(AFFINE, 4)
    lane.scalars("deadline_ns")[2] = -5
    lane.scalars("state")[3] = SlotState.DONE
    assert lane.deadline_ns.tolist() == [0, 0, -5, 0]
    assert other_side(lane).state.tolist() == [0, 0, 0, SlotState.DONE]


def test_lane_of_a_model() -> None:
    lane = new_lane(MIXED, 4)
    again = lane_of(MIXED, 4, lane.memory)
    assert again.layout == lane.layout
    assert list(again.inputs) == ["x", "ids", "text"]
    assert list(again.outputs) == ["y", "grid", "words"]
    assert list(again.parameters) == ["top_k", "scale"]


def test_a_stage_reads_what_the_one_before_it_has_written() -> None:
    x, ids = Tensor("x", "float32"), Tensor("ids", "int32", (Dim(4),))
    logits, y = Tensor("logits", "float32", (Dim(3),)), Tensor("y", "float32")
    spec = ModelSpec("m", "numpy", (x,), (y,), (), (ids,), (), (logits,), ("x", "ids"))
    lane = new_lane(spec, 4)
    pre, run, post = (lane.of_stage(stage) for stage in stages_of(spec))
    assert [list(each.inputs) for each in (pre, run, post)] == [
        ["x"], ["ids"], ["x", "ids", "logits"],
    ]  # fmt: skip
    assert [list(each.outputs) for each in (pre, run, post)] == [["ids"], ["logits"], ["y"]]
    run.outputs["logits"].store(slice(0, 1), np.ones((1, 2), np.float32))
    assert post.inputs["logits"].load(slice(0, 1)).tolist() == [[1.0, 1.0]]
    assert other_side(lane).prediction_sizes[:, 0].tolist() == [2, 0, 0, 0]
    assert list(lane.outputs) == ["y"], "what the client reads"
    alone = new_lane(AFFINE, 4)
    assert alone.of_stage(Stage.INFER) is alone
    assert not hasattr(alone, "stage"), "a lane of one stage has no such word"


def test_the_queue_pair_joins_the_two_sides() -> None:
    client = new_lane(AFFINE, 4)
    batcher = other_side(client)
    client.sq_producer().push_few([7, 8])
    assert batcher.sq_consumer().peek().tolist() == [7, 8]
    batcher.cq_producer().push_few([9])
    assert client.cq_consumer().peek().tolist() == [9]


@pytest.fixture
def lane() -> Lane:
    return new_lane(AFFINE, 4)


SOME = np.array([1, 3], dtype=np.uint32)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ""),
        ("ValueError: é€😀", "ValueError: é€😀"),
        ("a" * MESSAGE_BYTES, "a" * MESSAGE_BYTES),
        ("a" * 10_000, "a" * MESSAGE_BYTES),
        ("a" + "€" * 100, "a" + "€" * 79),  # cut inside a character: that one goes
        ("file \udcff is missing", "file ? is missing"),  # no valid text: still a message
    ],
)
def test_a_status_and_its_text_are_bounded(lane: Lane, text: str, read: str) -> None:
    lane.write_status(SOME, Status.MODEL_ERROR, "x" * 500)
    lane.write_status(SOME, Status.MODEL_ERROR, text)
    client = other_side(lane)
    assert [client.read_message(slot) for slot in (1, 3)] == [read, read]
    assert client.status.tolist() == [0, 1, 0, 1]
    assert [client.read_message(slot) for slot in (0, 2)] == ["", ""]


@pytest.mark.parametrize("text", ["", "ValueError: é€😀", "a" * 10_000, "é" * 200, "\x1e7 8 9"])
@pytest.mark.parametrize("origin", [(1, 0, 4711), (2**64 - 1, 12345, 2**22)])
def test_a_status_says_where_the_row_failed(lane: Lane, text: str, origin: Origin) -> None:
    lane.write_status(SOME, Status.MODEL_ERROR, text, origin)
    client = other_side(lane)
    assert [client.read_origin(slot) for slot in (1, 3)] == [origin, origin]
    read = client.read_message(1)
    assert text.startswith(read)
    assert len(read) == len(text) or len(read.encode()) > MESSAGE_BYTES - 40
    lane.write_status(SOME, Status.MODEL_ERROR, "elsewhere")
    assert (client.read_origin(1), client.read_message(1)) == (None, "elsewhere")


@pytest.mark.parametrize("origin", [None, (1, 0, 4711)])
def test_details_stand_behind_the_text_which_is_cut_for_them(
    lane: Lane, origin: Origin | None
) -> None:
    details = b'{"offset":17}'
    for text in ("no UTF-8", "a" * 10_000, ""):
        lane.write_status(SOME, Status.INVALID_INPUT, text, origin, details)
        client = other_side(lane)
        assert client.read_details(1) == client.read_details(3) == details
        assert client.read_origin(3) == origin
        read = client.read_message(1)
        assert text.startswith(read)
        assert len(read) == len(text) or len(read) > MESSAGE_BYTES - 40
    lane.write_status(SOME, Status.INVALID_INPUT, "none")
    assert (lane.read_message(1), lane.read_details(1)) == ("none", b"")


def test_a_length_nobody_right_wrote_leads_nobody_out_of_the_slot(lane: Lane) -> None:
    lane.write_status(SOME, Status.MODEL_ERROR, "a" * MESSAGE_BYTES)
    lane.message_len[1] = 2**32 - 1
    assert lane.read_message(1) == "a" * MESSAGE_BYTES


def test_a_workers_segment() -> None:
    worker_segment = new_worker_segment(max_batch=3, max_lanes=5)
    assert worker_segment.tickets.shape == (4, 3, 3)
    assert worker_segment.lanes.tolist() == [0] * 5
    for name in WORKER_WORDS:
        if not name.endswith(("_tail", "_head")):
            getattr(worker_segment, name).set(2**64 - 1)
            assert getattr(worker_segment, name).get() == 2**64 - 1
    worker_segment.sq_producer().push_few([1, 2])
    assert worker_segment.sq_consumer().peek().tolist() == [1, 2]
    worker_segment.cq_producer().push_few([3])
    assert worker_segment.cq_consumer().peek().tolist() == [3]
