"""Frames over a stream: cut anywhere, refused where they are none."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.control.edges import TO_TASKS
from batchpool.control.frames import FrameReader, frame_of, frame_pieces
from batchpool.control.task_messages import (
    CancelTask,
    GetTaskStatus,
    LookAtTasks,
    SubmitTask,
    TaskStates,
)
from batchpool.core.tensors.rows import Rows
from batchpool.wire.left_out import LeftOut
from batchpool.wire.task_form import pack_input, unpack_input

MESSAGES = [CancelTask("t_1"), GetTaskStatus(), LookAtTasks(("a", "b"), "me", 5)]


@given(st.lists(st.integers(1, 40), max_size=30))
def test_messages_come_whole_however_the_bytes_are_cut(sizes: list[int]) -> None:
    stream = b"".join(frame_of(i, message) for i, message in enumerate(MESSAGES))
    reader = FrameReader(TO_TASKS)
    found = []
    for size in [*sizes, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        found += list(reader.feed(piece))
    assert found == list(enumerate(MESSAGES))


def submission(rows: Rows, left_out: LeftOut | None) -> SubmitTask:
    packed = pack_input(rows, left_out)
    return SubmitTask(bytes(16), 1, "m", rows.n, msgspec.Raw(packed), msgspec.Raw(b"\xc0"), "c")


@pytest.mark.parametrize("step", [1 << 16, (1 << 20) + 77, 1 << 23])
def test_a_long_message_is_sent_from_where_its_tensors_are(step: int) -> None:
    """30 MB held a front end's loop for 56 ms, and the task process's for 45."""
    x = np.arange(3 << 20, dtype=np.uint8).reshape(3, -1)
    y = x[:, : 1 << 16]  # of which a copy has to be made
    rows = Rows(3, {"x": x, "short": np.zeros(3), "y": y}, {"p": 1})
    left_out = LeftOut()
    pieces = frame_pieces(7, submission(rows, left_out), left_out)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), x) for piece in pieces if piece)
    stream = b"".join(pieces)
    assert stream == frame_of(7, submission(rows, None))
    stream = frame_of(1, MESSAGES[0]) + stream + stream + frame_of(2, MESSAGES[1])
    reader, found = FrameReader(TO_TASKS), []
    for at in range(0, len(stream), step):
        found += list(reader.feed(stream[at : at + step]))
    assert [number for number, _ in found] == [1, 7, 7, 2]
    assert (found[0][1], found[3][1]) == (MESSAGES[0], MESSAGES[1])
    for _, message in found[1:3]:
        assert isinstance(message, SubmitTask)
        read = unpack_input(bytes(message.input))
        assert read.parameters == {"p": 1}
        assert all(np.array_equal(read.tensors[name], rows.tensors[name]) for name in rows.tensors)


@pytest.mark.parametrize(
    "stream",
    [
        frame_of(1, TaskStates(())),  # of the other direction
        b"\x08\0\0\0" + bytes(8),  # without a message
        b"\xff\xff\xff\x7f" + bytes(8),  # longer than allowed
        b"\x0a\0\0\0" + bytes(8) + b"\x81\xa1",
        b"\x09\0\0\0" + bytes(8) + b"\xc0",
    ],
)
def test_what_is_no_message_is_refused(stream: bytes) -> None:
    reader = FrameReader(TO_TASKS, most_bytes=1000)
    with pytest.raises(ValueError, match=r"frame|message"):
        list(reader.feed(stream))
