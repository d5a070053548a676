"""Numbers that the host sends to a device that copies late."""

from __future__ import annotations

import pytest

from tests.lazy import library

torch = library("torch")
slot_state = library("batchpool.models.decoder.slot_state")


class Copied:
    """A copy that the device has begun only when it is waited for."""

    def __init__(self) -> None:
        self.is_waited_for = False

    def synchronize(self) -> None:
        self.is_waited_for = True


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Copied]:
    found: list[Copied] = []

    def recorded(_: object) -> Copied:
        found.append(Copied())
        return found[-1]

    monkeypatch.setattr(slot_state, "recorded", recorded)
    return found


def test_a_place_is_written_again_once_the_device_has_copied_it(copies: list[Copied]) -> None:
    """Parts of a long prompt came in the places of parts before them, where no token was made
    meanwhile and so nobody waited for the device."""
    table, to = slot_state.HostTable(3, torch.device("cpu")), torch.zeros(3, dtype=torch.int64)
    for number in range(5):
        place = table.turn()
        assert [copy.is_waited_for for copy in copies[:-1]] == [True] * max(0, number - 1)
        assert not copies or not copies[-1].is_waited_for, "one copy may be under way"
        place[:] = number
        table.send(to)
        assert to.tolist() == [number] * 3


def test_two_places_take_turns(copies: list[Copied]) -> None:
    table, to = (
        slot_state.HostTable((2, 2), torch.device("cpu")),
        torch.zeros((2, 2), dtype=torch.int64),
    )
    first = table.turn()
    first[:] = 7
    table.send(to)
    table.turn()[:] = 8
    assert first.tolist() == [[7, 7], [7, 7]]


def test_which_slots_are_live_is_sent_by_a_table(copies: list[Copied]) -> None:
    state = slot_state.SlotState(3, torch.device("cpu"))
    for slots in ([0, 2], [1], [0]):
        state.set_live(slots)
        assert [slot for slot, live in enumerate(state.live.tolist()) if live] == slots
    assert [copy.is_waited_for for copy in copies] == [True, False, False]
