"""The flight recorder: order, one round after another, and rows that were never finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import astuple, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.metrics.segments import BATCH_WORDS, BATCHES_KEPT, flight_recorder_layout
from batchpool.shm.segment import create, map_checked
from batchpool.shm.stats.flight_recorder import FlightRecorder, RecordedBatch

AT = flight_recorder_layout().columns["batches"].offset


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create(flight_recorder_layout(), sealed=True)
    yield fd
    os.close(fd)


NAMES = [field.name for field in fields(RecordedBatch)][1:]  # without the serial number


def write_values(flight_recorder: FlightRecorder, *values: int) -> None:
    flight_recorder.write(**dict(zip(NAMES, values, strict=True)))


def write(flight_recorder: FlightRecorder, token: int) -> None:
    """A batch whose every value tells its token."""
    write_values(flight_recorder, 1, 2, 3, token, *(100 * token + i for i in range(11)))


def tokens(flight_recorder: FlightRecorder, n: int = BATCHES_KEPT) -> list[int]:
    return [entry.token for entry in flight_recorder.last(n)]


def test_a_row_is_read_back_as_it_was_written(fd: int) -> None:
    flight_recorder = FlightRecorder(fd)
    values = range(20, 35)
    write_values(flight_recorder, *values)
    (entry,) = FlightRecorder(fd, writable=False).last(5)
    assert astuple(entry) == (1, *values)


def test_the_last_come_newest_last_and_there_may_be_fewer() -> None:
    flight_recorder = FlightRecorder()
    assert flight_recorder.last() == []
    for token in range(1, 6):
        write(flight_recorder, token)
    assert tokens(flight_recorder) == [1, 2, 3, 4, 5]
    assert tokens(flight_recorder, 2) == [4, 5]
    assert tokens(flight_recorder, 0) == []


@settings(deadline=None)
@given(st.integers(0, 3 * BATCHES_KEPT))
def test_the_ring_keeps_the_last_of_any_number(n: int) -> None:
    flight_recorder = FlightRecorder()
    for token in range(1, n + 1):
        write(flight_recorder, token)
    assert tokens(flight_recorder) == list(range(max(1, n - BATCHES_KEPT + 1), n + 1))


def test_another_goes_on_where_one_died(fd: int) -> None:
    first = FlightRecorder(fd)
    for token in range(1, 4):
        write(first, token)
    second = FlightRecorder(fd)
    write(second, 4)
    entries = second.last()
    assert [entry.token for entry in entries] == [1, 2, 3, 4]
    assert [entry.serial for entry in entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("stored", range(BATCH_WORDS + 1))
@pytest.mark.parametrize("before", [3, BATCHES_KEPT + 3])
def test_a_row_that_its_writer_left_is_a_hole_and_the_next_goes_on(
    fd: int, stored: int, before: int
) -> None:
    """Its first words are those of the new row, the others those of the row a round ago."""
    writer = FlightRecorder(fd)
    for token in range(1, before + 1):
        write(writer, token)
    cells = map_checked(fd, flight_recorder_layout()).cells()
    place = AT // 8 + (before + 1) % BATCHES_KEPT * BATCH_WORDS
    old = cells[place : place + BATCH_WORDS].tolist()
    write(writer, before + 1)
    new = cells[place : place + BATCH_WORDS].tolist()
    for i in range(BATCH_WORDS):
        cells[place + i] = new[i] if i < stored else old[i]

    kept = list(range(max(1, before + 2 - BATCHES_KEPT), before + 1))
    oldest = [before + 1 - BATCHES_KEPT] if before >= BATCHES_KEPT else []
    whole = {0: [*oldest, *kept], BATCH_WORDS: [*kept, before + 1]}
    assert tokens(FlightRecorder(fd)) == whole.get(stored, kept)

    successor = FlightRecorder(fd)
    write(successor, before + 2)
    assert successor.last(1)[0].token == before + 2
    assert all(entry.queued_ns == 100 * entry.token + 7 - 1 for entry in successor.last())


def test_batches_are_known_by_worker_and_token() -> None:
    flight_recorder = FlightRecorder()
    write_values(flight_recorder, 0, 0, 5, 70, *range(11))
    write_values(flight_recorder, 0, 0, 6, 71, *range(11))
    assert flight_recorder.has(5, 70)
    assert flight_recorder.has(6, 71)
    assert not flight_recorder.has(5, 71)
    assert not FlightRecorder().has(0, 0), "an empty ring has no batches"
