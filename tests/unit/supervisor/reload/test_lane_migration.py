"""Decisions about lanes: which are missing before a commit, and the end of each old one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchpool.supervisor.reload.lane_migration import (
    LaneMigration,
    MigrationAction,
    MigrationCommand,
    MissingLane,
    missing_lanes,
)

NOW = 1000
LATER = NOW + 30


def test_a_lane_is_closed_once_when_its_client_has_left_it() -> None:
    leaving = LaneMigration([3, 5], LATER)
    assert leaving.step(NOW) == [], "nobody has left"
    leaving.left(5)
    assert leaving.step(NOW) == [MigrationCommand(MigrationAction.CLOSE, 5)]
    leaving.left(5)
    assert leaving.step(NOW) == [], "once"
    assert leaving.lanes == 2, "the batcher has it still"
    leaving.gone(5)
    assert leaving.lanes == 1


def test_a_client_that_does_not_leave_is_evicted_when_its_time_is_up() -> None:
    leaving = LaneMigration([3, 5], LATER)
    leaving.left(3)
    assert leaving.step(LATER) == [
        MigrationCommand(MigrationAction.CLOSE, 3),
        MigrationCommand(MigrationAction.EVICT, 5),
    ]
    leaving.left(5)
    assert leaving.step(LATER + 1) == [], "too late to say so"
    leaving.gone(3)
    leaving.gone(5)
    assert leaving.lanes == 0


def test_lanes_of_others_are_none_of_its_business() -> None:
    leaving = LaneMigration([3], LATER)
    leaving.left(4)
    leaving.gone(4)
    assert (leaving.step(NOW), leaving.lanes) == ([], 1)


EVENTS = st.lists(st.tuples(st.sampled_from(["left", "gone", "step"]), st.integers(0, 4)))


@given(lanes=st.sets(st.integers(0, 4)), events=EVENTS, until_ns=st.integers(0, 20))
def test_every_lane_has_one_end(
    lanes: set[int], events: list[tuple[str, int]], until_ns: int
) -> None:
    leaving = LaneMigration(lanes, until_ns)
    left: set[int] = set()
    gone: set[int] = set()
    ended: list[int] = []
    for now_ns, (what, lane) in enumerate(events):
        if what == "left":
            leaving.left(lane)
            left.add(lane)
        elif what == "gone":
            leaving.gone(lane)
            gone.add(lane)
        else:
            for command in leaving.step(now_ns):
                assert command.lane in lanes - gone
                assert (
                    command.action is MigrationAction.CLOSE
                    if command.lane in left
                    else now_ns >= until_ns
                )
                ended.append(command.lane)
    ended += [command.lane for command in leaving.step(max(until_ns, len(events)))]
    assert len(ended) == len(set(ended))
    assert set(ended) | gone >= lanes
    assert leaving.lanes == len(lanes - gone)


def test_front_ends_get_every_lane_and_local_clients_those_that_they_use() -> None:
    clients = [("frontend 0", True), ("client 1", False), ("client 2", False)]
    has = [("frontend 0", 0), ("frontend 0", 1), ("client 1", 0), ("client 2", 1)]
    # Entry 0 is replaced by 2, and 3 is a new model.
    wanted = missing_lanes(clients, has, [2, 3], {0: 2})
    assert wanted == [
        MissingLane("frontend 0", 2),
        MissingLane("frontend 0", 3),
        MissingLane("client 1", 2),
    ]
    has += [(wish.owner, wish.entry) for wish in wanted]
    assert missing_lanes(clients, has, [2, 3], {0: 2}) == []
    assert missing_lanes([*clients, ("frontend 1", True)], has, [2, 3], {0: 2}) == [
        MissingLane("frontend 1", 2), MissingLane("frontend 1", 3),
    ]  # fmt: skip
