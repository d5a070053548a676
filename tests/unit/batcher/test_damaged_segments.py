"""Any value at any place of a worker's segment ends that worker only, and answers no row wrongly.

A model's native code can store anything there. Every word is overwritten, by what wild code mostly
writes and by random bytes, while batches are in flight, and before a batcher takes over.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.batcher.metrics import End
from batchpool.core.layout.segments import worker_layout
from tests.unit.batcher.damaged_house import LANES, MOST, OTHER, VICTIM, House, Seat, places

PLACES = places(worker_layout(MOST, LANES))
NAMES = list(dict.fromkeys(name for name, _, _ in PLACES))
WORDS = {name: [(at, size) for other, at, size in PLACES if other == name] for name in NAMES}
VALUES = [b"\0" * 8, b"\1" + b"\0" * 7, b"\xff" * 8, b"A" * 8, bytes(range(0x81, 0x89))]


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def busy(house: House) -> Seat:
    """A worker of the victim that has batches in flight, and has finished some."""
    for _ in range(2):
        house.send(VICTIM, 6)
        house.send(OTHER, 3)
        house.step()
    house.send(VICTIM, 20)
    house.send(OTHER, 3)
    house.batcher.step(house.now_ns)
    return max(
        (seat for seat in house.seats.values() if seat.model == VICTIM),
        key=lambda seat: int((seat.segment.token != seat.segment.freed).sum()),
    )


def check(house: House) -> None:
    """All rows are answered and right, and only workers of the victim were replaced."""
    others = {number for number, seat in house.seats.items() if seat.model == OTHER}
    house.settle()
    house.send(VICTIM, 8)
    house.send(OTHER, 8)
    house.settle()
    assert others == {number for number, seat in house.seats.items() if seat.model == OTHER}
    assert house.batcher.is_empty() or any(number in house.seats for number in house.broken)


@pytest.mark.parametrize("moment", ["in flight", "run", "takeover", "run, takeover"])
@pytest.mark.parametrize("name", NAMES)
def test_each_word_may_hold_anything(name: str, moment: str) -> None:
    """Every word, every element of the columns that are short, with the values of wild code."""
    for value in VALUES:
        places = WORDS[name]
        for at, size in places if len(places) <= 8 else places[:3] + places[-2:]:
            house = House()
            seat = busy(house)
            if moment.startswith("run"):
                seat.step()
            seat.raw[at : at + size] = value[:size]
            if moment.endswith("takeover"):
                house.take_over()
            check(house)
            house.close()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_bytes_in_random_places_harm_nobody_else(data: st.DataObject) -> None:
    house = House()
    seat = busy(house)
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, 3))):
            seat.step()
        name = data.draw(st.sampled_from(NAMES))
        at, size = data.draw(st.sampled_from(WORDS[name]))
        length = data.draw(st.sampled_from([1, size, 8, 64, 4096]))
        length = min(length, len(seat.raw) - at)
        seat.raw[at : at + length] = data.draw(st.binary(min_size=length, max_size=length))
        if data.draw(st.booleans()):
            house.take_over()
    check(house)
    house.close()


def test_a_segment_of_zeros_is_found_at_once(house: House) -> None:
    seat = busy(house)
    seat.step()
    seat.raw[:] = bytes(len(seat.raw))
    house.take_over()
    assert house.broken.keys() == {seat.number}
    assert "its magic is 0x0" in house.broken[seat.number]
    check(house)
    assert house.replaced == [seat.number]


def test_a_batch_that_ends_hours_after_its_segment_was_mapped_has_a_sound_end() -> None:
    """Also where its worker died before it told of the end."""
    house = House(workers=1)
    (seat,) = (seat for seat in house.seats.values() if seat.model == VICTIM)
    house.now_ns += 5 * 3600 * 10**9
    house.send(VICTIM, 1)
    house.batcher.step(house.now_ns)
    while not seat.segment.finished.any():
        seat.step()
    seat.raw[seat.layout.words["cq_tail"]] = 0  # as if it had died just before this store
    house.batcher.lose_worker(seat.number, "was killed")
    assert house.broken == {}
    assert house.metrics[VICTIM].ended(End.OK) == 1
    house.close()
