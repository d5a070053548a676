"""The window loop of `map`: windows, weather, rows that are sent again, what it leaves behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.client.infer import run_blocking
from batchpool.client.lane_client import LaneClient
from batchpool.client.mapped_rows import RowMap, blocking
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.window_call import MapOptions
from batchpool.core.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ModelError,
    Moved,
    NotReady,
    Overloaded,
    PoolError,
    PoolStopped,
)
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE

X = np.arange(80, dtype=np.float32).reshape(20, 4)
Window = list[float]


class Lanes:
    """A driver over one lane, or several that follow one another.

    refuses: errors that the next submits raise, None for one that is taken. ends: what a window
    ends with, at its first try: an error of all rows, or errors by the first number of a row.
    """

    def __init__(self, *specs: ModelSpec, slots: int = 8, idempotent: bool = True) -> None:
        specs = specs or (AFFINE,)
        self.lanes = [LaneClient(new_lane(spec, slots), watermark=1.0) for spec in specs]
        self._facts = ModelFacts(0, AFFINE, 1.0, 30.0, 2, idempotent=idempotent)
        self.refuses: deque[PoolError | None] = deque()
        self.ends: dict[float, PoolError] = {}
        self.broken: deque[PoolError] = deque()
        self.sent: list[Window] = []
        self.most_held = self.held = 0
        self.pauses: list[float] = []
        self.dropped: list[PendingRequest] = []
        self.left = 0
        self.connects_again = True
        self.on_pause: Callable[[], Any] = lambda: None

    async def lane_client(self, model: str) -> LaneClient:
        return self.lanes[min(self.left, len(self.lanes) - 1)]

    def facts(self, model: str) -> ModelFacts:
        return self._facts

    async def submit(
        self, lane_client: LaneClient, window: Rows, call: Any, under_way: deque[PendingRequest]
    ) -> bool:
        if self.refuses:
            refusal = self.refuses.popleft()
            if refusal is not None:
                raise refusal
        if self.held + window.n > 8:
            return False
        self.sent.append(window.tensors["x"][:, 0].tolist())
        self.held += window.n
        self.most_held = max(self.most_held, self.held)
        pending = PendingRequest(range(window.n), slice(0), 2**62, 0, window)
        pending.remaining = 0
        under_way.append(pending)
        return True

    async def wait_for_room(self, lane_client: LaneClient, n: int, call: Any) -> None:
        raise AssertionError("nobody else has rows here")

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Any
    ) -> dict[str, Any]:
        if self.broken:
            raise self.broken.popleft()
        pending = under_way.popleft()
        self.held -= pending.n
        x = pending.tag.tensors["x"]
        found = [self.ends.pop(row[0], row * 2) for row in x]
        errors = any(isinstance(entry, PoolError) for entry in found)
        return {"y": found if errors else np.stack(found)}

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        for pending in requests:
            self.held -= pending.n
            self.dropped.append(pending)

    def leave_moved(self) -> None:
        self.left += 1

    async def look(self) -> None:
        pass

    async def any_result(self, lane_client: LaneClient, requests: list[PendingRequest]) -> None:
        raise AssertionError("all are done at once")

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()

    def map(self, rows: Any = X, *, errors: str = "raise", **options: Any) -> Any:
        return blocking(RowMap(rows, {}, MapOptions(**options), errors).rows(self, "m"))

    def firsts(self, **arguments: Any) -> list[Any]:
        """The first number of each result, halved, or the error."""
        return [
            result if isinstance(result, PoolError) else result["y"][0] / 2
            for result in self.map(**arguments)
        ]


ALL = X[:, 0].tolist()


def test_windows_are_whole_batches_and_fill_the_lane() -> None:
    lanes = Lanes()
    assert lanes.firsts() == ALL
    assert {len(window) for window in lanes.sent} == {2}
    assert lanes.most_held == 8


@pytest.mark.parametrize("window", [1, 2, 5])
def test_no_more_than_the_window_is_under_way(window: int) -> None:
    lanes = Lanes()
    assert lanes.firsts(window=window) == ALL
    assert lanes.most_held <= window


@pytest.mark.parametrize("window", [1, 2, 5])
def test_no_more_than_the_window_is_read_ahead(window: int) -> None:
    read: list[Any] = []
    rows = (read.append(row) or row for row in X)  # type: ignore[func-returns-value]
    for yielded, _ in enumerate(Lanes().map(rows, window=window)):
        assert len(read) - yielded <= window


@pytest.mark.parametrize("refusal", [Overloaded("full", 300), NotReady("none"), Draining("later")])
def test_a_refusal_is_waited_out(refusal: PoolError) -> None:
    lanes = Lanes()
    lanes.refuses += [refusal, refusal, None, refusal]
    assert lanes.firsts() == ALL
    assert lanes.pauses[0] == (0.3 if isinstance(refusal, Overloaded) else 1.0)


def test_an_outage_ends_the_map_and_an_overload_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes()
    lanes.refuses += [Overloaded("full")] * 50
    assert lanes.firsts(outage_s=0) == ALL
    lanes.refuses += [NotReady("no worker")]
    with pytest.raises(NotReady, match="no worker"):
        lanes.firsts(outage_s=0)


def test_a_client_that_is_closed_waits_for_nothing() -> None:
    lanes = Lanes()
    lanes.connects_again = False
    lanes.refuses += [PoolStopped("this client is closed")]
    with pytest.raises(PoolStopped):
        lanes.firsts()
    assert lanes.pauses == []


def test_rows_that_weather_ended_are_sent_again_and_keep_their_places() -> None:
    lanes = Lanes()
    lanes.ends = {4.0: NotReady("replaced"), 40.0: Overloaded("late"), 76.0: Draining("drained")}
    assert lanes.firsts() == ALL
    assert [window for window in lanes.sent if len(window) == 1] == [[4.0], [40.0], [76.0]]


def test_windows_that_were_lost_with_the_pool_are_sent_again() -> None:
    lanes = Lanes()
    lanes.broken += [PoolStopped("gone"), PoolStopped("gone")]
    assert lanes.firsts() == ALL
    assert len(lanes.dropped) == 2
    assert lanes.held == 0


def test_rows_that_may_have_run_are_not_sent_again_where_that_is_not_allowed() -> None:
    lanes = Lanes(idempotent=False)
    lanes.broken += [PoolStopped("gone")]
    found = lanes.firsts(errors="return")
    assert [type(end) for end in found[:3]] == [PoolStopped, PoolStopped, np.float32]
    assert [end.row for end in found[:2]] == [0, 1]


def test_a_late_row_has_three_tries_and_one_where_the_caller_gave_the_time() -> None:
    class Late(Lanes):
        async def result(self, lane_client: Any, under_way: Any, call: Any) -> dict[str, Any]:
            self.ends = {4.0: DeadlineExceeded("late")}
            return await super().result(lane_client, under_way, call)

    for options, tries in (({}, 3), ({"timeout_s": 1.0}, 1)):
        lanes = Late()
        found = lanes.firsts(errors="return", **options)
        assert isinstance(found[1], DeadlineExceeded)
        assert sum(4.0 in window for window in lanes.sent) == tries
        assert len(found) == 20


def test_a_bad_row_is_raised_with_its_number_and_the_rest_is_dropped() -> None:
    lanes = Lanes()
    lanes.ends = {20.0: ModelError("bad")}
    results = lanes.map()
    assert [next(results)["y"][0] for _ in range(5)] == [0, 8, 16, 24, 32]
    with pytest.raises(ModelError) as caught:
        next(results)
    assert caught.value.row == 5
    assert lanes.held == 0


def test_an_iterator_that_is_left_drops_what_is_under_way() -> None:
    lanes = Lanes()
    results = lanes.map()
    next(results)
    assert lanes.held == 6
    results.close()
    assert lanes.held == 0
    assert len(lanes.dropped) == 3


def test_a_model_that_moves_is_followed() -> None:
    lanes = Lanes(AFFINE, AFFINE)
    lanes.refuses += [None, Moved("replaced")]
    assert lanes.firsts() == ALL
    assert lanes.left == 1


def test_a_model_that_gets_other_tensors_ends_the_map() -> None:
    lanes = Lanes(AFFINE, replace(AFFINE, outputs=(Tensor("z", "float32", (4,)),)))
    lanes.refuses += [None, None, None, None, Moved("replaced")]
    results = lanes.map()
    next(results)
    with pytest.raises(InvalidRequest, match="got other tensors"):
        list(results)
    assert lanes.held == 0


def test_a_window_goes_in_parts_to_a_smaller_lane() -> None:
    lanes = Lanes(AFFINE, AFFINE)
    lanes.lanes[1] = LaneClient(new_lane(AFFINE, 1), watermark=1.0)
    lanes.refuses += [None, Moved("replaced")]
    assert lanes.firsts() == ALL
    assert {len(window) for window in lanes.sent} == {2, 1}


def test_unordered_results_bear_their_numbers() -> None:
    found = dict(Lanes().map(ordered=False))
    assert [found[i]["y"][0] / 2 for i in range(20)] == ALL


def test_rows_of_dicts_with_other_names_go_apart() -> None:
    optional = Tensor("z", "float32", (4,), default=0.0)
    lanes = Lanes(replace(AFFINE, inputs=(*AFFINE.inputs, optional)))
    rows = [{"x": X[0]}, {"x": X[1]}, {"x": X[2]}, {"x": X[3], "z": X[3]}]
    assert lanes.firsts(rows=rows) == ALL[:4]
    assert lanes.sent == [[0, 4], [8], [12]]
    with pytest.raises(InvalidRequest, match="no input 'w'"):
        list(lanes.map([{"x": X[0], "w": 1}]))
    with pytest.raises(InvalidRequest, match="'x' of model 'm' is missing"):
        list(lanes.map([{"z": X[0]}]))


def test_nothing_is_made_before_the_first_row_is_asked_for() -> None:
    lanes = Lanes()
    lanes.map().close()
    assert (lanes.sent, lanes.dropped) == ([], [])
    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(_suspends())


async def _suspends() -> None:
    class Once:
        def __await__(self) -> Any:
            yield

    await Once()
