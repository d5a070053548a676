"""A worker dies before or after any of its stores; the next one goes on, and no token is lost, made
twice, or made behind the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchpool.core.errors import Status
from batchpool.worker.sequence_lane import SequenceLane
from batchpool.worker.sequence_records import RecordRing
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import tokens_of

STORES = (
    *((SequenceLane, name) for name in ("begin", "write", "mark_stops", "publish", "finish")),
    *((RecordRing, name) for name in ("begin", "end")),
)
# (lane, slot, prompt, most tokens, where it stops): some end in one step, some of them by a stop.
ROWS = [
    (1, 0, [1, 2], 3, 0),
    (1, 3, [7], 6, 2),
    (4, 1, [9, 9, 9], 4, 4),
    (4, 2, [3], 2, 0),
    (1, 5, [4], 5, 3),
]


class DeathError(BaseException):
    """The process is killed here."""


class Deaths:
    """Kills the process at its n-th point; before and after each store there is one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in STORES:
            patch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, store: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any) -> Any:
            self._point()
            found = store(*arguments)
            self._point()
            return found

        return around

    def _point(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise DeathError


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    return Deaths(monkeypatch)


def begun() -> tuple[SequenceBench, dict[int, int]]:
    """A worker with all rows in its ring, of which three run; the rows' places by record."""
    bench = SequenceBench(sequences=3, records=8)
    records = {}
    for at, (lane, slot, prompt, most, stop_at) in enumerate(ROWS):
        bench.fill(lane, slot, prompt, most, stop_at)
        records[bench.send(lane, slot)] = at
    return bench, records


def heir_of(lost: SequenceBench) -> SequenceBench:
    """Another worker, with the lanes as they are."""
    heir = SequenceBench(sequences=3, records=8)
    for number, lane in lost.lanes.items():
        heir.lanes[number].memory.cells()[:] = lane.memory.cells()[:]  # type: ignore[index]
    return heir


def ends(bench: SequenceBench) -> list[tuple[list[int], tuple[Status, bytes]]]:
    return [(bench.tokens(lane, slot), bench.end(lane, slot)) for lane, slot, *_ in ROWS]


WANTED = [
    (tokens_of(prompt, stop_at or most), (Status.OK, b"stop" if stop_at else b"length"))
    for _, _, prompt, most, stop_at in ROWS
]


def died_at(point: int, deaths: Deaths) -> SequenceBench | None:
    """The heir of a worker that died at a point, with all rows at their ends; None where it
    lived."""
    bench, records = begun()
    deaths.left = point
    try:
        bench.run()
    except DeathError:
        pass
    else:
        assert ends(bench) == WANTED
        return None
    deaths.left = -1
    heir = heir_of(bench)
    for record, at in records.items():
        if bench.segment.finished_of[record] != bench.segment.token_of[record]:
            heir.send(*ROWS[at][:2])
    heir.run()
    return heir


def test_any_point_of_death(deaths: Deaths) -> None:
    points = 0
    while (heir := died_at(points + 1, deaths)) is not None:
        points += 1
        assert ends(heir) == WANTED, f"died at point {points}"
    assert points > 80
