"""The last errors, in shared memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.metrics.segments import ERROR_BYTES, ERRORS_KEPT
from batchpool.shm.stats.recent_errors import RecentError, RecentErrors

SIZE = ERRORS_KEPT * ERROR_BYTES


def test_none_at_first() -> None:
    assert RecentErrors(memoryview(bytearray(SIZE)), 0).last() == []


@settings(deadline=None)
@given(st.integers(1, 3 * ERRORS_KEPT), st.integers(1, ERRORS_KEPT))
def test_the_last_ones_are_kept_the_newest_last(written: int, asked: int) -> None:
    memory = memoryview(bytearray(64 + SIZE))
    ring = RecentErrors(memory, 64)
    for i in range(1, written + 1):
        ring.note(i % 7, i % 3, i % 5, f"error {i}", 1000 + i)
    found = RecentErrors(memory, 64).last(asked)
    newest = range(max(1, written - ERRORS_KEPT + 1), written + 1)
    assert found == [
        RecentError(i, 1000 + i, i % 7, i % 3, i % 5, f"error {i}") for i in newest[-asked:]
    ]
    assert bytes(memory[:64]) == bytes(64)


def test_a_successor_writes_on() -> None:
    memory = memoryview(bytearray(SIZE))
    RecentErrors(memory, 0).note(0, 0, 1, "first", 1)
    RecentErrors(memory, 0).note(0, 0, 1, "second", 2)
    assert [(i.serial, i.text) for i in RecentErrors(memory, 0).last()] == [
        (1, "first"),
        (2, "second"),
    ]


@settings(deadline=None)
@given(st.text(max_size=2000))
def test_long_and_odd_texts_are_cut(text: str) -> None:
    ring = RecentErrors(memoryview(bytearray(SIZE)), 0)
    ring.note(0, 0, 1, text, 1)
    (found,) = ring.last()
    whole = text.encode(errors="replace")
    kept = found.text.encode(errors="replace")
    assert whole.startswith(kept.rstrip("\ufffd".encode())) or kept == whole
    assert len(whole) > 400 or found.text == whole.decode()


def test_a_row_that_was_never_finished_is_none() -> None:
    memory = memoryview(bytearray(SIZE))
    ring = RecentErrors(memory, 0)
    ring.note(0, 0, 1, "whole", 1)
    ring.note(0, 0, 1, "half", 2)
    memory[3 * ERROR_BYTES - 8 : 3 * ERROR_BYTES] = bytes(8)  # its end
    assert [i.text for i in ring.last()] == ["whole"]
