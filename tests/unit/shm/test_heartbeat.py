"""The heartbeats: one word a process, stamps of the dead do not count, how often to stamp."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.layout.segments import heartbeats_layout
from batchpool.shm.heartbeat import BATCHER, Heartbeats, beat_interval_ns, frontend_word
from batchpool.shm.segment import create

SECOND = 1_000_000_000


def both_heartbeats(words: int, *, writable: bool = True) -> tuple[Heartbeats, Heartbeats]:
    """A process's mapping and the supervisor's."""
    fd = create(heartbeats_layout(words), sealed=False)
    both = Heartbeats(fd, words), Heartbeats(fd, words, writable=writable)
    os.close(fd)
    return both


def test_every_process_has_a_word_of_its_own() -> None:
    ours, theirs = both_heartbeats(3)
    words = [BATCHER, frontend_word(0), frontend_word(1)]
    assert sorted(words) == [0, 1, 2]
    for word in words:
        ours.beat(word, 2**40 + word)
    assert [theirs.last_ns(word, 1) for word in words] == [2**40 + word for word in words]
    ours.beat(frontend_word(1), 2**63 - 1)
    assert [theirs.last_ns(word, 1) for word in words] == [2**40, 2**40 + 1, 2**63 - 1]


def test_who_has_not_stamped_since_its_start_has_no_stamp() -> None:
    heartbeats, _ = both_heartbeats(1)
    assert heartbeats.last_ns(BATCHER, 1) is None
    heartbeats.beat(BATCHER, 100)
    assert heartbeats.last_ns(BATCHER, 100) == 100
    assert heartbeats.last_ns(BATCHER, 101) is None, "that was the one before it"


def test_the_supervisor_only_reads() -> None:
    _, supervisors = both_heartbeats(1, writable=False)
    with pytest.raises(TypeError, match="read-only"):
        supervisors.beat(BATCHER, 1)


def test_a_heartbeats_page_of_other_processes_is_refused() -> None:
    fd = create(heartbeats_layout(2), sealed=False)
    with pytest.raises(ValueError, match="another layout"):
        Heartbeats(fd, 3)
    os.close(fd)


@given(st.floats(0.1, 3600))
def test_four_stamps_and_four_looks_fit_into_the_limit(stall_timeout_s: float) -> None:
    interval_ns = beat_interval_ns(stall_timeout_s)
    assert 0 < interval_ns <= SECOND // 4
    assert 4 * interval_ns <= stall_timeout_s * SECOND
    # and not more of them than that takes
    assert interval_ns == SECOND // 4 or 4 * (interval_ns + 1) > int(stall_timeout_s * SECOND)


def test_without_a_limit_the_age_can_still_be_shown() -> None:
    assert beat_interval_ns(0) == SECOND // 4
