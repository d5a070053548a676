"""Numbers, serials and descriptors of lanes, and of the bells that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from batchpool.control.channel import Closed, pair
from batchpool.core.errors import Overloaded, StartError
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry, LaneTable
from tests.unit.shm.scarcity import no_descriptors, open_files
from tests.unit.supervisor.plan.test_diff import plan

LAYOUT = plan("a", server={"client_slots": 8}).models[0].client_lane


class Lanes:
    """A table with room for two. gone: the lanes that it said were leaving."""

    def __init__(self) -> None:
        self.gone: list[LaneEntry] = []
        self.table = LaneTable(2, self.gone.append)
        self.bells = HeldBells.of_local_client()

    def add(self, owner: str = "ann", model: int = 0, client: int = 1) -> LaneEntry:
        return self.table.add(model, owner, LAYOUT, self.bells, client=client, pinned=False)

    def close(self) -> None:
        for entry in self.table:
            self.table.remove(entry.number)
        self.bells.close()


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    before = open_files()
    lanes = Lanes()
    yield lanes
    lanes.close()
    assert open_files() == before, "every descriptor is closed in the end"


def test_a_number_is_used_again_and_a_serial_never(lanes: Lanes) -> None:
    first, second = lanes.add(), lanes.add()
    assert [(e.number, e.serial) for e in (first, second)] == [(0, 1), (1, 2)]
    with pytest.raises(Overloaded, match="no room for another lane"):
        lanes.add()
    lanes.table.remove(0)
    assert (lanes.gone, lanes.table.get(0)) == ([first], None)
    third = lanes.add()
    assert (third.number, third.serial) == (0, 3)
    assert list(lanes.table) == [second, third]


def test_lanes_are_found_by_owner_and_by_model(lanes: Lanes) -> None:
    first, second = lanes.add("ann", model=0), lanes.add("bob", model=1)
    assert (lanes.table.of_owner("ann"), lanes.table.of_entry(1)) == ([first], [second])
    first.closing = second.closing = True
    assert (lanes.table.of_owner("ann"), lanes.table.of_entry(1)) == ([], [second])


def test_only_a_lane_with_the_number_of_a_client_is_local(lanes: Lanes) -> None:
    """The segment of a local client's lane is sealed, since it may write there what it likes."""
    local, pooled = lanes.add(client=1), lanes.add(client=0)
    assert (local.local, pooled.local) == (True, False)
    with pytest.raises(PermissionError):
        os.ftruncate(local.fd, 0)
    os.ftruncate(pooled.fd, 0)


def test_a_client_cannot_claim_more_slots_than_there_are(lanes: Lanes) -> None:
    lane = lanes.add()
    for word, claimed in ((0, 0), (8, 8), (2**64 - 1, 8)):
        os.pwrite(lane.fd, word.to_bytes(8, "little"), LAYOUT.words["claimed"])
        assert lane.claimed() == claimed


def test_rows_that_are_read_in_place_are_fetched(lanes: Lanes) -> None:
    lane = lanes.add()
    for claimed, lent, rows in ((5, 0, 5), (5, 2, 3), (5, 5, 0), (5, 2**64 - 1, 0)):
        for word, value in (("claimed", claimed), ("lent", lent)):
            os.pwrite(lane.fd, value.to_bytes(8, "little"), LAYOUT.words[word])
        assert (lane.claimed(), lane.rows()) == (claimed, rows)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_bells_live_until_the_last_user_has_let_go() -> None:
    bells = HeldBells.of_local_client()
    fds = (bells.to_client, bells.from_client)
    handed = bells.for_client
    assert bells.share() is bells
    bells.handed_over()
    assert (bells.for_client, is_open(handed)) == (-1, False)
    bells.close()
    assert [is_open(fd) for fd in fds] == [True, True]
    bells.close()
    assert [is_open(fd) for fd in fds] == [False, False]


def test_bells_that_were_never_handed_over_are_closed_too() -> None:
    before = open_files()
    for bells in (HeldBells.of_local_client(), HeldBells.of_frontend()):
        bells.close()
    assert open_files() == before


def test_a_front_ends_end_is_the_same_eventfd() -> None:
    bells = HeldBells.of_frontend()
    os.eventfd_write(bells.to_client, 3)
    assert (os.eventfd_read(bells.for_client), bells.from_client) == (3, -1)
    bells.close()


def test_bells_for_which_there_is_one_descriptor_too_few_cost_none() -> None:
    before = open_files()
    with no_descriptors(but=1), pytest.raises(StartError, match="cannot attach a front end: too"):
        HeldBells.of_frontend()
    assert open_files() == before


@pytest.mark.parametrize("frontend", [None, 0])
def test_a_connection_closes_what_is_its_own(frontend: int | None) -> None:
    """The channel of a front end is that of the child."""
    ours, theirs = pair()
    theirs.sock.setblocking(False)
    pidfd = os.eventfd(0)
    bells = HeldBells.of_frontend()
    client = ClientConnection("ann", ours, None, pidfd, frontend, bells)
    assert (client.attached, client.uid) == (True, -1)
    client.close()
    client.close()
    assert (is_open(pidfd), is_open(bells.to_client), client.attached) == (False, False, False)
    with pytest.raises(Closed if frontend is None else BlockingIOError):
        theirs.receive_packet()
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("change", "freed"),
    [({"abandoned": True}, True), ({}, False), ({"moved": True, "closing": True}, False)],
    ids=str,
)
def test_a_client_that_has_gone_holds_no_memory_by_a_descriptor_it_kept(
    lanes: Lanes, change: dict[str, int], freed: bool
) -> None:
    """One that goes on may still read what is in its lane."""
    entry = lanes.add()
    for name, value in change.items():
        setattr(entry, name, value)
    kept = os.dup(entry.fd)
    lanes.table.remove(entry.number)
    held = os.fstat(kept).st_blocks * 512
    os.close(kept)
    assert (held < LAYOUT.total_bytes) is freed
