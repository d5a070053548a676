"""The window loop over rows that are in memory: several windows are read and checked at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.client.call import Call
from batchpool.client.mapped_rows import blocking
from batchpool.client.row_source import Columns
from batchpool.client.window_call import MapOptions
from batchpool.client.window_stream import WindowOutcome, run_windows
from batchpool.core.errors import Moved
from tests.unit.client.test_window_stream import ALL, Lanes, X
from tests.unit.specs import AFFINE


class HeldColumns(Columns):
    holds_rows = True


def outcomes(lanes: Any, x: Any = X, **options: Any) -> list[WindowOutcome]:
    source = HeldColumns({"x": x})
    return list(blocking(run_windows(lanes, "m", source, MapOptions(**options))))


def firsts(found: list[WindowOutcome]) -> list[float]:
    return [row[0] / 2 for outcome in found for row in outcome.outputs["y"]]


def test_windows_are_those_of_rows_that_are_read_one_by_one() -> None:
    lanes, others = Lanes(), Lanes()
    found = outcomes(lanes)
    assert firsts(found) == others.firsts() == ALL
    assert lanes.sent == others.sent
    assert [outcome.start for outcome in found] == list(range(0, 20, 2))
    assert lanes.most_held == 8


@pytest.mark.parametrize("window", [1, 2, 5])
def test_no_more_than_the_window_is_under_way(window: int) -> None:
    lanes = Lanes()
    assert firsts(outcomes(lanes, window=window)) == ALL
    assert lanes.most_held <= window


def test_good_rows_are_checked_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    check = Call.check

    def counted(call: Any, *arguments: Any) -> None:
        checked.append(call.n)
        check(call, *arguments)

    monkeypatch.setattr(Call, "check", counted)
    assert firsts(outcomes(Lanes())) == ALL
    assert checked == [8, 8, 4]


def test_a_row_that_does_not_fit_costs_no_other() -> None:
    rows: list[Any] = list(X)
    rows[5] = np.zeros(3, np.float32)
    found = outcomes(Lanes(), rows)
    errors = {
        outcome.start + at: error for outcome in found for at, error in outcome.errors.items()
    }
    assert list(errors) == [5]
    assert (errors[5].row, errors[5].message[:6]) == (5, "row 5:")
    good = [
        row[0] / 2
        for outcome in found
        for at, row in enumerate(outcome.outputs["y"])
        if at not in outcome.errors
    ]
    assert good == [first for at, first in enumerate(ALL) if at != 5]


def test_a_model_that_moves_within_a_block_gets_the_rest_checked_anew() -> None:
    lanes = Lanes(AFFINE, replace(AFFINE))
    lanes.refuses += [None, Moved("replaced")]
    assert firsts(outcomes(lanes)) == ALL
    assert lanes.left == 1


def test_the_priority_and_the_time_of_a_block_are_those_of_its_windows() -> None:
    class Watching(Lanes):
        async def submit(self, lane_client: Any, window: Any, call: Any, under_way: Any) -> bool:
            seen.add((call.priority, call.timeout_s, call.outputs, call.idempotent))
            assert call.deadline_ns > call.start_ns > 0
            return await super().submit(lane_client, window, call, under_way)

    seen: set[Any] = set()
    assert firsts(outcomes(Watching(), priority=255, outputs=["y"])) == ALL
    assert seen == {(255, 30.0, ("y",), True)}
