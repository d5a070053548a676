"""Frames over a stream: cut anywhere, refused where they are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.control.edges import TO_TASKS
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.task_messages import CancelTask, GetTaskStatus, LookAtTasks, TaskStates

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
