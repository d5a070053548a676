"""The window loop: calls in windows, full lanes, and models that move after some rows have run."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from batchpool.client.call import Call
from batchpool.client.infer import infer, run_blocking
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import DeadlineExceeded, InvalidInput, Moved, PoolError, WorkerLost
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE

OTHER = replace(AFFINE, outputs=(Tensor("z", "float32", (4,)),))
X = np.arange(24, dtype=np.float32).reshape(6, 4)


class Lanes:
    """A driver whose lanes follow one another; each takes so many windows and then has moved.

    full: how often a window finds no room, on every lane. sent: rows of each window by its lane.
    refused: the first number of the row that the model refuses.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec],
        takes: Iterable[int],
        *,
        slots: int = 4,
        idempotent: bool = True,
        full: int = 0,
        late: bool = False,
        refused: float | None = None,
    ) -> None:
        self._lanes = [LaneClient(new_lane(spec, slots), watermark=1.0) for spec in specs]
        self._takes = dict(zip(self._lanes, takes, strict=True))
        self._facts = ModelFacts(0, AFFINE, 1.0, 30.0, 2, idempotent=idempotent)
        self._full = full
        self._late = late
        self._refused = refused
        self.sent: list[tuple[int, list[float]]] = []
        self.left = 0
        self.waits: list[str] = []
        self.dropped: list[PendingRequest] = []

    async def lane_client(self, model: str) -> LaneClient:
        return self._lanes[min(self.left, len(self._lanes) - 1)]

    def facts(self, model: str) -> ModelFacts:
        return self._facts

    async def submit(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        under_way: deque[PendingRequest],
    ) -> bool:
        if not self._takes[lane_client]:
            raise Moved("send it again")
        if len(self.waits) < self._full:
            return False
        self._takes[lane_client] -= 1
        self.sent.append((self.left, window.tensors["x"][:, 0].tolist()))
        under_way.append(PendingRequest(range(window.n), slice(0), 0, 0, window))
        return True

    async def wait_for_room(self, lane_client: LaneClient, window: Rows, call: Call) -> None:
        self.waits.append("room")

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Array]:
        if self._late:
            raise DeadlineExceeded("late")
        self.waits.append("result")
        x = under_way.popleft().tag.tensors["x"]
        if self._refused in (first := x[:, 0].tolist()):
            error = InvalidInput("no")
            error.row = first.index(self._refused) if len(first) > 1 else None
            raise error
        return {"y": x * 2}

    def drop(self, lane_client: LaneClient, requests: Iterable[PendingRequest]) -> None:
        self.dropped += requests

    def leave_moved(self) -> None:
        self.left += 1

    def infer(self) -> Array:
        """The output of a call of all rows, each row of which must be there once and in order."""
        return run_blocking(infer(self, "m", Call({"x": X})))["y"]


@pytest.mark.parametrize("full", [0, 3])
@pytest.mark.parametrize("takes", [(9,), (1, 9)])
@pytest.mark.parametrize("row", range(6))
def test_a_refused_rows_number_counts_within_the_call(
    row: int, takes: tuple[int, ...], full: int
) -> None:
    lanes = Lanes([AFFINE] * len(takes), takes, full=full, refused=4.0 * row)
    with pytest.raises(InvalidInput) as caught:
        run_blocking(infer(lanes, "affine", Call({"x": X})))
    assert caught.value.row == row


def test_a_call_of_one_row_needs_no_number() -> None:
    lanes = Lanes([AFFINE], [9], refused=4.0)
    with pytest.raises(InvalidInput) as caught:
        run_blocking(infer(lanes, "affine", Call({"x": X[1:2]})))
    assert caught.value.row is None


def test_a_call_that_fits_is_one_window() -> None:
    lanes = Lanes([AFFINE], [1], slots=6)
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert lanes.sent == [(0, [0, 4, 8, 12, 16, 20])]


def test_a_call_that_does_not_fit_goes_in_whole_batches() -> None:
    lanes = Lanes([AFFINE], [3])
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert lanes.sent == [(0, [0, 4]), (0, [8, 12]), (0, [16, 20])]


def test_a_call_that_may_not_wait_for_room_is_one_window() -> None:
    lanes = Lanes([AFFINE], [1])
    run_blocking(infer(lanes, "m", Call({"x": X}, wait_for_room=False)))
    assert lanes.sent == [(0, [0, 4, 8, 12, 16, 20])]


def test_a_full_lane_is_waited_for_only_when_nothing_is_under_way() -> None:
    lanes = Lanes([AFFINE], [3], full=2)
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert lanes.waits == ["room", "room", "result", "result", "result"]


def test_a_call_that_fails_drops_what_is_under_way() -> None:
    lanes = Lanes([AFFINE], [3], late=True)
    with pytest.raises(DeadlineExceeded):
        lanes.infer()
    assert [request.tag.n for request in lanes.dropped] == [2, 2, 2]


def test_a_call_of_which_nothing_was_sent_begins_anew_with_other_tensors() -> None:
    lanes = Lanes([OTHER, AFFINE], [0, 3], idempotent=False)
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert [lane for lane, _ in lanes.sent] == [1, 1, 1]


def test_the_rest_goes_from_lane_to_lane_and_no_row_runs_twice() -> None:
    lanes = Lanes([AFFINE, AFFINE, AFFINE], [1, 0, 2], idempotent=False)
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert lanes.sent == [(0, [0, 4]), (2, [8, 12, 16, 20])]


def test_outputs_that_cannot_be_joined_make_the_call_begin_anew() -> None:
    lanes = Lanes([AFFINE, OTHER], [2, 3])
    assert lanes.infer().tolist() == (X * 2).tolist()
    assert [lane for lane, _ in lanes.sent] == [0, 0, 2, 2, 2], "all rows went to the new lane"


def test_outputs_that_cannot_be_joined_fail_where_rows_may_not_run_twice() -> None:
    lanes = Lanes([AFFINE, OTHER], [2, 3], idempotent=False)
    text = "before the last 2 rows of this call were sent; the others have run"
    with pytest.raises(WorkerLost, match=text):
        lanes.infer()
    assert [lane for lane, _ in lanes.sent] == [0, 0], "nothing is sent where it does not fit"


def test_a_step_that_suspends_is_an_error_of_the_driver() -> None:
    class Suspended:
        def __await__(self) -> Iterable[None]:  # type: ignore[override]
            yield

    async def steps() -> None:
        await Suspended()  # type: ignore[misc]

    begun = steps()
    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(begun)
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


def test_an_error_of_a_step_is_the_callers() -> None:
    async def steps() -> None:
        raise PoolError("it is")

    with pytest.raises(PoolError, match="it is"):
        run_blocking(steps())


class FailsAt(Lanes):
    """Lanes whose result, or whose submission, of one window fails with an error."""

    def __init__(self, error: PoolError, *, result: int = -1, submission: int = -1) -> None:
        super().__init__([AFFINE], [3])
        self._error = error
        self._result, self._submission = result, submission
        self.deadlines: list[int] = []

    async def submit(
        self,
        lane_client: LaneClient,
        window: Rows,
        call: Call,
        under_way: deque[PendingRequest],
    ) -> bool:
        self.deadlines.append(call.deadline_ns)
        if len(self.sent) == self._submission:
            raise self._error
        taken = await super().submit(lane_client, window, call, under_way)
        under_way[-1].n = window.n
        return taken

    async def result(
        self, lane_client: LaneClient, under_way: deque[PendingRequest], call: Call
    ) -> dict[str, Array]:
        found = await super().result(lane_client, under_way, call)
        if len(self.waits) == self._result + 1:
            raise self._error
        return {"y": list(found["y"])} if call.returns_errors else found  # type: ignore[dict-item]

    def entries(self) -> list[object]:
        found = run_blocking(infer(self, "m", Call({"x": X}, errors="return")))["y"]
        return [row if isinstance(row, PoolError) else row.tolist() for row in found]


GOOD = (X * 2).tolist()


def test_a_window_that_fails_has_its_error_in_the_place_of_its_rows_only() -> None:
    error = DeadlineExceeded("late")
    assert FailsAt(error, result=1).entries() == [*GOOD[:2], error, error, *GOOD[4:]]


def test_windows_that_nobody_waits_for_any_more_are_dropped() -> None:
    lanes = FailsAt(PoolError("never"))
    lanes._late = True
    assert [type(entry) for entry in lanes.entries()] == [DeadlineExceeded] * 6
    assert [request.n for request in lanes.dropped] == [2, 2, 2]


def test_what_cannot_be_sent_after_other_rows_costs_only_the_rest() -> None:
    error = PoolError("it is over")
    assert FailsAt(error, submission=1).entries() == [*GOOD[:2], error, error, error, error]


def test_what_fails_before_any_row_was_sent_is_raised() -> None:
    with pytest.raises(PoolError, match="it is over"):
        FailsAt(PoolError("it is over"), submission=0).entries()


def test_without_a_timeout_each_window_has_the_models_time_for_itself() -> None:
    lanes = FailsAt(PoolError("never"))
    run_blocking(infer(lanes, "m", Call({"x": X})))
    assert len(lanes.deadlines) == 3
    assert lanes.deadlines[0] < lanes.deadlines[1] < lanes.deadlines[2]


def test_a_timeout_of_the_caller_holds_for_the_whole_call() -> None:
    lanes = FailsAt(PoolError("never"))
    run_blocking(infer(lanes, "m", Call({"x": X}, timeout_s=5.0)))
    assert len(lanes.deadlines) == 3
    assert len(set(lanes.deadlines)) == 1
